"""few-values-read: a large result is computed whole, and operators pick few of its values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from memprof.rules.case import Case
from memprof.rules.results_read import handed_outside
from memprof.rules.rule import EVERY_OTHER, Advice, Match, WasteRule
from memprof.rules.same_memory import ANY_GROWTH
from memprof.source_code.frame_kind import FrameKind, frame_kind, is_of_library
from memprof.source_code.program import calls_in, place_of
from memprof.source_code.verbs import FACTORIES
from memprof.trace import Action, Frame, Phase
from memprof.units import format_bytes, format_percent
from memprof.views.operator_graph import made_by_operators
from memprof.views.peak_without import Cuts
from memprof.views.window import Bools, Ints, Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.12
"""Of the peak, that goes with the values that nothing reads."""
_MOST_READ = 1 / 3
"""Of the values: to pick two thirds of them is no mistake."""
_SORTING = frozenset(("argsort", "sort"))
_MODULE_CALL = "_call_impl"
_CONTAINER = re.compile(r"/(?:torch/nn/modules|torchvision/transforms(?:/v2)?)/_?container\.py$")
"""Files of `torch.nn.Sequential` and of torchvision's `Compose`."""
_LONGEST = 1
"""Steps after the one that made it: of what stays longer other steps read other values."""


Statement: TypeAlias = tuple[Frame, ...]
"""The frames of a stack, innermost first, up to a function's."""


@dataclass(frozen=True, slots=True, eq=False)
class FewValues(Match):
    """A result of which little is read."""

    part: float = 0.0
    """Of its values, that operators read."""
    reader: Frame | None = None
    """The program's line that reads them."""
    is_sorted: bool = False
    """An operator that sorts made it."""


class FewValuesRead(WasteRule[FewValues]):
    """All pairs of products are multiplied, and the scores of some pairs are looked up."""

    name = "few-values-read"
    summary = "a large result is computed whole, and few of its values are read"
    fixes = ("narrow_first", "topk")
    yields_to = (*EVERY_OTHER, "partly-read", "ranked-by-sorting")
    is_general = True
    yields_beyond = (ANY_GROWTH, "kept-distributions", "stored-views", "unread-entries")

    def matches(self, window: Window) -> Iterator[FewValues]:
        """Each stack whose results are picked from, with what is as large for their sake."""
        picked = (window.part_read > 0) & (window.part_read <= _MOST_READ) & ~window.has_owner
        picked &= window.freed_in - window.made_in <= _LONGEST
        picked &= window.phase != Phase.BACKWARD
        by_statement: dict[Statement, list[int]] = {}
        for row in np.flatnonzero(picked).tolist():
            by_statement.setdefault(_statement(window, row), []).append(row)
        for statement, rows in by_statement.items():
            match = _match(window, statement, np.array(rows, dtype=np.int64))
            if match is not None:
                yield match

    def title(self, match: FewValues) -> str:
        """Say how much is read."""
        part = format_percent(match.part, 1)
        return f"are there for a result of whose values {part} are read"

    def advice(self, match: FewValues, case: Case) -> Iterator[Advice]:  # noqa: ARG002
        """Compute those that are read."""
        where = f" in line {match.reader.line}" if match.reader is not None else ""
        part = format_percent(match.part, 1)
        if match.is_sorted:
            yield Advice(
                "topk",
                f"Of what is sorted {part} are read{where}: `topk` finds the first so many of each "
                f"row, and no others. Of {format_bytes(match.nbytes)} as much is left.",
            )
            return
        yield Advice(
            "narrow_first",
            f"Of the result's values {part} are read{where}: pick first from what it is computed "
            f"of, and compute these alone. Of {format_bytes(match.nbytes)} as much is left.",
        )


def _statement(window: Window, row: int) -> Statement:
    """Where a result is made, as far out as to the function that reads it.

    Its own function, where a backward pass reads it last.
    """
    made_by, read_by = window.stack(row), _reading_stack(window, row)
    if not read_by:
        own = window.user_frames(made_by)[:1]
        return made_by[: made_by.index(own[0]) + 1] if own else made_by
    pairs = zip(reversed(made_by), reversed(read_by), strict=False)
    common = next((at for at, (one, other) in enumerate(pairs) if one != other), None)
    if common is None:
        common = min(len(made_by), len(read_by)) - 1
    return made_by[: max(1, len(made_by) - common)]


