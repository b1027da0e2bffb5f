"""evaluation-graph: a forward pass keeps its activations for a backward pass that never comes."""

from __future__ import annotations

import ast
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from memprof.rules.case import Case
from memprof.rules.forward_passes import runs_within
from memprof.rules.graph_lines import calling_place, is_forward, under_no_grad
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.rules.source_facts import lines_of_training
from memprof.source_code.frame_kind import FrameKind, frame_kind
from memprof.source_code.program import (
    Place,
    bound_names,
    called_name,
    calls_in,
    loaded_names,
    place_of,
    root_name,
)
from memprof.source_code.torch_modes import without_gradients
from memprof.trace import THREAD, Action, Category, Phase
from memprof.units import format_bytes
from memprof.views.window import Bools, Ints, Window

__all__ = ["LEAST_SPREAD", "RULE"]

_LEAST_MODULES = 3
"""Modules that keep something: fewer are a result that is used, and no graph."""
_LEAST_TENSORS = 3
"""Of one module, which calls functions (`F.relu(self.conv(x))`): fewer are what it returns."""
_AS_IN_TRAINING = 0.9
"""Of the tensors that backward passes free where the same lines train: they are kept here, too.
Without a graph all but what the model returns would be gone."""
_OF_MANY_STEPS = 32
"""Tensors of one pass that fewer modules keep: a recurrent layer goes through a sequence."""
_LEAST_KEPT = 0.4
"""Of the bytes that a forward pass makes: with gradients on, most are there when it ends."""
_LESS = 0.75
"""Of that, where other passes by the same lines keep so much: operators' own buffers differ."""
LEAST_SPREAD = 0.4
"""Of the modules that made something, those that keep something: results that a model returns come
from few of them."""
_MOST_LEARNT = 0.1
"""Of what a pass keeps, that is there when the next backward pass of its step begins: with more it
goes through this pass as well."""
_MOSTLY = 0.5
"""Of what a pass saved, that its backward pass frees: with `retain_graph` it frees nothing."""
_FEWEST_LASTING = 6
"""Steps whose graphs are all there when a window ends."""
_OUTLIVED = 16
"""Later steps with a backward pass, after which nothing has learnt from a graph that is there."""
_MODULE_CALL = "_call_impl"
_LEARNING = ("backward", "grad", "manual_backward")
"""What runs a backward pass."""
_NEARLY_ALL = 0.9
"""Of a pass that is there at the end: made by lines of passes that were let go of."""
_LEAST_KEPT_BY_ALL = 0.15
"""Of the bytes, where they are kept all over the model: operators have buffers of their own."""


@dataclass(frozen=True, slots=True, eq=False)
class UnusedGraph(Match):
    """What waits, and where its pass ran."""

    in_thread: bool = False
    """In a thread that the program has begun."""


