"""One `Run` from whatever file the user names: a run file, whole or torn, or torch's snapshot.

Lines are decoded by `runfile.reader`, snapshots by `snapshot.reader`; here the records are put
together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf

import msgspec
import numpy as np

from memprof.allocator import layout
from memprof.errors import FileFormatError
from memprof.loop_steps import with_loop_steps
from memprof.records import (
    SCHEMA_VERSION,
    BatchSizes,
    DeviceInfo,
    DoubleResults,
    Finding,
    Footer,
    GraphInputs,
    GuessedSteps,
    Header,
    Interim,
    KeptResults,
    LabelledRows,
    LargeValues,
    LastReadsRecord,
    Note,
    OperatorGraph,
    OverlapCopies,
    Owners,
    PaddedBatches,
    Readings,
    SourceFiles,
    StateRecord,
    StepColumns,
    StepsRecord,
    TablesRecord,
    TraceRecord,
    UnmovedParameters,
    WindowRecord,
)
from memprof.run import DeviceRun, ReadingSeries, Run, Steps
from memprof.runfile.checks import (
    MOST_DEVICES,
    check_events,
    check_range,
    check_state,
    check_tiles,
    integers,
    plain_settings,
)
from memprof.runfile.cross_references import (
    digests,
    in_its_place,
    renumbered,
    with_owners,
    without_repeats,
)
from memprof.runfile.guessed_steps import Numbering
from memprof.runfile.gzipped import GZIP_MAGIC, inflated
from memprof.runfile.library_workspaces import LibraryWorkspaces
from memprof.runfile.older_schema import upgraded
from memprof.runfile.parallel_owners import ParallelOwners
from memprof.runfile.reader import Damage, decode_events, decode_state, read_records
from memprof.runfile.remote_file import Location, location
from memprof.snapshot.reader import load_snapshot
from memprof.trace import (
    NOT_RECORDED,
    RECORDED_CATEGORIES,
    Action,
    BlockState,
    Column,
    Events,
    Frame,
    Label,
    LastReads,
    Phase,
    SegmentKind,
    State,
    Tables,
    Trace,
)

__all__ = ["load", "looks_like_run"]

_LOST_FRAME = ("<lost>", "", 0)
_MOST_LOST = 100_000
"""Rows of the tables that may be missing; a record brings a few hundred."""
_LAST_STEP = 1 << 50
_MOST_NOTES = 20
"""Notes on single damaged lines."""
_LATEST_US = 1 << 57
"""A few thousand years from now, and the end of what Python's calendar can name."""
_DEVICE = re.compile(r"cpu|[a-z]{2,12}:\d{1,4}")


def load(path: str | Location) -> Run:
    """The recording at ``path``: a run file, or a snapshot pickle; either may be gzipped.

    ``path`` may be a URL that fsspec knows, such as ``s3://bucket/run.json``. A file without steps
    has the turns of the program's loop for steps, where its stacks tell them.

    Raises:
        FileFormatError: it is neither, or cannot be read at all; a torn run file can.
    """
    path = location(path)
    is_run = looks_like_run(path)
    return with_loop_steps(_Assembly(str(path)).run(path) if is_run else _run_of_snapshot(path))


def looks_like_run(path: Location) -> bool:
    """Whether a file is a run file, gzipped or not, and no pickle.

    Raises:
        FileFormatError: it cannot be read, or is empty.
    """
    try:
        with path.open("rb") as file:
            start = file.read(2)
            if start == GZIP_MAGIC:
                file.seek(0)
                parts = inflated(file, path.stat().st_size, whole=False)
                start = next(filter(None, parts), b"")
    except OSError as error:
        hint = "name a run file or a snapshot"
        if isinstance(error, IsADirectoryError):
            hint = f"`memprof report {path}` reads all that is in it, and names what to look at"
        raise FileFormatError(f"cannot read {path}: {error.strerror or error}", hint) from error
    if not start:
        raise FileFormatError(f"{path} is empty", "did the job stop before it wrote anything?")
    return start[:1] in b"[{"


