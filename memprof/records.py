"""The records of a run file, one struct a kind; how they are written and read is `runfile`'s.

`docs/run-file.md` is generated from this module and `reference_chain`, so every field says what it
holds and its unit.
"""

from __future__ import annotations

import msgspec

from memprof.reference_chain import THROUGH_GRAPH, Link, LinkKind, Unowned

__all__ = [
    "SCHEMA_VERSION",
    "BatchSizes",
    "BlockColumns",
    "DeviceInfo",
    "DeviceSummary",
    "DoubleResults",
    "DryRun",
    "Finding",
    "Footer",
    "GraphInputs",
    "GuessedSteps",
    "Header",
    "Holder",
    "Interim",
    "KeptResults",
    "LabelledRows",
    "LargeValues",
    "LastReadsRecord",
    "Note",
    "OperatorGraph",
    "OverlapCopies",
    "Owners",
    "PaddedBatches",
    "Readings",
    "Record",
    "SegmentColumns",
    "Site",
    "SourceFiles",
    "StateRecord",
    "StepColumns",
    "StepsRecord",
    "TablesRecord",
    "TraceRecord",
    "UnmovedParameters",
    "WindowRecord",
    "is_out_of_memory",
]

SCHEMA_VERSION = (1, 15)
"""(major, minor). A reader refuses a newer major version and ignores what a newer minor adds.

What a field meant in an older version is brought to its present meaning by `older_schema`.

History:
    1.0  first version (2026-11)
    1.1  `interim`; the footer tells step time, growth, bytes outside torch and failures;
         `source_files`: digests of the program's own files (2026-11)
    1.2  `window`: why a window opened and ended, and in which steps (2026-11)
    1.3  a holder has no sentence any more; a `Link` has fields for what its name said: the nodes of
         the graph, the bytes of a view and of its storage, whether a dict is a record, and what is
         known of memory that nobody owns (2026-11)
    1.4  the header says of a dry run what card it was for (2026-11)
    1.5  a `Link` names the methods by which an object lets go of what it has, and how many of an
         optimizer's states are orphaned; it may be a task of asyncio, or what `atexit` keeps;
         `guessed_steps`: which steps no mark and no optimizer ended (2026-11)
    1.6  a summary says when a device is full; the finding ``time_to_full`` (2026-11)
    1.7  `double_results`: what operators return in double precision, and why;
         `unmoved_parameters`: modules that an optimizer steps with a rate of 0; a trace names the
         forward line that allocations of a backward pass come of (2026-11)
    1.8  a `Link` says whether the value under a weak key refers to that key (2026-11)
    1.9  `padded_batches`: how much of its batches a model is called with is padding (2026-11)
    1.10 `labelled_rows`: how many of the rows that it is given a loss counts (2026-11)
    1.11 `graph_inputs`: which calls of models were given what takes a gradient; `kept_results`:
         what was read of results that outlived calls of models (2026-11)
    1.12 `large_values`: how much of large tensors is zero, or the same again, and whether it is so
         in several steps (2026-11)
    1.13 `batch_sizes`: how many rows models are called with (2026-11)
    1.14 `last_reads`: where operators read large tensors last, and how much of them;
         `overlap_copies`: what is computed of views that show memory several times; the footer says
         whether the program was over; a `Link` says of a function's cache whether it was ever of
         use (2026-11)
    1.15 `operator_graph`: of what operators make large tensors, and what others make of these
         (2026-11)
"""


class DeviceInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """One device whose memory is recorded."""

    device: str
    """``"cuda:0"`` or ``"cpu"``."""
    name: str = ""
    total_bytes: int = 0
    """Bytes of the device's memory; 0 where not known."""
    uuid: str = ""
    backend: str = ""
    """Allocator backend: ``native``, ``cudaMallocAsync``, ``pluggable``, ``uncached``, ``cpu``."""
    memory_fraction: float = 1.0
    """``torch.cuda.set_per_process_memory_fraction``; 1 where none is set."""
    settings: dict[str, object] = {}
    """Allocator settings under torch's own keys."""
    recorder: str = ""
    """On a CPU what saw its allocations: ``allocator`` (torch's, by the native part: every one) or
    ``operators`` (a dispatch mode: what operators return)."""
    compiled: bool = False
    """The program had called torch.compile, whose graphs no dispatch mode sees."""


