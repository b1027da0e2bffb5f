"""The one currency: a contiguous recording of one device's allocator events, as columns.

Here live the vocabulary (actions, phases, categories), the interned tables, the event columns and
the state of an allocator. What produces a trace (sources, files) and what reads it (the model, the
analyses) live elsewhere.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

import numpy as np

if TYPE_CHECKING:  # a millisecond of a recording's beginning
    import numpy.typing as npt
    from typing_extensions import Self

__all__ = [
    "EMPTY",
    "NOT_RECORDED",
    "OPTIMIZER_STEP",
    "PROFILER_STEP",
    "RECORDED_CATEGORIES",
    "SURVIVOR_AGE",
    "THREAD",
    "WARM_UP",
    "Action",
    "Annotation",
    "BlockState",
    "Blocks",
    "Category",
    "Column",
    "Columns",
    "Events",
    "Frame",
    "Label",
    "LastReads",
    "Phase",
    "SegmentKind",
    "Segments",
    "State",
    "Tables",
    "Trace",
    "column",
]

Column: TypeAlias = "npt.NDArray[Any]"

EMPTY = 0
"""Index of the empty stack, of the empty label and of the default pool in every table."""

NOT_RECORDED = -1
"""In a column of indices or times: the recorder did not say."""

WARM_UP = 3
"""Steps in which what is made lazily (moments, workspaces, tables) still appears."""

SURVIVOR_AGE = 2
"""Steps from its own on after which a tensor that is still there counts as one that stays: in the
next step, variables still hold what they are about to replace."""


class Action(enum.IntEnum):
    """What happened, in the words of torch's own recorder (``torch.cuda.memory._snapshot``)."""

    ALLOC = 0
    FREE_REQUESTED = 1
    """The tensor's storage died; the block may wait for other streams."""
    FREE_COMPLETED = 2
    """The block went back to its pool."""
    SEGMENT_ALLOC = 3
    SEGMENT_FREE = 4
    SEGMENT_MAP = 5
    SEGMENT_UNMAP = 6
    SNAPSHOT = 7
    OOM = 8
    OTHER = 9
    """An action that this version does not know; kept so that event indices stay true."""


class Phase(enum.IntEnum):
    """The part of a training step that an event fell into."""

    UNKNOWN = 0
    FORWARD = 1
    BACKWARD = 2
    OPTIMIZER = 3
    OTHER = 4
    """Known to be none of the three: data loading, metrics, set-up."""


class Category(enum.IntEnum):
    """Whose bytes these are."""

    UNKNOWN = 0
    """Not known, or the program's own: no model, optimizer, graph or ``.grad`` refers to it."""
    PARAMETER = 1
    BUFFER = 2
    GRADIENT = 3
    """``.grad`` of a tensor."""
    OPTIMIZER_STATE = 4
    ACTIVATION = 5
    """There when the backward pass began; two steps later, only if a graph still saves it."""
    INPUT = 6
    """Handed into the outermost module from outside (a batch, targets)."""
    TEMPORARY = 7
    """None of these: made and dropped on the way."""
    GRADIENT_BUCKET = 8
    """Of DDP's reducer: gradients are copied here to be reduced, unless they are views of it."""
    GATHERED_PARAMETER = 9
    """A whole parameter, or more of it than this rank's shard, as FSDP has gathered it."""
    COMMUNICATION_BUFFER = 10
    """What FSDP gathers and reduces through, what a pipeline's stage receives into."""
    LIBRARY_WORKSPACE = 11
    """What torch keeps for cuBLAS for good, for every thread and stream that multiplied."""


RECORDED_CATEGORIES = int(Category.TEMPORARY) + 1
"""Those below it stand in run files; the others are told by stacks and sizes, where files are
read."""


class BlockState(enum.IntEnum):
    """The state of a block, as torch's snapshot names it."""

    INACTIVE = 0
    ACTIVE_ALLOCATED = 1
    ACTIVE_PENDING_FREE = 2
    """Freed by its owner, but another stream may still use it."""


class SegmentKind(enum.IntEnum):
    """The pool that a segment serves: requests up to 1 MiB, or larger ones."""

    UNKNOWN = 0
    SMALL = 1
    LARGE = 2


class Frame(NamedTuple):
    """One line of a stack: function name, file as recorded, line (0 where not known)."""

    name: str
    filename: str
    line: int
    changed: bool = False
    """The file here is known to be another than ran, so its text says nothing of this line."""