class EvaluationGraph(WasteRule[UnusedGraph]):
    """An evaluation with gradients on: modules save what a backward pass would need."""

    name = "evaluation-graph"
    summary = "a forward pass without a backward pass keeps its activations"
    fixes = ("no_grad", "inference_mode")

    def matches(self, window: Window) -> Iterator[UnusedGraph]:
        """Forward passes with gradients on, which no backward pass follows before the next."""
        of_threads = list(_in_threads(window))
        if of_threads:
            yield from of_threads
            return
        lives = window.lives
        graph_rows: list[int] = []
        ends: list[int] = []
        lasting: list[Ints] = []
        nearly: list[Ints] = []
        stacks: set[int] = set()
        brief = window.freed_in - window.made_in < 2  # else it may be a cache, or kept on purpose
        for first, last, learns_at, is_freeing in _unused_forwards(window):
            low, high = np.searchsorted(lives.alloc, [first, last + 1])  # rows are in this order
            rows = np.arange(low, high)
            alive = rows[(lives.free[rows] > last) & ~window.has_owner[rows]]
            is_learnt = lives.free[alive] >= learns_at
            if is_freeing:  # what it went through is gone; the rest is there for something else
                is_learnt &= window.freed_by[alive] == Phase.BACKWARD
            if learns_at < window.events and is_learnt.sum() > _MOST_LEARNT * len(alive):
                continue
            stays = lives.free[alive] >= window.events
            if stays.any() and _is_little(window, alive, ~stays):
                lasting.append(alive[stays])
                continue
            by_all = _is_kept_by_all(window, rows, alive)
            pass_bytes = int(lives.size[rows].sum())
            whole, rows = rows, alive if by_all else alive[brief[alive]]
            modules = set(window.module[rows].tolist()) - {0}
            is_graph = len(modules) >= _LEAST_MODULES or len(rows) >= _OF_MANY_STEPS
            if not modules or not (is_graph or _is_as_in_training(window, whole, rows)):
                continue
            least = _LEAST_KEPT_BY_ALL if by_all else _LEAST_KEPT
            kept = lives.size[rows].sum()
            if kept < _LESS * least * pass_bytes or without_gradients(window.stack(int(rows[0]))):
                continue  # results of several modules, and nothing of what lies between them
            if kept < least * pass_bytes:
                nearly.append(rows)
                continue
            stacks.update(lives.stack[rows].tolist())
            graph_rows += rows[:-1].tolist()
            ends += lives.alloc[rows[1:]].tolist()
        if not graph_rows:
            yield from _amid_an_evaluation(window, lasting)
            return
        # The last such graph may be there still; what else stays, a program may keep on purpose.
        for rows in (*nearly, *lasting):
            if np.isin(lives.stack[rows], sorted(stacks)).mean() >= _NEARLY_ALL:
                graph_rows += rows[:-1].tolist()
                ends += lives.alloc[rows[1:]].tolist()
        yield _match(window, np.array(graph_rows, dtype=np.int64), np.array(ends))

    def title(self, match: UnusedGraph) -> str:  # noqa: ARG002 - every match reads the same
        """Say what they wait for."""
        return "are activations that a forward pass keeps for a backward pass that never comes"

    def advice(self, match: UnusedGraph, case: Case) -> Iterator[Advice]:
        """Run it under `no_grad`."""
        nbytes = format_bytes(match.nbytes)
        why = f"{nbytes} of activations wait for a backward pass that does not come."
        if match.in_thread:
            why += " Each thread has gradients on until it turns them off itself."
        first = calling_place(case)
        place = _beside_training(case, first)
        if match.tentative:
            why = f"{why} This line trains as well: it is for the library that it calls to do."
            yield Advice("no_grad", why, place or first)
            return
        if place is None and first is not None:
            test = _learns_if(first)
            condition = ast.unparse(test) if test is not None else "…"
            how = "turn gradients on there where a backward pass follows, and off where none does"
            yield Advice(
                "no_grad",
                f"{why} This line trains as well: {how}.",
                first,
                typed=f"with torch.set_grad_enabled({condition}):",
            )
            return
        yield Advice("no_grad", why, place, patch=under_no_grad(case))
        more = f"{why} Inference mode saves a little more."
        yield Advice("inference_mode", more, place)


def _beside_training(case: Case, first: Place | None) -> Place | None:
    """The ``first`` statement on the way to the model that training does not come by.

    It calls the model; or a function that fills a pool by the method that makes batches for
    training. None, where training comes by all of them.
    """
    lines, frames = lines_of_training(case.window), case.frames
    at = next((at for at, (_, place) in enumerate(frames) if place is first), len(frames))
    return next((place for frame, place in frames[at:] if frame not in lines), None)


def _learns_if(place: Place) -> ast.expr | None:
    """On which condition a backward pass follows a statement in its function: ``phase == "train"``.

    None where there is none, or it is not known yet at the statement.
    """
    for call in calls_in(place.scope, *_LEARNING):
        below = place.program.place(call)
        if below is None or below.line <= place.line or below.scope is not place.scope:
            continue
        branches = [
            node
            for node in below.around
            if isinstance(node, ast.If)
            and node not in place.around
            and any(below.statement in ast.walk(one) for one in node.body)
        ]
        if branches:
            test = branches[0].test
            between = (
                target
                for node in ast.walk(place.scope)
                if isinstance(node, ast.stmt) and place.line <= node.lineno < test.lineno
                for target in bound_names(node)
            )
            is_known = loaded_names(test).isdisjoint(map(root_name, between))
            return test if is_known and not calls_in(test) else None
    return None