class DryRun(msgspec.Struct, frozen=True, omit_defaults=True):
    """The card that a program was run for without one: nothing was computed."""

    card: str
    """The name that the driver would give."""
    total_bytes: int = 0
    """Of its memory, as the driver would report them."""
    context_bytes: int = 0
    """Of them, what a CUDA context is taken to hold."""
    capability: str = ""
    """Compute capability: ``"9.0"``."""
    multiprocessors: int = 0


class Header(msgspec.Struct, frozen=True, tag_field="kind", tag="header", omit_defaults=True):
    """The first record: what ran, where, and with what options."""

    schema: tuple[int, int]
    created_us: int
    """Microseconds since the Unix epoch."""
    memprof_version: str = ""
    torch_version: str = ""
    python_version: str = ""
    platform: str = ""
    argv: list[str] = []
    cwd: str = ""
    pid: int = 0
    rank: int = -1
    """Global rank under a distributed launcher; -1 outside one."""
    local_rank: int = -1
    world_size: int = 1
    devices: list[DeviceInfo] = []
    options: dict[str, object] = {}
    """The options that `track` was given."""
    dry_run: DryRun | None = None
    """Where devices were simulated: what was recorded is memory, and nothing was computed."""


class TablesRecord(msgspec.Struct, frozen=True, tag_field="kind", tag="tables", omit_defaults=True):
    """New rows of the interned tables; rows number on from the tables before.

    Row 0 of stacks, labels and pools (the empty stack, the empty label, the default pool) is
    implied and never written.
    """

    first: tuple[int, int, int, int] = (0, 1, 1, 1)
    """Row numbers of the first new frame, stack, label and pool, so that a lost record shows."""
    frames: list[tuple[str, str, int]] = []
    """``[function, file, line]``."""
    stacks: list[list[int]] = []
    """Frame rows, innermost first."""
    labels: list[tuple[int, int, str, str]] = []
    """``[step, phase, module, annotation]``.

    Phase: 0 unknown, 1 forward, 2 backward, 3 optimizer, 4 other.
    """
    pools: list[tuple[int, int]] = []


class SourceFiles(
    msgspec.Struct, frozen=True, tag_field="kind", tag="source_files", omit_defaults=True
):
    """Digests of the program's own source files as they ran, so that they are known again.

    Of files that stacks and holders name, each in one record of a run. There is none of a file that
    may not be what was imported: written since the process began, or not a plain file.
    """

    names: list[str] = []
    """As frames name them."""
    digests: list[str] = []
    """BLAKE2b of 16 bytes, as hexadecimal digits; line ends count as ``\\n``."""


class TraceRecord(msgspec.Struct, frozen=True, tag_field="kind", tag="trace", omit_defaults=True):
    """A chunk of one device's events in a window, as columns of equal length."""

    device: str
    window: int
    """Windows are numbered from 0; the chunks of one window follow one another without a gap."""
    first_event: int
    """Index in the window of this chunk's first event."""
    action: list[int]
    """0 alloc, 1 free_requested, 2 free_completed, 3 segment_alloc, 4 segment_free, 5 segment_map,
    6 segment_unmap, 7 snapshot, 8 oom, 9 other."""
    address: list[int]
    size: list[int]
    time_us: list[int]
    """The first is absolute (microseconds since the Unix epoch), the others are differences."""
    stack: list[int]
    label: list[int]
    category: list[int]
    """0 unknown, 1 parameter, 2 buffer, 3 gradient, 4 optimizer state, 5 activation, 6 input,
    7 temporary."""
    stream: list[int] = []
    """Empty: all 0."""
    pool: list[int] = []
    """Empty: not recorded."""
    origin: list[int] = []
    """Of what a backward pass allocates the stack that called its operator in the forward pass; 0:
    not known, or no backward pass. Empty: all 0."""