class Label(NamedTuple):
    """What memprof knows about the moment of an event beyond the stack."""

    step: int = NOT_RECORDED
    phase: Phase = Phase.UNKNOWN
    module: str = ""
    """Path of the innermost module that ran, such as ``GPT.blocks.3.mlp``."""
    annotation: str = ""
    """``memprof.annotate`` names, outermost first, joined by ``/``; or torch's user metadata."""


THREAD = "thread "
"""How the annotation begins of what another thread than the main one does; its name follows."""
PROFILER_STEP, OPTIMIZER_STEP = "ProfilerStep#", "Optimizer.step#"
"""How the names of annotations begin that torch gives to steps; a number follows, or a class."""


class Annotation(NamedTuple):
    """A named stretch of time (``record_function``, ``ProfilerStep#3``); ends may be unknown."""

    name: str
    start_us: int = NOT_RECORDED
    end_us: int = NOT_RECORDED


@dataclass(frozen=True, slots=True)
class Tables:
    """What events and blocks point into; shared by all traces of a run.

    ``stacks`` hold frame indices, innermost first. Entry 0 of ``stacks`` and ``labels`` is the
    empty one, entry 0 of ``pools`` the default pool ``(0, 0)``.
    """

    frames: Sequence[Frame] = ()
    stacks: Sequence[tuple[int, ...]] = ((),)
    labels: Sequence[Label] = (Label(),)
    pools: Sequence[tuple[int, int]] = ((0, 0),)

    def stack(self, index: int) -> tuple[Frame, ...]:
        """The frames of one stack, innermost first."""
        return tuple(self.frames[i] for i in self.stacks[index])


def column(dtype: str, *, missing: int = 0) -> Any:
    """A numpy column of a `Columns` dataclass; `Columns.build` fills it with ``missing``."""
    return field(metadata={"dtype": np.dtype(dtype), "missing": missing})


class Columns:
    """Equal-length numpy columns: construction by keyword, length, selection."""

    __slots__ = ()

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __post_init__(self) -> None:
        """Make every column contiguous and of its dtype.

        Raises:
            ValueError: the columns differ in length.
            OverflowError: a value does not fit its column.
        """
        lengths = set()
        for name, spec in self.__dataclass_fields__.items():
            column = np.ascontiguousarray(getattr(self, name), dtype=spec.metadata["dtype"])
            object.__setattr__(self, name, column)
            lengths.add(len(column))
        if len(lengths) > 1:
            raise ValueError(f"columns of {type(self).__name__} differ in length: {lengths}")

    def __len__(self) -> int:
        return len(getattr(self, next(iter(self.__dataclass_fields__))))

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The names of the columns, in order."""
        return (*cls.__dataclass_fields__,)

    @classmethod
    def build(cls, length: int | None = None, **columns: Any) -> Self:
        """From the columns given; those left out are filled with 0, or what stands for missing."""
        if length is None:
            length = len(next(iter(columns.values()))) if columns else 0
        for name, spec in cls.__dataclass_fields__.items():
            if name not in columns:
                columns[name] = np.full(length, spec.metadata["missing"], spec.metadata["dtype"])
        return cls(**columns)

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        """The rows of all parts, in order; no part gives no rows."""
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return cls.build()
        return cls(**{n: np.concatenate([getattr(p, n) for p in parts]) for n in cls.names()})

    def take(self, index: Any) -> Self:
        """The rows that a slice, a mask or an array of indices selects."""
        return type(self)(**{name: getattr(self, name)[index] for name in self.names()})


@dataclass(frozen=True, slots=True, eq=False)
class Events(Columns):
    """Events in the order they happened; the row number is the event's index in its trace."""

    action: Column = column("u1")
    """`Action`."""
    address: Column = column("i8")
    """First byte of the block or segment; for ``OOM`` the device's free bytes."""
    size: Column = column("i8")
    """Requested bytes of a block (not rounded, except ``OOM``: rounded); bytes of a segment."""
    stream: Column = column("i8")
    time_us: Column = column("i8", missing=NOT_RECORDED)
    """Microseconds since the Unix epoch; `NOT_RECORDED` where the recorder kept no clock."""
    stack: Column = column("i4")
    label: Column = column("i4")
    pool: Column = column("i4", missing=NOT_RECORDED)
    """Index into ``Tables.pools``; `NOT_RECORDED` where the recorder did not say."""
    category: Column = column("u1")
    """`Category` of what an ``ALLOC`` made, judged over its whole life; 0 on other events."""
    block_size: Column = column("i8")
    """Bytes of the block that an ``ALLOC`` got; 0 where only a replay could tell. Not in files."""
    origin: Column = column("i4")
    """Row of the stack that called the forward operator whose backward pass made this; `EMPTY`
    elsewhere, and where it is not known."""