def _match(window: Window, statement: Statement, results: Ints) -> FewValues | None:
    """The results of one statement, and what is at the peak because they are computed."""
    lives = window.lives
    row = int(results[lives.size[results].argmax()])
    if _is_data(window, row) or not _is_habit(window, results):
        return None
    if _is_of_one_layer(window, results):
        return None
    # Where a backward pass reads one last another one may tell, of an evaluation.
    by_each = (_reading_stack(window, one) for one in (row, *results.tolist()))
    reading = next((stack for stack in by_each if stack), ())
    if is_of_library(reading):
        return None  # what picks is no line of the program's
    reader = next(iter(window.user_frames(reading)), None)
    related = _related(window, statement, results)
    there = np.flatnonzero(related & window.at_peak)
    nbytes = int(lives.size[there].sum())
    if window.share(nbytes) < _LEAST_SHARE:
        return None
    part = float(window.part_read[results].max())
    every = np.flatnonzero(related)
    unread = (lives.size[every] * (1 - part)).astype(np.int64)
    saving = window.replayed(Cuts(every, lives.alloc[every], lives.free[every], unread))
    if window.share(saving.bytes) < _LEAST_SHARE:
        return None
    # Where nobody knows who reads it, its own function tells whether it goes elsewhere.
    way = _way_out(window, row)[: 1 if reader is None else None]
    return FewValues(
        row=row,
        rows=every,
        nbytes=nbytes,
        saving=saving,
        tentative=window.may_be_read_unseen or handed_outside(way, reader),
        part=part,
        reader=reader,
        is_sorted=_is_sorted(window, row),
    )


def _is_sorted(window: Window, row: int) -> bool:
    """Whether an operator that sorts made a result, and none that does something else."""
    stack = int(window.lives.stack[row])
    made = made_by_operators(window.operator_graphs)
    operators = {one.operator for (of, _), one in made.items() if of == stack}
    return bool(operators) and operators <= _SORTING


def _way_out(window: Window, row: int) -> Sequence[Frame]:
    """The program's own frames that a result may have gone through; of a container's part its own.

    The next part is handed it by the container.
    """
    frames, way = window.stack(row), _way_of_parts(window, row)
    return window.user_frames(frames[: len(frames) - len(way)])


def _is_habit(window: Window, results: Ints) -> bool:
    """Whether as little is read in every step that their stacks make one, as far as is known.

    What they make on the way to it is read whole. Nothing is known of the steps before the first
    result: operators may be observed from the first large tensor on.
    """
    lives = window.lives
    alike = np.isin(lives.stack, lives.stack[results]) & (lives.free < window.events)
    alike &= window.made_in >= window.made_in[results].min()
    alike &= lives.size >= lives.size[results].min()
    return set(window.made_in[alike].tolist()) <= set(window.made_in[results].tolist())


def _is_of_one_layer(window: Window, results: Ints) -> bool:
    """Whether other modules made as much by the same line in the same steps, read whole.

    Of the last of several layers that are alike the program may need few rows: it is the layers
    that compute them all.
    """
    lives = window.lives
    alike = np.isin(lives.stack, lives.stack[results]) & (window.part_read >= 1)
    alike &= ~np.isin(window.module, window.module[results]) & (window.module > 0)
    alike &= lives.size >= lives.size[results].min()
    return set(window.made_in[results].tolist()) <= set(window.made_in[alike].tolist())


def _is_data(window: Window, row: int) -> bool:
    """Whether the statement that made a tensor makes data, or room for some."""
    frames = window.user_frames(window.stack(row))
    place = place_of(frames[0]) if frames else None
    return place is None or any(True for _ in calls_in(place.statement, *FACTORIES))