class Owners(msgspec.Struct, frozen=True, tag_field="kind", tag="owners", omit_defaults=True):
    """Categories and modules that became known after their event was written."""

    device: str
    window: int
    events: list[int] = []
    """Indices in the window of ``alloc`` events."""
    categories: list[int] = []
    labels: list[int] = []
    """Rows of the labels, with the module that owns the bytes. Empty (before 1.7): as written."""
    blocks: list[int] = []
    """Addresses of blocks that were there when the window began."""
    block_categories: list[int] = []
    block_labels: list[int] = []
    """As ``labels``."""


class LastReadsRecord(
    msgspec.Struct, frozen=True, tag_field="kind", tag="last_reads", omit_defaults=True
):
    """Where operators were given large tensors last, as columns: of those that have died since.

    One that is written at a window's end is of those that live then, and of that window alone.
    Known where a dispatch mode records (``recorder`` is ``operators``), of tensors of 256 KiB and
    more that made a 512th of the bytes in use; not of one that was read whole and died before
    anything else was allocated. What NumPy reads is not seen, and nothing is written once
    torch.compile is used.
    """

    device: str
    window: int
    made: list[int] = []
    """Indices in the window of ``alloc`` events."""
    read: list[int] = []
    """Of each the index of the first event after the last operator that was given the tensor."""
    part: list[float] = []
    """Of its bytes, that those operators read, added up; 1 for all and more. A view reads none."""


class SegmentColumns(msgspec.Struct, frozen=True, omit_defaults=True):
    """Segments as columns of equal length; kind: 0 unknown, 1 small, 2 large."""

    address: list[int] = []
    size: list[int] = []
    stream: list[int] = []
    pool: list[int] = []
    kind: list[int] = []
    expandable: list[bool] = []
    stack: list[int] = []


class BlockColumns(msgspec.Struct, frozen=True, omit_defaults=True):
    """Blocks as columns of equal length; state: 0 inactive, 1 allocated, 2 pending free."""

    address: list[int] = []
    size: list[int] = []
    requested: list[int] = []
    state: list[int] = []
    segment: list[int] = []
    stack: list[int] = []
    label: list[int] = []
    category: list[int] = []


class StateRecord(msgspec.Struct, frozen=True, tag_field="kind", tag="state", omit_defaults=True):
    """What an allocator held at the start or the end of a window."""

    device: str
    window: int
    at: str
    """``"start"`` or ``"end"``."""
    segments: SegmentColumns = SegmentColumns()
    blocks: BlockColumns = BlockColumns()


class WindowRecord(msgspec.Struct, frozen=True, tag_field="kind", tag="window", omit_defaults=True):
    """A window of every device has ended; one that a killed job was in has none."""

    window: int
    reason: str
    """``start`` (recording begins with everything), ``regular``, ``growth``, ``fragmentation``,
    ``code`` (the program ran code of its own that no window had recorded)."""
    end: str
    """Why it ended: ``steps`` (it was as long as it should be), a limit (``allowance``,
    ``max_events``, ``max_bytes``, ``tables``: the tracker's own memory), ``reserve`` (the rest of
    the allowance is kept for the first steps that train), ``gap`` (events were lost) or ``stop``
    (the recording ended)."""
    start_us: int
    end_us: int
    first_step: int = -1
    """The steps that were under way as it began and ended."""
    last_step: int = -1
    in_step: bool = False
    """It ended in the middle of ``last_step``, not with it."""