def _match(window: Window, rows: Ints, ends: Ints, *, rises: bool = False) -> UnusedGraph:
    """Activations, each with the event by which it could have gone."""
    saving = window.replayed(window.ended_at(rows, ends))
    mask = np.zeros(len(window.lives), dtype=bool)
    mask[rows] = True
    row = window.main_site(mask)
    # Then a library calls the model so, and no line of the program can change that.
    is_of_library = _trains_as_well(window, row)
    return UnusedGraph(
        row=row,
        rows=rows,
        nbytes=window.bytes_of(mask & window.at_peak) or saving.bytes,
        saving=saving,
        tentative=is_of_library,
        rises=rises and not is_of_library,
        in_thread=_is_in_thread(window, row),
    )


def _is_in_thread(window: Window, row: int) -> bool:
    """Whether another thread than the main one made a lifetime, as far as that is recorded."""
    event = int(window.lives.alloc[row])
    if event < 0:
        return False
    label = window.trace.tables.labels[int(window.trace.events.label[event])]
    return label.annotation.startswith(THREAD)


def _in_threads(window: Window) -> Iterator[UnusedGraph]:
    """What passes in threads of the program's keep until they are over, where none learns.

    Passes of several threads lie among one another, so they are not told apart. Without a graph
    what a layer made goes within the pass, and with one when its result goes, after it.
    """
    labels = window.trace.tables.labels
    in_thread = np.array([label.annotation.startswith(THREAD) for label in labels])
    if not in_thread.any() or len(_backward_allocs(window)):
        return
    lives = window.lives
    rows = np.flatnonzero((window.phase == Phase.FORWARD) & (window.module > 0) & ~window.has_owner)
    rows = rows[lives.alloc[rows] >= 0]
    rows = rows[in_thread[window.trace.events.label[lives.alloc[rows]]]]
    ended = lives.free[rows] < window.events
    is_left = ended & (window.freed_by[rows] == Phase.OTHER)
    # Of what is there at the end the lines tell what would have been left.
    is_left |= ~ended & np.isin(lives.stack[rows], np.unique(lives.stack[rows[is_left]]))
    left = rows[is_left]
    modules, keeping = (set(window.module[one].tolist()) for one in (rows, left))
    is_spread = len(keeping) >= max(_LEAST_MODULES, LEAST_SPREAD * len(modules))
    if not is_spread or lives.size[left].sum() < _LEAST_KEPT * lives.size[rows].sum():
        return
    if without_gradients(window.stack(int(left[0]))):
        return
    # Until the next but one is made: the next may be another thread's.
    yield _match(window, left[:-2], lives.alloc[left[2:]])


def _amid_an_evaluation(window: Window, lasting: Sequence[Ints]) -> Iterator[UnusedGraph]:
    """What passes of several steps keep to the window's end, where nothing learns from them."""
    rows = np.concatenate([np.empty(0, np.int64), *lasting])
    rows = rows[(window.made_in[rows] >= 0) & (window.module[rows] > 0)]
    steps = window.made_in[rows]
    if len(np.unique(steps)) < _FEWEST_LASTING or not _learns_from_nothing(window, rows):
        rows = rows[np.isin(window.lives.stack[rows], _outliving(window, rows))]
        steps = window.made_in[rows]
        if not len(rows) or without_gradients(window.stack(int(rows[0]))):
            return
    # Of each step the last is there still when the next one begins.
    brief = np.flatnonzero(np.diff(steps, append=-1) == 0)
    yield _match(window, rows[brief], window.lives.alloc[rows[brief + 1]], rises=True)


def _outliving(window: Window, rows: Ints) -> Ints:
    """The stacks of passes, in several steps, that are there long after; none, if few modules do.

    Many later steps had backward passes that freed what they went through, and these were none of
    it: each test of an epoch.
    """
    learning = np.unique(window.step_of_event[[begins for *_, begins in _learnt_passes(window)]])
    steps = window.made_in[rows]
    later = len(learning) - np.searchsorted(learning, steps, side="right")
    old = rows[later >= _OUTLIVED]
    modules = set(window.module[old].tolist())
    if len(np.unique(window.made_in[old])) < 2 or len(modules) < _LEAST_MODULES:
        return old[:0]
    return np.unique(window.lives.stack[old])


