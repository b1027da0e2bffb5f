"""Traces from the snapshots that torch's allocator recorder writes, in every schema since 2.0.

The pickle is read by `unpickler`; nothing here imports torch, so a GPU's file opens anywhere.
Schema facts: the docstring of ``torch.cuda.memory._snapshot``, PyTorch's ``memory_snapshot.cpp``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, repeat
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np

from memprof.cpython.object_addresses import addresses
from memprof.errors import FileFormatError, MemprofError
from memprof.runfile.checks import (
    MOST_DEVICES,
    check_events,
    check_state,
    integers,
    plain_metadata,
    plain_settings,
    plain_text,
)
from memprof.runfile.remote_file import Location, location
from memprof.snapshot.unpickler import collector_paused, load_plain_pickle
from memprof.trace import (
    EMPTY,
    NOT_RECORDED,
    Action,
    Annotation,
    Blocks,
    BlockState,
    Column,
    Events,
    Frame,
    Label,
    SegmentKind,
    Segments,
    State,
    Tables,
    Trace,
)

__all__ = ["load_snapshot", "traces_from_snapshot"]

Json: TypeAlias = "Mapping[str, Any]"
LabelOf: TypeAlias = Callable[[str], Label]

_ACTIONS = {action.name.lower(): int(action) for action in Action}
_ACTION = itemgetter("action")
_STATES = {
    "inactive": int(BlockState.INACTIVE),  # plain numbers: of enums numpy makes columns slowly
    "active_allocated": int(BlockState.ACTIVE_ALLOCATED),
    "active_pending_free": int(BlockState.ACTIVE_PENDING_FREE),
    "active_awaiting_free": int(BlockState.ACTIVE_PENDING_FREE),  # torch's docstring says this
}
_KINDS = {"small": SegmentKind.SMALL, "large": SegmentKind.LARGE}
_LAST_LINE = (1 << 31) - 1


def load_snapshot(path: str | Location) -> tuple[Trace, ...]:
    """One trace per device that the file says anything about; none for an empty snapshot.

    Raises:
        UnsafeFileError: reading the file would execute code.
        FileFormatError: it is torn, or no allocator snapshot.
    """
    path = location(path)
    data = load_plain_pickle(path)
    try:
        with collector_paused():
            return traces_from_snapshot(data)
    except FileFormatError as error:
        raise FileFormatError(f"{path}: {error.message}", error.hint) from error


def traces_from_snapshot(
    data: Any, label_of: LabelOf | None = None, *, is_live: bool = False
) -> tuple[Trace, ...]:
    """The same from the object that ``torch.cuda.memory._snapshot()`` returns.

    ``label_of`` turns an event's ``user_metadata`` into a label; by default it becomes the
    label's annotation. ``is_live`` says that torch made ``data`` in this process: then lists in it
    are compared, for which a file could need forever; and annotations of ranges are left out.

    Raises:
        FileFormatError: ``data`` has not the shape of a snapshot.
    """
    try:
        return _traces(data, label_of or _as_annotation, is_live=is_live)
    except MemprofError:
        raise
    # One boundary for every way in which plain data can have the wrong shape.
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise _no_snapshot(f"{type(error).__name__}: {str(error)[:200]}") from error


def _no_snapshot(why: str) -> FileFormatError:
    hint = "memprof reads what torch.cuda.memory._dump_snapshot writes"
    return FileFormatError(f"not an allocator snapshot: {why}", hint)


def _as_annotation(metadata: str) -> Label:
    return Label(annotation=metadata)


def _traces(data: Any, label_of: LabelOf, *, is_live: bool) -> tuple[Trace, ...]:
    if isinstance(data, list):  # the legacy form: the segments alone
        data = {"segments": data}
    if not isinstance(data, dict) or not isinstance(data.get("segments"), list):
        raise _no_snapshot(f"a {type(data).__name__} without a list of segments")
    if not all(isinstance(segment, dict) for segment in data["segments"]):
        raise _no_snapshot("a list of other things than segments")
    segments = _by_device(data["segments"])
    events = dict(enumerate(data.get("device_traces") or []))
    _refuse_shared("devices share one list of events", filter(None, events.values()))
    if len(segments) + len(events) > MOST_DEVICES:
        raise _no_snapshot("more devices than any machine has")
    interner = _LiveInterner(label_of) if is_live else _Interner(label_of)
    parts = []
    for device in sorted({*segments, *(d for d, e in events.items() if e)}):
        columns, in_order = _events(events.get(device) or [], interner)
        parts.append((device, columns, in_order, _state(segments.get(device, []), interner)))
    settings = plain_settings(data.get("allocator_settings"))
    annotations = {} if is_live else _annotations(data.get("external_annotations") or [])
    tables = interner.tables()
    version = _oldest_version(data)
    return tuple(
        Trace(
            device=f"cuda:{device}",
            events=columns,
            tables=tables,
            end=state,
            settings=settings,
            annotations=_of_device(annotations, device),
            torch_version=version,
            reordered=not in_order,
        )
        for device, columns, in_order, state in parts
    )


def _by_device(segments: Iterable[Json]) -> dict[int, list[Json]]:
    devices: dict[int, list[Json]] = {}
    for segment in segments:
        devices.setdefault(int(segment.get("device", 0)), []).append(segment)
    _refuse_shared("segments share one list of blocks", (s["blocks"] for s in segments))
    return devices


def _refuse_shared(how: str, lists: Iterable[object]) -> None:
    """A pickle can name one list a million times, which no file of its size could spell out."""
    ids = list(map(id, lists))
    if len(set(ids)) < len(ids):
        raise _no_snapshot(how)


# -- events ------------------------------------------------------------------------------------


def _events(entries: Sequence[Json], interner: _Interner) -> tuple[Events, bool]:
    """The columns, and whether the entries were already in the order of their times."""
    columns = Events.build(
        len(entries),
        action=np.fromiter(
            map(_ACTIONS.get, map(_ACTION, entries), repeat(int(Action.OTHER))),
            np.uint8,
            len(entries),
        ),
        address=_addresses(entries),
        size=_integers(entries, "size", 0),
        stream=_integers(entries, "stream", 0),
        time_us=_integers(entries, "time_us", NOT_RECORDED),
        stack=interner.stacks(_values(entries, "frames", None)),
        label=interner.labels(entries),
        pool=interner.events_pools(entries),
    )
    check_events(columns)
    times = columns.time_us
    # Shrinking or growing max_entries leaves torch's ring rotated: times tell the true order.
    if len(times) > 1 and times.min() >= 0 and bool((times[1:] < times[:-1]).any()):
        return columns.take(np.argsort(times, kind="stable")), False
    return columns, True


def _values(rows: Sequence[Json], key: str, missing: object) -> list[Any]:
    """What each row has under a key: mostly all have it, or none."""
    try:
        return list(map(itemgetter(key), rows))
    except KeyError:
        return [row.get(key, missing) for row in rows]


def _integers(entries: Sequence[Json], key: str, missing: int) -> Column:
    return integers(_values(entries, key, missing))


def _addresses(entries: Sequence[Json]) -> Column:
    """``addr``, which an ``oom`` event has not: it carries ``device_free``, where it is known."""
    try:
        return integers(list(map(itemgetter("addr"), entries)))
    except KeyError:
        pass  # some have none
    return integers(
        [
            e["addr"]
            if "addr" in e
            else e.get("device_free", NOT_RECORDED if e.get("action") == "oom" else 0)
            for e in entries
        ]
    )


# -- segments and blocks -----------------------------------------------------------------------


def _state(segments: Sequence[Json], interner: _Interner) -> State:
    segments = sorted(segments, key=_address)
    blocks = list(chain.from_iterable(s["blocks"] for s in segments))
    counts = [len(s["blocks"]) for s in segments]
    states = np.asarray([_STATES[b["state"]] for b in blocks], dtype=np.uint8)
    sizes = integers([b["size"] for b in blocks])
    allocated = int(sizes[states == BlockState.ACTIVE_ALLOCATED].sum())
    state = State(
        unlisted=_unlisted_bytes(segments, allocated),
        segments=Segments.build(
            len(segments),
            address=_integers(segments, "address", 0),
            size=integers([s["total_size"] for s in segments]),
            stream=_integers(segments, "stream", 0),
            pool=[interner.pool(s.get("segment_pool_id", (0, 0))) for s in segments],
            kind=[_KINDS.get(s.get("segment_type", ""), SegmentKind.UNKNOWN) for s in segments],
            expandable=[bool(s.get("is_expandable", False)) for s in segments],
            stack=interner.stacks([s.get("frames") for s in segments]),
        ),
        blocks=Blocks.build(
            len(blocks),
            address=_block_addresses(segments, counts, sizes),
            size=sizes,
            requested=_all_requested(blocks, states),
            state=states,
            segment=np.repeat(np.arange(len(segments)), counts),
            stack=interner.stacks(_all_frames(blocks)),
        ),
    )
    check_state(state)
    return state


def _address(segment: Json) -> int:
    return int(segment.get("address", 0))


def _unlisted_bytes(segments: Sequence[Json], allocated: int) -> int:
    claimed = [s["allocated_size"] for s in segments if "allocated_size" in s]
    return int(sum(claimed)) - allocated if len(claimed) == len(segments) else 0


def _block_addresses(segments: Sequence[Json], counts: list[int], size: Column) -> Column:
    """Blocks tile their segment from its start (torch up to 2.0 does not write their address)."""
    before = np.cumsum(size) - size
    first = np.concatenate(([0], np.cumsum(counts)[:-1])).astype(np.int64)[: len(counts)]
    start = _integers(segments, "address", 0)
    has_blocks = np.asarray(counts, dtype=np.int64) > 0
    offset = np.zeros(len(counts), dtype=np.int64)
    offset[has_blocks] = start[has_blocks] - before[first[has_blocks]]
    return before + np.repeat(offset, counts)


def _all_requested(blocks: Sequence[Json], states: Column) -> Column:
    """Bytes asked for of each block, 0 of those that nobody uses."""
    try:
        requested = integers([b["requested_size"] for b in blocks])
    except (KeyError, TypeError):
        in_use = zip(blocks, states.tolist(), strict=True)
        return integers([_requested(b) if state else 0 for b, state in in_use])
    return np.where(states == BlockState.INACTIVE, 0, requested)


def _all_frames(blocks: Sequence[Json]) -> list[Any]:
    frames = _values(blocks, "frames", None)
    if None in frames and any("history" in b for b in blocks):
        return [_block_frames(b) for b in blocks]
    return frames


def _requested(block: Json) -> int:
    """Bytes asked for; torch 2.0 keeps them as the newest entry of the block's history."""
    requested = block.get("requested_size")
    if requested is None:
        history = block.get("history")
        requested = history[0]["real_size"] if history else block["size"]
    return int(requested)