class StepColumns(msgspec.Struct, frozen=True, omit_defaults=True):
    """Steps as columns of equal length; -1 where a figure was not measured.

    A row covers the steps ``first`` to ``last``: one step, or 2, 4, 8 … in a long job.
    """

    first: list[int] = []
    last: list[int] = []
    start_us: list[int] = []
    end_us: list[int] = []
    allocated: list[int] = []
    """Bytes at the end of ``last``."""
    allocated_min: list[int] = []
    """Least and most bytes at the step ends that the row covers."""
    allocated_max: list[int] = []
    peak_allocated: list[int] = []
    """Highest in the steps that the row covers."""
    reserved: list[int] = []
    peak_reserved: list[int] = []
    active: list[int] = []
    requested: list[int] = []
    inactive_split: list[int] = []
    retries: list[int] = []
    """Allocation retries since the process started; likewise ``ooms``."""
    ooms: list[int] = []
    window: list[int] = []
    """The window that recorded the row, -1 between windows."""


class StepsRecord(msgspec.Struct, frozen=True, tag_field="kind", tag="steps"):
    """Counters of one device at the ends of steps."""

    device: str
    steps: StepColumns


class GuessedSteps(
    msgspec.Struct, frozen=True, tag_field="kind", tag="guessed_steps", omit_defaults=True
):
    """Steps whose ends were guessed; of several that begin with the same step the last holds."""

    first: int
    last: int
    sign: str
    """What ended each of them: ``line`` (a loop of operators came round), ``bare_call`` (of a
    module without parameters), ``call``, ``backward`` (a backward pass, or changed parameters)."""
    merged: bool = False
    """A surer sign has ended ``last``: together they are one step of the program."""
    filename: str = ""
    """The line of the program that each of them came to; empty where there were several."""
    line: int = 0


class DoubleResults(
    msgspec.Struct, frozen=True, tag_field="kind", tag="double_results", omit_defaults=True
):
    """What operators returned in float64 or complex128, as columns of equal length.

    Known where a dispatch mode records (``recorder`` is ``operators``). One is written at a
    window's end, with every stack and size that was new in it; together they are those of the run.
    """

    device: str
    stack: list[int] = []
    size: list[int] = []
    """Bytes of the result's storage."""
    origin: list[int] = []
    """0 computed from data that came so (NumPy's), 1 of float32 that such data was combined with, 2
    the program asked for it (``double()``, ``dtype=``, the default type), 3 several of these."""
    narrowed_bytes: int = 0
    """Of values in double precision that were converted to float32 in the window."""


class LabelledRows(
    msgspec.Struct, frozen=True, tag_field="kind", tag="labelled_rows", omit_defaults=True
):
    """How many of the rows that it is given a loss counts, as columns of equal length.

    The others have the label that the loss ignores. Of negative log-likelihoods, as
    ``F.cross_entropy`` computes them. Known where a dispatch mode records (``recorder`` is
    ``operators``). One is written at a window's end, of what was new in it.
    """

    device: str
    stack: list[int] = []
    """Where the scores were made that the loss is given."""
    size: list[int] = []
    """Bytes of those scores, in one call."""
    calls: list[int] = []
    """Calls with such scores."""
    rows: list[int] = []
    """Rows of all these calls."""
    labelled: list[int] = []
    """Those of them that count."""


class KeptResults(
    msgspec.Struct, frozen=True, tag_field="kind", tag="kept_results", omit_defaults=True
):
    """What operators read of results that outlived calls of models, as columns of equal length.

    Of those that have died, and all that was computed of them value by value. Known where a
    dispatch mode records (``recorder`` is ``operators``), which does not see what NumPy reads. One
    is written at a window's end, of what died in it.
    """

    device: str
    stack: list[int] = []
    """Where results of one size were made."""
    size: list[int] = []
    """Bytes of one."""
    count: list[int] = []
    """Results of that stack and size."""
    needed: list[int] = []
    """Those of them of which all may be needed: by an operator that does not just reduce them."""
    unread: list[int] = []
    """Those of them of which no operator computed anything, but copies that none was given."""
    reduced: list[int] = []
    """Bytes of all that the others were reduced to."""
    readers: list[list[int]] = []
    """Stacks of operators that reduced them, a few."""
    computed: list[list[int]] = []
    """Stacks of what was computed of them value by value, or joined of them, a few."""