def _run_of_snapshot(path: Location) -> Run:
    traces = load_snapshot(path)
    devices = tuple(
        DeviceRun(t.device, DeviceInfo(t.device, settings=dict(t.settings)), windows=(t,))
        for t in traces
    )
    created = max((int(t.events.time_us.max()) for t in traces if len(t.events)), default=0)
    header = Header(schema=SCHEMA_VERSION, created_us=max(created, 0))
    return Run(source=str(path), header=header, devices=devices, is_snapshot=True)


@dataclass(slots=True)
class _WindowAssembly:
    start: State | None = None
    end: State | None = None
    chunks: list[Events] = field(default_factory=list)
    length: int = 0
    cut: bool = False
    owners: list[Owners] = field(default_factory=list)
    last_reads: list[LastReadsRecord] = field(default_factory=list)


class _Assembly:
    """Everything read so far of one run file."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._header = Header(schema=SCHEMA_VERSION, created_us=0)
        self._footer: Footer | None = None
        self._frames: list[tuple[str, str, int]] = []
        self._stacks: list[tuple[int, ...]] = [()]
        self._labels: list[tuple[int, int, str, str]] = [(NOT_RECORDED, 0, "", "")]
        self._pools: list[tuple[int, int]] = [(0, 0)]
        self._windows: dict[str, dict[int, _WindowAssembly]] = {}
        self._steps: dict[str, list[Steps]] = {}
        self._readings: dict[tuple[str, str, str], list[tuple[Column, Column]]] = {}
        self._findings: list[Finding] = []
        self._notes: list[Note] = []
        self._window_records: list[WindowRecord] = []
        self._files: list[SourceFiles] = []
        self._guesses: list[GuessedSteps] = []
        self._doubles: list[DoubleResults] = []
        self._labelled: list[LabelledRows] = []
        self._kept_results: list[KeptResults] = []
        self._large_values: list[LargeValues] = []
        self._overlap_copies: list[OverlapCopies] = []
        self._operator_graphs: list[OperatorGraph] = []
        self._unmoved = UnmovedParameters()
        self._padded: PaddedBatches | None = None
        self._batch_sizes: BatchSizes | None = None
        self._graph_inputs: GraphInputs | None = None
        self._parallel = ParallelOwners()
        self._workspaces = LibraryWorkspaces()
        self._lost_rows = 0
        self._damages = 0

    def run(self, path: Location) -> Run:
        """Read the file's records and put them together; what is damaged becomes a note."""
        handlers: dict[type, Callable[..., None]] = {
            Header: self._add_header,
            TablesRecord: self._add_tables,
            SourceFiles: self._files.append,
            TraceRecord: self._add_trace,
            Owners: self._add_owners,
            StateRecord: self._add_state,
            StepsRecord: self._add_steps,
            GuessedSteps: self._add_guess,
            DoubleResults: self._add_doubles,
            LabelledRows: self._add_labelled,
            KeptResults: self._add_kept_results,
            LargeValues: self._add_large_values,
            OverlapCopies: self._add_overlap_copies,
            OperatorGraph: self._add_operator_graph,
            LastReadsRecord: self._add_last_reads,
            UnmovedParameters: self._add_unmoved,
            PaddedBatches: self._add_padded,
            BatchSizes: self._add_batch_sizes,
            GraphInputs: self._add_graph_inputs,
            WindowRecord: self._add_window,
            Readings: self._add_readings,
            Finding: self._add_finding,
            Note: self._notes.append,
            Interim: lambda _: None,  # read where a run is not read whole
            Footer: self._add_footer,
            Damage: self._add_damage,
        }
        for record in read_records(path):
            try:
                handlers[type(record)](record)
            # A line can be valid JSON of the right types and still hold impossible figures.
            except (ArithmeticError, LookupError, TypeError, ValueError) as error:
                self._note_damage(f"a {type(record).__name__} is damaged and was left out: {error}")
        if self._footer is None:
            self._note(
                "the run file has no footer: the job was killed or is still running",
                "everything up to the last flush is here",
            )
        if self._damages > _MOST_NOTES:
            self._note(f"{self._damages - _MOST_NOTES} more records are damaged and were left out")
        return self._finish()

    # -- one method a kind ---------------------------------------------------------------------

    def _add_header(self, header: Header) -> None:
        devices = [
            msgspec.structs.replace(info, settings=plain_settings(info.settings))
            for info in header.devices
            if _is_device(info.device)
        ]
        created_us = header.created_us if 0 <= header.created_us < _LATEST_US else 0
        self._header = msgspec.structs.replace(header, devices=devices, created_us=created_us)

    def _add_footer(self, footer: Footer) -> None:
        _check_time(footer.ended_us)
        self._footer = footer

    def _add_finding(self, finding: Finding) -> None:
        _check_index("stack", finding.stack, len(self._stacks))
        _check_index("label", finding.label, len(self._labels))
        self._findings.append(upgraded(finding, self._header.schema))

    def _add_damage(self, damage: Damage) -> None:
        if damage.torn:
            self._note("the last record is torn: the job was killed while it was written")
        else:
            self._note_damage(f"line {damage.line} is damaged and was left out: {damage.reason}")

    def _add_tables(self, record: TablesRecord) -> None:
        tables = (self._frames, self._stacks, self._labels, self._pools)
        missing = [first - len(table) for first, table in zip(record.first, tables, strict=True)]  # type: ignore[arg-type]
        if min(missing) < 0 or sum(missing) > _MOST_LOST - self._lost_rows:
            raise ValueError("its rows do not follow those before")
        self._lost_rows += sum(missing)
        if max(missing) > 0:
            self._note(f"{sum(missing)} rows of the tables are lost; their events have no stack")
        self._frames += [_LOST_FRAME] * missing[0]
        self._stacks += [()] * missing[1]
        self._labels += [self._labels[0]] * missing[2]
        self._pools += [(0, 0)] * missing[3]
        frames = len(self._frames) + len(record.frames)
        if any(not 0 <= i < frames for stack in record.stacks for i in stack):
            raise ValueError("a stack names a frame that is not there")
        if any(not NOT_RECORDED <= step < _LAST_STEP for step, *_ in record.labels):
            raise ValueError("a step is impossible")
        first = len(self._frames), len(self._stacks)
        self._parallel.add(first[0], record.frames, first[1], record.stacks)
        self._workspaces.add(first[0], record.frames, first[1], record.stacks)
        self._frames += record.frames
        self._stacks += [tuple(stack) for stack in record.stacks]
        self._labels += [(s, p if 0 <= p < len(Phase) else 0, m, a) for s, p, m, a in record.labels]
        self._pools += record.pools

    def _add_trace(self, record: TraceRecord) -> None:
        window = self._window(record.device, record.window)
        if window.cut:
            return
        if record.first_event != window.length:
            window.cut = True
            raise ValueError("events before it are lost, so the rest of the window is unusable")
        events = decode_events(record)
        check_events(events)
        self._check(events.stack, events.label, events.category)
        self._check(events.origin)
        check_range("pool", events.pool, NOT_RECORDED, len(self._pools))
        check_range("action", events.action, 0, len(Action))
        window.chunks.append(events)
        window.length += len(events)

    def _add_owners(self, record: Owners) -> None:
        events, blocks = len(record.events), len(record.blocks)
        if len(record.categories) != events or len(record.labels) not in (0, events):
            raise ValueError("its columns differ in length")
        if len(record.block_categories) != blocks or len(record.block_labels) not in (0, blocks):
            raise ValueError("its columns differ in length")
        categories = integers(record.categories + record.block_categories)
        check_range("category", categories, 0, RECORDED_CATEGORIES)
        labels = integers(record.labels + record.block_labels)
        check_range("label", labels, 0, len(self._labels))
        self._window(record.device, record.window).owners.append(record)

    def _add_state(self, record: StateRecord) -> None:
        state = decode_state(record)
        check_state(state)
        check_tiles(state)
        self._check(state.blocks.stack, state.blocks.label, state.blocks.category)
        self._check(state.segments.stack)
        check_range("pool", state.segments.pool, NOT_RECORDED, len(self._pools))
        check_range("kind", state.segments.kind, 0, len(SegmentKind))
        check_range("state", state.blocks.state, 0, len(BlockState))
        window = self._window(record.device, record.window)
        if record.at == "start":
            window.start = state
        else:
            window.end = state

    def _check(
        self, stack: Column, label: Column | None = None, category: Column | None = None
    ) -> None:
        check_range("stack", stack, 0, len(self._stacks))
        if label is not None:
            check_range("label", label, 0, len(self._labels))
        if category is not None:
            check_range("category", category, 0, RECORDED_CATEGORIES)

    def _add_steps(self, record: StepsRecord) -> None:
        columns = {name: getattr(record.steps, name) for name in StepColumns.__struct_fields__}
        length = len(record.steps.first)
        steps = Steps.build(length, **{k: v for k, v in columns.items() if len(v) or not length})
        for name in Steps.names():
            check_range(name, getattr(steps, name), NOT_RECORDED, 1 << 62)
        _check_device(record.device)
        self._steps.setdefault(record.device, []).append(steps)

    def _add_guess(self, record: GuessedSteps) -> None:
        if not 0 <= record.first <= record.last < _LAST_STEP:
            raise ValueError("its steps are impossible")
        self._guesses.append(record)

    def _add_doubles(self, record: DoubleResults) -> None:
        if not len(record.stack) == len(record.size) == len(record.origin):
            raise ValueError("its columns differ in length")
        for stack in record.stack:
            _check_index("stack", stack, len(self._stacks))
        self._doubles.append(record)

    def _add_labelled(self, record: LabelledRows) -> None:
        columns = (record.size, record.calls, record.rows, record.labelled)
        if any(len(column) != len(record.stack) for column in columns):
            raise ValueError("its columns differ in length")
        for stack in record.stack:
            _check_index("stack", stack, len(self._stacks))
        for rows, labelled in zip(record.rows, record.labelled, strict=True):
            if not 0 <= labelled <= rows:
                raise ValueError("more rows count than there are")
        self._labelled.append(record)

    def _add_kept_results(self, record: KeptResults) -> None:
        figures = (record.size, record.count, record.needed, record.unread, record.reduced)
        stacks = (record.readers, record.computed)
        if any(len(column) != len(record.stack) for column in (*figures, *stacks)):
            raise ValueError("its columns differ in length")
        for stack in (*record.stack, *(one for column in stacks for row in column for one in row)):
            _check_index("stack", stack, len(self._stacks))
        if any(number < 0 for column in figures for number in column):
            raise ValueError("a number of results is impossible")
        self._kept_results.append(record)

    def _add_overlap_copies(self, record: OverlapCopies) -> None:
        columns = (record.size, record.count, record.times)
        if any(len(column) != len(record.stack) for column in columns):
            raise ValueError("its columns differ in length")
        for stack in record.stack:
            _check_index("stack", stack, len(self._stacks))
        if any(not 0 <= number < inf for column in columns for number in column):
            raise ValueError("a number of copies is impossible")
        self._overlap_copies.append(record)

    def _add_operator_graph(self, record: OperatorGraph) -> None:
        columns = (record.operator, record.size, record.given, record.count, record.reads)
        if any(len(column) != len(record.stack) for column in columns):
            raise ValueError("its columns differ in length")
        reads = [read for row in record.reads for read in row]
        for stack in (*record.stack, *(stack for stack, *_ in reads)):
            _check_index("stack", stack, len(self._stacks))
        numbers = (*record.size, *record.given, *record.count)
        if any(number < 0 for number in (*numbers, *(n for read in reads for n in read[2:]))):
            raise ValueError("a number of results is impossible")
        self._operator_graphs.append(record)

    def _add_last_reads(self, record: LastReadsRecord) -> None:
        if not len(record.made) == len(record.read) == len(record.part):
            raise ValueError("its columns differ in length")
        window = self._window(record.device, record.window)
        if any(
            not 0 <= made < read < window.length
            for made, read in zip(record.made, record.read, strict=True)
        ):
            raise ValueError("an event is outside the window")
        if any(not 0 <= part <= 1 for part in record.part):
            raise ValueError("a part of a tensor is impossible")
        window.last_reads.append(record)

    def _add_large_values(self, record: LargeValues) -> None:
        counts = (record.size, record.count, record.looks, record.settled)
        places = (record.repeats, record.same, record.used, record.ones, record.distinct)
        shares = (record.filled, record.mean_used)
        columns = (*counts, *places, *shares, record.shape, record.dim)
        if any(len(column) != len(record.stack) for column in columns):
            raise ValueError("its columns differ in length")
        for stack in record.stack:
            _check_index("stack", stack, len(self._stacks))
        if any(
            not 0 <= number < inf for column in (*counts, *places, *shares) for number in column
        ):
            raise ValueError("a number of values is impossible")
        for shape, dim in zip(record.shape, record.dim, strict=True):
            if any(extent < 0 for extent in shape) or not -1 <= dim < len(shape):
                raise ValueError("a dimension is impossible")
        self._large_values.append(record)

    def _add_unmoved(self, record: UnmovedParameters) -> None:
        self._unmoved = record

    def _add_padded(self, record: PaddedBatches) -> None:
        self._padded = record

    def _add_batch_sizes(self, record: BatchSizes) -> None:
        self._batch_sizes = record

    def _add_graph_inputs(self, record: GraphInputs) -> None:
        columns = (record.files, record.lines, record.calls, record.given)
        if any(len(column) != len(record.modules) for column in columns):
            raise ValueError("its columns differ in length")
        if any(
            not 0 <= given <= calls for calls, given in zip(record.calls, record.given, strict=True)
        ):
            raise ValueError("more calls were given something than there were")
        self._graph_inputs = record

    def _add_window(self, record: WindowRecord) -> None:
        steps = (record.first_step, record.last_step)
        times = (record.start_us, record.end_us)
        if all(-1 <= s <= _LAST_STEP for s in steps) and all(0 <= t < _LATEST_US for t in times):
            self._window_records.append(record)

    def _add_readings(self, record: Readings) -> None:
        times = integers(record.time_us)
        check_range("time", times, 0, _LATEST_US)
        if any(len(values) != len(times) for values in record.values.values()):
            raise ValueError("its columns differ in length")
        for name, samples in record.values.items():
            values = np.array([np.nan if v is None else v for v in samples], dtype=np.float64)
            key = record.source, record.device, name
            self._readings.setdefault(key, []).append((times, values))

    # -- putting it together -------------------------------------------------------------------

    def _note(self, message: str, hint: str = "") -> None:
        self._notes.append(Note(source="file", message=message, hint=hint))

    def _note_damage(self, message: str) -> None:
        self._damages += 1
        if self._damages <= _MOST_NOTES:
            self._note(message[:300])

    def _window(self, device: str, number: int) -> _WindowAssembly:
        _check_device(device)
        return self._windows.setdefault(device, {}).setdefault(number, _WindowAssembly())

    def _finish(self) -> Run:
        numbering = Numbering(self._guesses)
        self._labels = [(numbering.of(s), p, m, a) for s, p, m, a in self._labels]
        tables = Tables(
            frames=tuple(Frame(*frame) for frame in self._frames),
            stacks=tuple(self._stacks),
            labels=tuple(Label(s, Phase(p), m, a) for s, p, m, a in self._labels),
            pools=tuple(self._pools),
        )
        infos = {info.device: info for info in self._header.devices}
        out = [f.device for f in self._findings if f.finding == "oom" and _is_device(f.device)]
        names = dict.fromkeys([*infos, *self._windows, *self._steps, *out])
        if len(names) > MOST_DEVICES:
            raise FileFormatError(
                f"{self._source} names {len(names):,} devices, more than any machine has",
                "record each machine into a file of its own",
            )
        traces = {
            name: self._traces(name, infos.get(name, DeviceInfo(name)), tables) for name in names
        }
        return Run(
            source=self._source,
            header=self._header,
            devices=tuple(
                self._device(infos.get(name, DeviceInfo(name)), windows, numbering)
                for name, windows in traces.items()
            ),
            readings=self._reading_series(),
            findings=tuple(
                in_its_place(numbering.finding(finding), list(traces.get(finding.device, ())))
                for finding in self._findings
            ),
            notes=tuple(self._notes),
            footer=numbering.footer(self._footer),
            windows=tuple(numbering.window(record) for record in self._window_records),
            guessed=numbering.remaining,
            doubles=tuple(self._doubles),
            labelled=tuple(self._labelled),
            kept_results=tuple(self._kept_results),
            large_values=tuple(self._large_values),
            overlap_copies=tuple(self._overlap_copies),
            operator_graphs=tuple(self._operator_graphs),
            unmoved=frozenset(self._unmoved.modules),
            padded=self._padded,
            batch_sizes=self._batch_sizes,
            graph_inputs=self._graph_inputs,
            digests=digests(self._files),
        )

    def _traces(self, name: str, info: DeviceInfo, tables: Tables) -> dict[int, Trace]:
        """The windows that hold something, by the number that the recorder gave them."""
        windows = sorted(self._windows.get(name, {}).items())
        traces = {n: self._trace(name, info, tables, window) for n, window in windows}
        return {number: trace for number, trace in traces.items() if trace is not None}

    def _device(
        self, info: DeviceInfo, traces: dict[int, Trace], numbering: Numbering
    ) -> DeviceRun:
        steps = Steps.concatenate(self._steps.get(info.device, []))
        steps = numbering.steps(without_repeats(steps))
        return DeviceRun(info.device, info, tuple(traces.values()), renumbered(steps, list(traces)))

    def _trace(
        self, name: str, info: DeviceInfo, tables: Tables, window: _WindowAssembly
    ) -> Trace | None:
        if window.start is None and window.end is None and not window.length:
            return None
        events = Events.concatenate(window.chunks)
        start, end = window.start, None if window.cut else window.end
        if start is None and end is None:
            start = State()
            self._note(f"{name}: a window's state is lost; its bytes are counted from zero")
        events, start = with_owners(events, start, window.owners)
        trace = Trace(
            device=name,
            events=self._parallel.events(events),
            tables=tables,
            start=self._parallel.state(start),
            end=self._parallel.state(end),
            settings=info.settings,
            torch_version=self._header.torch_version,
            last_reads=_last_reads(window.last_reads),
        )
        return layout(trace) if name == "cpu" else self._workspaces.trace(trace)

    def _reading_series(self) -> tuple[ReadingSeries, ...]:
        return tuple(
            ReadingSeries(*key, *(np.concatenate(columns) for columns in zip(*parts, strict=True)))
            for key, parts in self._readings.items()
        )


def _last_reads(records: Sequence[LastReadsRecord]) -> LastReads:
    return LastReads(
        np.array([event for one in records for event in one.made], dtype=np.int64),
        np.array([event for one in records for event in one.read], dtype=np.int64),
        np.array([part for one in records for part in one.part], dtype=np.float64),
    )


def _check_index(name: str, index: int, length: int) -> None:
    if not 0 <= index < length:
        raise ValueError(f"a {name} is outside 0..{length - 1}")


def _check_time(time_us: int) -> None:
    if not NOT_RECORDED <= time_us < _LATEST_US:
        raise ValueError("a time is impossible")


def _is_device(name: str) -> bool:
    return _DEVICE.fullmatch(name) is not None


def _check_device(name: str) -> None:
    if not _is_device(name):
        raise ValueError(f"no device is called {name[:50]!r}")