def _learnt_passes(window: Window) -> Iterator[tuple[int, int, int]]:
    """First and last event of passes that the backward pass after them frees; where that begins."""
    backward = _backward_allocs(window)
    for first, last in _forward_runs(window):
        at = int(np.searchsorted(backward, last))
        if at < len(backward) and _is_freed(window, (first, last), int(backward[at])):
            yield first, last, int(backward[at])


def _learns_from_nothing(window: Window, rows: Ints) -> bool:
    """Whether no function of the program on the way to a pass runs a backward pass.

    By the source. A function of a library's that calls the model may have it run one; so may what a
    function calls later, or in the same loop, with anything that it has had the pass made with.
    """
    mask = np.zeros(len(window.lives), dtype=bool)
    mask[rows] = True
    stack = window.stack(window.main_site(mask))
    modules = set(window.module[rows].tolist())
    calls = [at for at, frame in enumerate(stack) if _MODULE_CALL in frame.name]
    outside = stack[calls[-1] + 1 :] if calls else ()
    if len(modules) < _LEAST_MODULES or without_gradients(stack):
        return False
    if not outside or frame_kind(outside[0].filename) is not FrameKind.USER:
        return False
    places = [place_of(frame) for frame in window.user_frames(outside)]
    return (
        places[0] is not None
        and places[0].function is not None
        and not any(
            place.function is not None and _may_learn(place)
            for place in places
            if place is not None
        )
    )


def _may_learn(place: Place) -> bool:
    """Whether a function runs a backward pass, or calls one of the program's for it, afterwards."""
    if calls_in(place.scope, *_LEARNING):
        return True
    names = {node.id for node in ast.walk(place.statement) if isinstance(node, ast.Name)}
    for call in calls_in(place.scope):
        at = place.program.place(call)
        if at is None or (at.line <= place.line and (at.loop is None or at.loop is not place.loop)):
            continue
        learns = any(
            calls_in(one, *_LEARNING) for one in place.program.functions(called_name(call))
        )
        if learns and any(isinstance(one, ast.Name) and one.id in names for one in ast.walk(call)):
            return True
    return False


def _trains_as_well(window: Window, row: int) -> bool:
    """Whether backward passes are run from the very line of the program that called the model.

    One loop's step may end in a test: the line is the innermost one of the program's.
    """
    frames = window.user_frames(window.stack(row))
    outside = [frame for frame in frames if not is_forward(frame)]
    stacks = np.unique(window.lives.stack[window.phase == Phase.BACKWARD]).tolist()
    return bool(outside) and any(outside[0] in window.trace.stack(stack) for stack in stacks)


def _is_kept_by_all(window: Window, rows: Ints, alive: Ints) -> bool:
    """Whether what is left of a pass comes from all over the model, and ends at one moment.

    So does a graph, whose end may come steps later where each pass is taken for one.
    """
    modules, keeping = (set(window.module[one].tolist()) - {0} for one in (rows, alive))
    if len(keeping) < LEAST_SPREAD * len(modules):
        return False
    frees, few = np.sort(window.lives.free[alive]), _few(alive)
    frees = frees[few:-few]
    return len(frees) > 0 and int(frees[-1]) < window.events and np.ptp(frees) <= 2 * len(alive)


def _is_as_in_training(window: Window, rows: Ints, alive: Ints) -> bool:
    """Whether what is left of a pass is what passes by the same lines keep to learn from it."""
    if len(alive) < _LEAST_TENSORS:
        return False
    lines, made = np.unique(_lines_in_modules(window)[rows], return_counts=True)
    share = _share_learnt(window)
    wanted = made * np.array([share.get(line, 0.0) for line in lines.tolist()])
    left = np.isin(rows, alive)
    of_line = np.searchsorted(lines, _lines_in_modules(window)[rows[left]])
    kept = np.minimum(np.bincount(of_line, minlength=len(lines)), wanted)
    return bool(wanted.any()) and float(kept.sum()) >= _AS_IN_TRAINING * float(wanted.sum())


@lru_cache(maxsize=1)
def _lines_in_modules(window: Window) -> Ints:
    """Per lifetime a number for the line and the module that made it."""
    numbers: Ints = window.site.astype(np.int64) * (int(window.module.max()) + 1) + window.module
    return numbers