class LargeValues(
    msgspec.Struct, frozen=True, tag_field="kind", tag="large_values", omit_defaults=True
):
    """What large tensors are full of, as columns of equal length, by samples of their values.

    Known where a dispatch mode records (``recorder`` is ``operators``), of tensors of 64 KiB and
    more that made a twentieth of the bytes in use with others of their stack and size, as they were
    at the last look; of the first few of those, and of what operators of the window's own thread
    allocated. One is written at a window's end.
    """

    device: str
    stack: list[int] = []
    """Where tensors of one size were made."""
    size: list[int] = []
    """Bytes of one."""
    count: list[int] = []
    """Tensors of that stack and size that were looked at; the other figures are of all of them."""
    looks: list[int] = []
    """The fewest looks at one."""
    filled: list[float] = []
    """Share of the values that are not zero, the most of one."""
    settled: list[int] = []
    """Those that were hardly fuller at their last look than when half the steps were over."""
    graphless: list[int] = []
    """Those of an operator that was given nothing that needs a gradient; none in older files."""
    distinct: list[int] = []
    """Different values that are not zero, as far as they were read, the most of one; 0: more than a
    byte can tell apart, or of one too few were read."""
    ones: list[int] = []
    """Those of which the values that are not zero are the same one."""
    repeats: list[int] = []
    """How often the same values are there, along whole dimensions or in equal parts of one, the
    fewest of one tensor; 1: they are not."""
    same: list[int] = []
    """The most tensors of that size, of whatever stack, that had the same values at once."""
    same_in_steps: list[int] = []
    """The same of the step in which they were the fewest, of two steps or more that were looked at;
    else 1."""
    shape: list[list[int]] = []
    """Lengths of the dimensions, of the first."""
    dim: list[int] = []
    """The dimension along which values come first and only zeros after them; -1 without one."""
    used: list[int] = []
    """Places along it that are filled, the most of any line at any look."""
    mean_used: list[float] = []
    """And of a line on average."""


class OverlapCopies(
    msgspec.Struct, frozen=True, tag_field="kind", tag="overlap_copies", omit_defaults=True
):
    """What operators computed of all values of views that show memory several times, as columns.

    As `unfold` does, with windows that overlap; copies are meant, and what is computed of them
    value by value. Known where a dispatch mode records (``recorder`` is ``operators``), of results
    of 1 MiB and more. One is written at a window's end.
    """

    device: str
    stack: list[int] = []
    size: list[int] = []
    """Bytes of one result."""
    count: list[int] = []
    """Results of that stack and size."""
    times: list[float] = []
    """How often each value of the view's storage is in them, on average, the least of one."""


class OperatorGraph(
    msgspec.Struct, frozen=True, tag_field="kind", tag="operator_graph", omit_defaults=True
):
    """What operators made of large tensors, that operators had made before, as columns.

    A row is what one operator made, called from one stack; of two rows with the same the last
    holds. Known where a dispatch mode records (``recorder`` is ``operators``), of tensors of 256
    KiB and more that made a 512th of the bytes in use; not of what a backward pass computes.
    """

    device: str
    stack: list[int] = []
    operator: list[str] = []
    """As torch names it, without its overload: ``aten::mul``."""
    size: list[int] = []
    """Bytes of the largest result."""
    given: list[int] = []
    """Bytes of the tensors that it was given, each counted once, the most of one call."""
    count: list[int] = []
    """Results."""
    reads: list[list[tuple[int, str, int, int, int]]] = []
    """Operators that were given the result, by what they made: its stack (0: it is no tensor) and
    operator (of what is written into, those that made it), how often, the most bytes of the result
    that one call was given (fewer than its size: of a view), and the most that it made. Empty too
    where they are too many, or where one may have been missed (a sparse tensor does not say whose
    parts it has)."""


class UnmovedParameters(
    msgspec.Struct, frozen=True, tag_field="kind", tag="unmoved_parameters", omit_defaults=True
):
    """Modules whose parameters optimizers have with a rate of 0 in every step; the last holds.

    Not those whose schedule begins with another rate, as a warm-up's does.
    """

    modules: list[str] = []
    """Paths, as labels have them."""
    steps: int = 0
    """Steps of their optimizers that were seen."""