def _block_frames(block: Json) -> Any:
    if "frames" in block:
        return block["frames"]
    history = block.get("history")  # torch 2.0, newest first
    in_use = block["state"] != "inactive"
    return history[0].get("frames") if history and in_use else None


# -- interning ---------------------------------------------------------------------------------


class _Interner:
    """Frames, stacks, labels and pools of one snapshot, each stored once.

    Stacks are looked up by the identity of their frame dicts first: torch writes one dict a frame
    but a new list for every allocation, and comparing ids costs a tenth of comparing contents.
    """

    def __init__(self, label_of: LabelOf) -> None:
        self._label_of = label_of
        self._frames: dict[Frame, int] = {}
        self._frame_of_id: dict[int, int] = {}
        self._stacks: dict[tuple[int, ...], int] = {(): EMPTY}
        self._stack_of_ids: dict[tuple[int, ...], int] = {(): EMPTY}
        self._stack_of_list: dict[int, int] = {}
        self._labels: dict[Label, int] = {Label(): EMPTY}
        self._label_of_text: dict[str, int] = {"": EMPTY}
        self._pools: dict[tuple[int, int], int] = {(0, 0): EMPTY}

    def stack(self, frames: list[Json] | None) -> int:
        if not frames:
            return EMPTY
        row = self._stack_of_list.get(id(frames))
        if row is None:
            ids = tuple(map(id, frames))
            row = self._stack_of_ids.get(ids)
            if row is None:
                row = self._stack_of_ids[ids] = self._new_stack(frames)
            self._stack_of_list[id(frames)] = row
        return row

    def _new_stack(self, frames: list[Json]) -> int:
        key = tuple(self._frame(f) for f in frames)
        return self._stacks.setdefault(key, len(self._stacks))

    def _frame(self, frame: Json) -> int:
        row = self._frame_of_id.get(id(frame))
        if row is None:
            key = Frame(
                plain_text(frame.get("name")),
                plain_text(frame.get("filename")),
                min(max(int(frame.get("line") or 0), 0), _LAST_LINE),
            )
            row = self._frames.setdefault(key, len(self._frames))
            self._frame_of_id[id(frame)] = row
        return row

    def stacks(self, lists: list[Any]) -> Column:
        """The stacks of many allocations."""
        return np.fromiter(map(self.stack, lists), np.int32, len(lists))

    def labels(self, events: Sequence[Json]) -> Column:
        """The labels of all events; most have none, which a look at all their texts tells."""
        if not self._are_labelled(events):
            return np.zeros(len(events), np.int32)
        return np.fromiter(map(self.label, events), np.int32, len(events))

    def _are_labelled(self, events: Sequence[Json]) -> bool:
        # Counting neither hashes nor walks through what is no text, and could be endlessly nested.
        return any(
            _values(events, key, nothing).count(nothing) < len(events)
            for key, nothing in (("user_metadata", ""), ("compile_context", "N/A"))
        )

    def label(self, event: Json) -> int:
        """The row of what the program, or else the compiler, called the event; 0 for nothing."""
        metadata = event.get("user_metadata")
        text = metadata if isinstance(metadata, str) else plain_metadata(metadata)
        if not text:
            context = event.get("compile_context", "N/A")
            if context == "N/A":
                return EMPTY
            text = plain_text(context)
        row = self._label_of_text.get(text)
        if row is None:
            label = self._label_of(text)
            row = self._labels.setdefault(label, len(self._labels))
            self._label_of_text[text] = row
        return row

    def events_pools(self, events: Sequence[Json]) -> Column:
        """The pools of all events, which before 2.12 name none."""
        pools = _values(events, "pool_id", None)
        if pools.count(None) == len(pools):
            return np.full(len(pools), NOT_RECORDED, np.int32)
        return np.fromiter(map(self.pool, pools), np.int32, len(pools))

    def pool(self, pool: Sequence[int] | None) -> int:
        if pool is None:
            return NOT_RECORDED
        first, second = pool
        return self._pools.setdefault((int(first), int(second)), len(self._pools))

    def tables(self) -> Tables:
        return Tables(
            frames=tuple(self._frames),
            stacks=tuple(self._stacks),
            labels=tuple(self._labels),
            pools=tuple(self._pools),
        )