def _related(window: Window, statement: Statement, results: Ints) -> Bools:
    """The results, what their statement makes on the way, and gradients as large of either.

    What is picked is smaller, and stays. What lies deeper is made on the way, and so is what the
    same call of a library's function makes; what has the very stack of a result is, where nothing
    else was allocated in between: a layer may be called again.
    """
    lives = window.lives
    is_own = (lives.alloc >= 0) & ~window.has_owner
    is_large = is_own & (lives.requested >= lives.requested[results].min())
    stacks = np.unique(lives.stack).tolist()
    deeper = [stack for stack in stacks if _depth(window, stack, statement) > 0]
    called = [stack for stack in stacks if _is_of_call(window.trace.stack(stack), statement)]
    events = window.trace.events
    allocations = np.flatnonzero(events.action == Action.ALLOC)
    run = np.append(0, np.cumsum(np.diff(events.stack[allocations]) != 0))
    run_of = run[np.searchsorted(allocations, np.maximum(lives.alloc, 0))]
    related: Bools = is_large & (np.isin(lives.stack, deeper) | np.isin(run_of, run_of[results]))
    related |= is_own & np.isin(lives.stack, called)
    related &= window.phase != Phase.BACKWARD
    origins = events.origin[np.maximum(lives.alloc, 0)]
    reading = {_reading_stack(window, row) for row in results.tolist()} - {()}
    of_either = [
        one
        for one in np.unique(origins[is_large]).tolist()
        if _depth(window, one, statement) >= 0 or window.trace.stack(one) in reading
    ]
    related |= is_large & np.isin(origins, of_either)
    related |= is_large & _of_earlier_parts(window, results)
    related[results] = True
    return related


def _of_earlier_parts(window: Window, results: Ints) -> Bools:
    """What earlier parts of a container made for results, of which a later part of it picks.

    ``Compose([ToDtype(torch.float32), Normalize(…), ChooseFrames(16)])`` calls its parts one after
    the other at one line, each with what the last returned; so does a `Sequential`.
    """
    lives = window.lives
    chained = np.zeros(len(lives), dtype=bool)
    numbers = np.unique(lives.stack).tolist()
    by_way: dict[Statement, list[int]] = {}
    for row in results.tolist():
        by_way.setdefault(_way_of_parts(window, row), []).append(row)
    by_way.pop((), None)
    for way, own in by_way.items():
        within = [one for one in numbers if window.trace.stack(one)[-len(way) :] == way]
        by_parts = np.isin(lives.stack, within) & (lives.alloc >= 0)
        before = -1
        for row in sorted(own, key=lambda one: int(lives.alloc[one])):
            here = (lives.alloc > before) & (lives.alloc < lives.alloc[row])
            chained |= by_parts & here & (window.made_in == window.made_in[row])
            before = int(window.unread_from[row])
    return chained


def _way_of_parts(window: Window, row: int) -> Statement:
    """The frames, from a container's line that calls its parts outwards, if two parts are meant.

    Those that made a result and that read it last; else none.
    """
    made_by, read_by = window.stack(row), _reading_stack(window, row)
    pairs = zip(reversed(made_by), reversed(read_by), strict=False)
    common = next((at for at, (one, other) in enumerate(pairs) if one != other), 0)
    shared = made_by[len(made_by) - common :]
    calls = next((at for at, one in enumerate(shared) if _MODULE_CALL not in one.name), 0)
    # A module with hooks is called from another line of torch's than one without.
    inner = (stack[-common - 1] for stack in (made_by, read_by) if common < len(stack))
    are_parts = calls > 0 or all(_MODULE_CALL in one.name for one in inner)
    is_container = calls < len(shared) and bool(_CONTAINER.search(shared[calls].filename))
    return shared[calls:] if is_container and are_parts else ()


def _depth(window: Window, stack: int, statement: Statement) -> int:
    """How many frames a stack has within a statement; -1 where it does not come of it."""
    frames, length = window.trace.stack(stack), len(statement)
    for depth in range(len(frames) - length + 1):
        if frames[depth : depth + length] == statement:
            return depth
    return -1


def _is_of_call(frames: Sequence[Frame], statement: Statement) -> bool:
    """Whether a stack is within the call of a library's function that made a result."""
    own, outer = statement[0], statement[1:]
    if not outer or frame_kind(own.filename) is FrameKind.USER:
        return False
    for depth in range(1, len(frames) - len(outer) + 1):
        if frames[depth : depth + len(outer)] == outer:
            caller = frames[depth - 1]
            is_same = (caller.filename, caller.name) == (own.filename, own.name)
            return is_same and caller.line != own.line
    return False


def _reading_stack(window: Window, row: int) -> tuple[Frame, ...]:
    """The stack from which an operator was called that read a tensor last.

    None of a backward pass: who read it before is not known.
    """
    event = int(window.unread_from[row]) - 1
    if window.phase_of_event[event] == Phase.BACKWARD:
        return ()
    return window.trace.stack(int(window.trace.events.stack[event]))


RULE = FewValuesRead()