class PaddedBatches(
    msgspec.Struct, frozen=True, tag_field="kind", tag="padded_batches", omit_defaults=True
):
    """How much of what a model is called with is padding; the last holds.

    Of the call whose longest sequence left the smallest share of its places empty. Only tensors on
    the CPU are read: masks that are given as ``attention_mask``; without these, batches that end in
    zeros or, where they are indices, in one index.
    """

    calls: int = 0
    """Calls whose masks were looked at."""
    sequences: int = 0
    """The most in one call, of all calls."""
    places: int = 0
    """Places of each sequence in the call that left the fewest empty."""
    longest: int = 0
    """Places from the first to the last that any sequence of that call uses."""


class BatchSizes(
    msgspec.Struct, frozen=True, tag_field="kind", tag="batch_sizes", omit_defaults=True
):
    """How many rows models are called with from outside all modules; the last holds.

    The first dimension of the first tensor that a call is given, wherever it lies.
    """

    learned: int = 0
    """The most in a call with gradients on; 0 where there was none with a tensor."""
    evaluated: int = 0
    """The most in a call with gradients off; likewise."""


class GraphInputs(
    msgspec.Struct, frozen=True, tag_field="kind", tag="graph_inputs", omit_defaults=True
):
    """Which calls of models were given what takes a gradient, as columns of equal length.

    Of calls from outside all modules, with gradients on: the graph of one that was given none leads
    to the parameters of what it calls, and to nothing else. The last holds.
    """

    modules: list[str] = []
    """Paths of what was called, as labels have them."""
    files: list[str] = []
    """The line of the program that the calls came by, the innermost, …"""
    lines: list[int] = []
    """… with its number."""
    calls: list[int] = []
    """Calls of the module by the line."""
    given: list[int] = []
    """Those of them that were given a tensor that takes a gradient, or what was not looked into."""


class Readings(msgspec.Struct, frozen=True, tag_field="kind", tag="readings"):
    """Readings of a sampled source (``nvml``, ``host``) as columns over ``time_us``.

    A dry run writes one at its end: ``nccl``, the most bytes that NCCL was taken to hold, and
    ``nccl_lacking``, what was missing where it found none.
    """

    source: str
    device: str
    """The device, or ``"host"``."""
    time_us: list[int]
    values: dict[str, list[float | int | None]]
    """By name, with its unit where that is not bytes (``used``, ``power_w``).

    ``null``: cannot be read.
    """