class _LiveInterner(_Interner):
    """Of a snapshot that torch has just made: stacks come in the order of the program's loops.

    So the one that came after this one the last time is tried first. Comparing two lists of the
    same dicts takes a twentieth of comparing their ids.
    """

    def __init__(self, label_of: LabelOf) -> None:
        super().__init__(label_of)
        self._lists: dict[int, list[Json]] = {}
        """Of each row a list that has its frames."""
        self._next: dict[int, int] = {}
        self._last = EMPTY

    def stacks(self, lists: list[Any]) -> Column:
        """An allocation's entries and its block have the same list, so each is looked at once."""
        if not any(lists):  # blocks from between windows, which may be very many
            return np.zeros(len(lists), np.int32)
        _, first, which = np.unique(addresses(lists), return_index=True, return_inverse=True)
        order = np.argsort(first)
        frame_lists, following, last = self._lists, self._next, self._last
        rows = []
        for frames in map(lists.__getitem__, first[order].tolist()):
            row = EMPTY
            if frames:
                row = following.get(last, EMPTY)
                if frame_lists.get(row) != frames:
                    row = following[last] = self.stack(frames)
                    frame_lists.setdefault(row, frames)
                last = row
            rows.append(row)
        self._last = last
        by_list = np.empty(len(order), np.int32)
        by_list[order] = rows
        stacks: Column = by_list[which.reshape(-1)]
        return stacks