@dataclass(frozen=True, slots=True, eq=False)
class Segments(Columns):
    """Memory held from the driver; for expandable segments one row per contiguous mapped range."""

    address: Column = column("i8")
    size: Column = column("i8")
    stream: Column = column("i8")
    pool: Column = column("i4")
    kind: Column = column("u1")
    """`SegmentKind`."""
    expandable: Column = column("?")
    stack: Column = column("i4")


@dataclass(frozen=True, slots=True, eq=False)
class Blocks(Columns):
    """The blocks that tile the segments, by address."""

    address: Column = column("i8")
    size: Column = column("i8")
    """Bytes taken from the segment."""
    requested: Column = column("i8")
    """Bytes asked for; 0 for inactive blocks."""
    state: Column = column("u1")
    """`BlockState`."""
    segment: Column = column("i4")
    """Row in `Segments`; `NOT_RECORDED` for blocks that belong to none (CPU tensors)."""
    stack: Column = column("i4")
    label: Column = column("i4")
    category: Column = column("u1")
    """`Category`."""


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """Everything an allocator holds at one moment."""

    segments: Segments = field(default_factory=Segments.build)
    blocks: Blocks = field(default_factory=Blocks.build)
    unlisted: int = 0
    """Bytes that the segments' own sums count as allocated beyond the blocks that are listed."""

    @property
    def allocated(self) -> int:
        """Bytes of blocks in use by tensors, as the allocator rounded them."""
        return self._bytes(self.blocks.state == BlockState.ACTIVE_ALLOCATED) + self.unlisted

    @property
    def active(self) -> int:
        """Allocated bytes and those of blocks that wait for a stream before they are free."""
        return self._bytes(self.blocks.state != BlockState.INACTIVE) + self.unlisted

    @property
    def reserved(self) -> int:
        """Bytes held from the driver."""
        return int(self.segments.size.sum())

    @property
    def requested(self) -> int:
        """Bytes that the tensors in use asked for."""
        in_use = self.blocks.state == BlockState.ACTIVE_ALLOCATED
        return int(self.blocks.requested[in_use].sum())

    def _bytes(self, mask: npt.NDArray[np.bool_]) -> int:
        return int(self.blocks.size[mask].sum())


class LastReads(NamedTuple):
    """When operators were given some tensors last, which were made and freed in the trace.

    Columns of equal length.
    """

    made: Column = np.zeros(0, dtype=np.int64)
    """Index of the ``ALLOC`` event."""
    read: Column = np.zeros(0, dtype=np.int64)
    """Index of the first event after the last operator that was given the tensor."""
    part: Column = np.zeros(0, dtype=np.float64)
    """Of its bytes, that operators read, added up; 1 for all and more."""


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """One device's events without a gap, and the state at one end or both.

    At least one of ``start`` and ``end`` is there; a torch snapshot has ``end`` only, a window
    that was cut short (the job was killed) ``start`` only.
    """

    device: str
    """``"cpu"`` or ``"cuda:0"``."""
    events: Events
    tables: Tables
    start: State | None = None
    end: State | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The allocator's settings under torch's own keys (``PYTORCH_CUDA_ALLOC_CONF``, …)."""
    annotations: Sequence[Annotation] = ()
    modelled: bool = False
    """Addresses and segments come from the allocator model, not from a device."""
    torch_version: str = ""
    """As torch names itself, or ``"2.10+"`` where only a lower bound can be told; may be empty."""
    reordered: bool = False
    """The file's events were not in the order of their times and were sorted."""
    last_reads: LastReads = LastReads()
    """Of large tensors of the CPU, where operators were watched; not of those that went at once."""

    def stack(self, index: int) -> tuple[Frame, ...]:
        """The frames of one stack, innermost first."""
        return self.tables.stack(index)

    def label(self, index: int) -> Label:
        """One label."""
        return self.tables.labels[index]