@lru_cache(maxsize=1)
def _share_learnt(window: Window) -> dict[int, float]:
    """By lines of modules: of what they make in training, the share that backward passes free."""
    alloc = window.lives.alloc
    mask = np.zeros(len(window.lives), dtype=bool)
    for first, last, _ in _learnt_passes(window):
        low, high = np.searchsorted(alloc, [first, last + 1])
        mask[low:high] = True
    mask &= window.module > 0
    learnt = mask & (window.category == Category.ACTIVATION) & (window.freed_by == Phase.BACKWARD)
    lines, which = np.unique(_lines_in_modules(window)[mask], return_inverse=True)
    shares = np.bincount(which.reshape(-1), weights=learnt[mask]) / np.bincount(which.reshape(-1))
    return dict(zip(lines.tolist(), shares.tolist(), strict=True))


def _is_little(window: Window, alive: Ints, gone: Bools) -> bool:
    """Whether what has gone of a pass is little of it: its results, and what was made of them."""
    sizes = window.lives.size[alive]
    return int(gone.sum()) <= _few(alive) or 10 * int(sizes[gone].sum()) <= int(sizes.sum())


def _few(alive: Ints) -> int:
    """How many of a pass may go before and after the rest: its results."""
    return len(alive) // 10 + 1


def _unused_forwards(window: Window) -> Iterator[tuple[int, int, int, bool]]:
    """First and last event of forward passes that no backward pass follows before the next one.

    And where the next backward pass of the same step begins, as a loss may be a sum of several
    passes: one that is used by it has its graph then still. The window's end where none comes. Last
    whether that backward pass frees what the forward pass just before it saved.
    """
    backward, runs = _backward_allocs(window), _forward_runs(window)
    starts = [first for first, _ in runs]
    for number, (first, last) in enumerate(runs):
        until = runs[number + 1][0] if number + 1 < len(runs) else window.events
        at = int(np.searchsorted(backward, last))
        if at == len(backward):
            yield first, last, window.events, False
        elif backward[at] > until:
            begins = int(backward[at])
            if window.step_of_event[begins] != window.step_of_event[last]:
                yield first, last, window.events, False
                continue
            own = runs[bisect_left(starts, begins) - 1]
            yield first, last, begins, _is_freed(window, own, begins)


def _forward_runs(window: Window) -> list[tuple[int, int]]:
    """First and last event of each forward pass.

    One ends as well where a model is called again after another one, as the loss's module: between
    two batches of a list nothing may be allocated.
    """
    in_module = np.array([bool(label.module) for label in window.trace.tables.labels])
    _, root_of_label = np.unique(
        [label.module.partition(".")[0] for label in window.trace.tables.labels],
        return_inverse=True,
    )
    allocs = np.flatnonzero(window.trace.events.action == Action.ALLOC)
    root = root_of_label.reshape(-1)[window.trace.events.label[allocs]]
    passes = []
    for first, last, _ in runs_within(window, in_module):
        low, high = np.searchsorted(allocs, [first, last + 1])
        begin, called = low, {int(root[low])}
        for at in (np.flatnonzero(np.diff(root[low:high])) + low + 1).tolist():
            if int(root[at]) in called:
                passes.append((int(allocs[begin]), int(allocs[at - 1])))
                begin, called = at, set()
            called.add(int(root[at]))
        passes.append((int(allocs[begin]), last))
    return passes


def _backward_allocs(window: Window) -> Ints:
    """The allocations of backward passes."""
    is_alloc = window.trace.events.action == Action.ALLOC
    return np.flatnonzero((window.phase_of_event == Phase.BACKWARD) & is_alloc)


def _is_freed(window: Window, run: tuple[int, int], begins: int) -> bool:
    """Whether most of what a pass saved goes in the backward pass that begins after it."""
    lives = window.lives
    low, high = np.searchsorted(lives.alloc, [run[0], run[1] + 1])
    rows = np.arange(low, high)
    rows = rows[(lives.free[rows] >= begins) & ~window.has_owner[rows]]
    gone = int(lives.size[rows[window.freed_by[rows] == Phase.BACKWARD]].sum())
    return gone > _MOSTLY * int(lives.size[rows].sum())


RULE = EvaluationGraph()