# -- the rest of the file ----------------------------------------------------------------------


def _annotations(entries: Iterable[Json]) -> dict[int, list[Annotation]]:
    """START and END entries of each device paired by name, innermost first; -1 is every device."""
    open_starts: dict[tuple[int, str], list[int]] = {}
    by_device: dict[int, list[Annotation]] = {}
    for entry in entries:
        device, name = int(entry.get("device", -1)), plain_text(entry.get("name"))
        time_us = int(entry.get("time_us", NOT_RECORDED))
        if not NOT_RECORDED <= time_us < 1 << 62:
            continue
        if entry.get("stage") == "START":
            open_starts.setdefault((device, name), []).append(time_us)
        else:
            starts = open_starts.get((device, name))
            start_us = starts.pop() if starts else NOT_RECORDED
            by_device.setdefault(device, []).append(Annotation(name, start_us, time_us))
    for (device, name), starts in open_starts.items():
        by_device.setdefault(device, []).extend(Annotation(name, start) for start in starts)
    return by_device


def _of_device(by_device: dict[int, list[Annotation]], device: int) -> tuple[Annotation, ...]:
    """By start time."""
    both = [*by_device.get(device, ()), *by_device.get(-1, ())]
    return tuple(sorted(both, key=lambda annotation: annotation.start_us))


def _oldest_version(data: Json) -> str:
    """The oldest torch that writes the keys found, as ``"2.10+"``: the snapshot names none."""
    entry: Json = next((t[0] for t in data.get("device_traces") or [] if t), {})
    settings = data.get("allocator_settings") or {}
    first_in = (
        ("2.14", "host_segments" in data),
        ("2.13", "max_cached_size" in settings),
        ("2.12", "pool_id" in entry),
        ("2.10", "user_metadata" in entry),
        ("2.9", "graph_capture_record_stream_reuse" in settings),
        ("2.8", "compile_context" in entry),
        ("2.5", "external_annotations" in data),
        ("2.2", "allocator_settings" in data),
        ("2.1", any("is_expandable" in s for s in data["segments"][:1])),
    )
    return next((f"{version}+" for version, present in first_in if present), "")