class Site(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of somebody's source; ``code`` is its text."""

    filename: str = ""
    line: int = 0
    function: str = ""
    code: str = ""


class Holder(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who keeps tensors alive: the chain of references, and the best line for it."""

    kind: LinkKind = LinkKind.UNKNOWN
    """The kind of the link that says most about why."""
    filename: str = ""
    line: int = 0
    code: str = ""
    links: list[Link] = []

    @property
    def description(self) -> str:
        """The chain as one line for a person; no part of the record."""
        from memprof.chain_description import describe  # a job that records needs no words

        return describe(self.links)

    @property
    def is_named(self) -> bool:
        """True where the search found what holds the tensor."""
        return self.kind != LinkKind.UNKNOWN

    @property
    def unowned(self) -> Unowned | None:
        """What is known of memory that no Python object owns; None where one was found."""
        return self.links[0].unowned if self.links else None

    @property
    def is_workspace(self) -> bool:
        """True for scratch memory of a library, which nothing of the program's keeps alive."""
        return self.unowned is not None and self.unowned.workspace

    @property
    def through_graph(self) -> bool:
        """True where autograd's graph is what keeps the tensor alive, on the way at least."""
        return any(link.kind in THROUGH_GRAPH for link in self.links)


class Finding(msgspec.Struct, frozen=True, tag_field="kind", tag="finding", omit_defaults=True):
    """What could be learned only inside the job, while the tensors were there.

    ``finding`` names what it is about: ``holders`` (of a site's survivors), ``garbage`` (what the
    cyclic collector freed), ``host_growth``, ``oom``, ``time_to_full`` (``bytes`` are
    free then, and ``details`` say at which step and in what time there are none), ``profiled``
    (``count`` of a model's calls in ``details`` that torch's profiler recorded, since ``step``).
    """

    finding: str
    device: str = ""
    step: int = -1
    time_us: int = -1
    stack: int = 0
    """Stack of the site in the tables; 0 where it has none."""
    label: int = 0
    bytes: int = 0
    count: int = 0
    holders: list[Holder] = []
    details: dict[str, object] = {}


class Note(msgspec.Struct, frozen=True, tag_field="kind", tag="note", omit_defaults=True):
    """Something that was not recorded, or not exactly, and why."""

    source: str
    message: str
    hint: str = ""
    time_us: int = -1


class DeviceSummary(msgspec.Struct, frozen=True, omit_defaults=True):
    """One device over the whole run, so that many ranks can be merged from their footers."""

    device: str
    allocated_bytes: int = -1
    reserved_bytes: int = -1
    peak_allocated_bytes: int = -1
    peak_reserved_bytes: int = -1
    peak_step: int = -1
    events: int = 0
    total_bytes: int = 0
    """Of the device's memory; 0 where not known."""
    outside_bytes: int = -1
    """Most that this process was seen to hold on the device beyond what torch had reserved."""
    bytes_per_step: float | None = None
    """How fast allocated bytes at step ends rose after warm-up (Theil-Sen); null: too few steps."""
    rising: float = -1.0
    """Share of the pairs of steps between which they rose: 0.5 is noise, 1 rises every time."""
    ooms: int = 0
    """Requests that the device could not serve."""
    full_step: int = -1
    """The step that will not fit on the device any more; -1 where it does not fill up, or where
    that is not known."""
    full_left_us: int = -1
    """Time until then, from the last step's end; -1 where not known."""


class Interim(msgspec.Struct, frozen=True, tag_field="kind", tag="interim", omit_defaults=True):
    """What the footer would say by now; the last one stands in for it where a job was killed.

    Written every ten seconds at first, in a long job once in a thousandth of the time that has gone
    by, at the end of a window, and when memory runs out.
    """

    time_us: int
    steps: int = 0
    devices: list[DeviceSummary] = []
    overhead_us: int = 0
    step_us: int = -1


class Footer(msgspec.Struct, frozen=True, tag_field="kind", tag="footer", omit_defaults=True):
    """The last record of a run that ended in good order."""

    ended_us: int
    steps: int = 0
    devices: list[DeviceSummary] = []
    overhead_us: int = 0
    """Time that recording took, as measured by the tracker itself."""
    status: str = "ok"
    """``ok``, or the exception that ended the block or the process."""
    step_us: int = -1
    """Median duration of a step."""
    is_over: bool = False
    """The program had ended as well, and not only the block that was recorded."""


_OUT_OF_MEMORY = ("out of memory", "MemoryError", "ALLOC_FAILED")
"""In the exceptions of torch, Python, and CUDA's libraries: ``CUBLAS_STATUS_ALLOC_FAILED``."""


def is_out_of_memory(status: str) -> bool:
    """Whether the exception in a footer's status is one of a failed request for memory."""
    return any(text in status for text in _OUT_OF_MEMORY)


Record = (
    Header
    | TablesRecord
    | SourceFiles
    | TraceRecord
    | Owners
    | StateRecord
    | WindowRecord
    | StepsRecord
    | GuessedSteps
    | DoubleResults
    | LabelledRows
    | KeptResults
    | LargeValues
    | LastReadsRecord
    | OverlapCopies
    | OperatorGraph
    | UnmovedParameters
    | PaddedBatches
    | BatchSizes
    | GraphInputs
    | Readings
    | Finding
    | Note
    | Interim
    | Footer
)
