"""What is kept for gradients that nobody uses: they, their states, and the graph before them."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import NamedTuple

import numpy as np

from memprof.rules.rule import Match
from memprof.source_code.frame_kind import FrameKind, frame_kind
from memprof.source_code.given_data import calls_given_data, is_given_data
from memprof.source_code.program import FUNCTIONS, called_name
from memprof.source_code.zeroed_gradients import ZeroedGradient
from memprof.trace import EMPTY, Category, Frame, Phase
from memprof.views.owners import common_module
from memprof.views.peak_without import Cuts
from memprof.views.window import Bools, Ints, Window

__all__ = [
    "NeedlessTraining",
    "OwnGraph",
    "given_no_graph",
    "graph_for_nothing",
    "in_words",
    "line_of_its_own",
    "needless_training",
    "untrained_around",
    "without_graph",
]


_MOST_NAMED = 3
"""Modules, of which a title has the paths."""
_FEW_STEPS = 0.125
"""Of the steps, that may have begun otherwise than all others: one of eight."""


class OwnGraph(NamedTuple):
    """Activations that serve only gradients that nobody uses."""

    rows: Ints
    """In the order in which they were made; empty where all are needed."""
    called_at: Frame | None
    """The user's line from which they, and nothing that is trained, were called."""
    call: str = ""
    """The one call of that line that they came by, where it makes others that need their graph."""


@dataclass(frozen=True, slots=True, eq=False)
class NeedlessTraining(Match):
    """Gradients and states of modules that no step changes, and the graph that is kept for them."""

    modules: str = ""
    """The modules, as a person would name them."""
    graph: int = 0
    """Bytes at the peak of activations that are kept for these gradients alone."""
    zeroed: ZeroedGradient | None = None
    """The statement that sets the gradients to 0, where that is why."""

    @property
    def what(self) -> str:
        """What of theirs is there."""
        return "the graph, gradients and states" if self.graph else "gradients and states"


def needless_training(window: Window, modules: set[int]) -> NeedlessTraining | None:
    """What some modules have that they are not trained by, where another module is trained."""
    learns = np.isin(window.category, (Category.GRADIENT, Category.OPTIMIZER_STATE))
    trained = set(window.module[learns].tolist()) - modules - {0}
    of_modules = np.isin(window.module, list(modules))
    own = of_modules & (learns | (window.phase == Phase.BACKWARD))
    own |= _temporaries_for(window, of_modules & learns, ~of_modules & learns)
    if not trained or not (own & learns).any():
        return None
    graph = graph_for_nothing(window, modules, trained).rows
    at_peak = own & learns & window.at_peak
    at_peak[graph] = window.at_peak[graph]
    if not at_peak.any():
        return None
    paths = window.owners.module.names
    names = sorted(paths[module] for module in modules)
    inside = np.zeros(len(window.lives), dtype=bool)
    inside[graph] = True
    return NeedlessTraining(
        row=window.main_site(inside if len(graph) else at_peak),
        rows=np.concatenate([np.flatnonzero(own & learns), graph]),
        nbytes=window.bytes_of(at_peak),
        saving=window.replayed(without_graph(window, np.flatnonzero(own), graph)),
        modules=in_words(names, [paths[module] for module in trained]),
        graph=int(window.lives.size[graph[window.at_peak[graph]]].sum()),
    )


def in_words(names: Sequence[str], trained: Sequence[str]) -> str:
    """Modules by the outermost one that has all of them and none of the ``trained``.

    Else by several such; no more than three are named.
    """
    common = common_module(names)
    if common and not any(_is_within(one, common) for one in trained):
        return f"`{common}`"
    outermost = dict.fromkeys(_outermost(name, trained) for name in names)
    texts = [f"`{one}`" for one in outermost]
    if len(texts) > _MOST_NAMED:
        texts = [*texts[: _MOST_NAMED - 1], f"{len(texts) - _MOST_NAMED + 1} more modules"]
    return " and ".join([part for part in (", ".join(texts[:-1]), texts[-1]) if part])


def _outermost(name: str, trained: Sequence[str]) -> str:
    """The longest way out of a module's path on which no trained module lies."""
    outer, _, _ = name.rpartition(".")
    while outer and not any(_is_within(one, outer) for one in trained):
        name = outer
        outer, _, _ = name.rpartition(".")
    return name


def _is_within(name: str, path: str) -> bool:
    return name == path or name.startswith(f"{path}.")


def _temporaries_for(window: Window, own: Bools, others: Bools) -> Bools:
    """What the optimizer computes on the way for gradients and states of ``own``.

    It belongs to no module: it has the size of one of these, and of none of the ``others``.
    """
    size = window.lives.size
    made = (window.phase == Phase.OPTIMIZER) & ~window.has_owner
    temporaries: Bools = made & np.isin(size, size[own]) & ~np.isin(size, size[others])
    return temporaries


def without_graph(window: Window, rows: Ints, graph: Ints) -> Cuts:
    """No lifetimes in ``rows``, and activations that are gone when nothing uses them any more.

    ``graph`` is in the order in which they were made.
    """
    removals = window.whole(rows)
    if not len(graph):
        return removals
    brief = window.ended_at(graph, _last_uses(window, graph))
    return Cuts.joined(removals, brief)


def _last_uses(window: Window, graph: Ints) -> Ints:
    """The events by which a forward pass alone is done with each of its activations.

    The next one is made of it, and the one after that no more. But what a module is called with its
    caller has until the call returns, so it is there beside what the module's own parts make.
    """
    alloc, module = window.lives.alloc[graph], window.module[graph].tolist()
    parts = [tuple(path.split(".")) for path in window.owners.module.names]
    # Of each pass the result is there up to the next pass.
    ends = np.append(alloc[1:], window.events)
    firsts = np.flatnonzero(np.append(True, np.diff(window.made_in[graph]) != 0))
    for first, last in pairwise([*firsts.tolist(), len(graph)]):
        # After the last one any allocation: what is made of that is none of the pass.
        later = np.append(alloc[first + 1 : last], _next_alloc(window, int(alloc[last - 1])))
        ends[first : last - 1] = later[1:]
        calls: list[_OpenCall] = []
        for at in range(first + 1, last):
            path, before = parts[module[at]], parts[module[at - 1]]
            while calls and calls[-1].is_over(path, before):
                ends[calls.pop().input] = alloc[at]
            pairs = zip(path, before, strict=False)
            shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            if len(path) > shared:
                calls.append(_OpenCall(path[: shared + 1], path, at - 1))
        for call in calls:
            ends[call.input] = later[-1]
    return ends


def _next_alloc(window: Window, event: int) -> int:
    """The first event after one that allocates; the window's end where none does."""
    at = int(np.searchsorted(window.lives.alloc, event, side="right"))
    return int(window.lives.alloc[at]) if at < len(window.lives) else window.events


class _OpenCall(NamedTuple):
    """A call of a module that has not returned, as far as its activations tell."""

    module: tuple[str, ...]
    first: tuple[str, ...]
    """The module in it that made an activation first."""
    input: int
    """The place of the activation that it was called with."""

    def is_over(self, path: tuple[str, ...], before: tuple[str, ...]) -> bool:
        """Whether the next activation, of the module ``path``, is of another call."""
        is_inside = path[: len(self.module)] == self.module
        return not is_inside or (path == self.first != before)


def line_of_its_own(window: Window, rows: Ints, modules: Iterable[int]) -> Frame | None:
    """The user's outermost line that all these tensors, and none of those modules', came by.

    Further in lie lines of the modules themselves, which others may be called by as well.
    """
    return next(_lines_of_their_own(window, rows, modules), None)


def _lines_of_their_own(window: Window, rows: Ints, modules: Iterable[int]) -> Iterator[Frame]:
    """All such lines, the outermost first."""
    stacks = _stacks(window, rows)
    shared = [
        frames[0]
        for frames in zip(*(reversed(stack) for stack in stacks), strict=False)
        if len(set(frames)) == 1
    ]
    of_others = _frames_of(window, modules)
    yield from (frame for frame in window.user_frames(tuple(shared)) if frame not in of_others)


def _stacks(window: Window, rows: Ints) -> list[tuple[Frame, ...]]:
    """The different stacks of some tensors, those aside of which none was recorded."""
    numbers = np.unique(window.lives.stack[rows])
    return [window.trace.stack(int(one)) for one in numbers[numbers != EMPTY]]


def _frames_of(window: Window, modules: Iterable[int]) -> set[Frame]:
    """All lines by which forward passes through some modules came."""
    forward = np.isin(window.module, list({*modules} - {0})) & (window.phase == Phase.FORWARD)
    stacks = np.unique(window.lives.stack[forward]).tolist()
    return {frame for stack in stacks for frame in window.trace.stack(stack)}


def graph_for_nothing(window: Window, modules: set[int], training_modules: set[int]) -> OwnGraph:
    """Activations that a backward pass frees, of modules to which nothing that is trained leads.

    So nothing before them takes a gradient: their graph serves only gradients that nobody uses.
    They run before all that is trained; or they were called with nothing that takes a gradient; or
    the source says that they are called with data alone.
    """
    paths = window.owners.module.names
    around = common_module([paths[m] for m in modules])
    inside = {at for at, path in enumerate(paths) if f"{path}.".startswith(f"{around}.")}
    is_partly_trained = not around or bool(inside & training_modules)
    graph = (window.category == Category.ACTIVATION) & (window.freed_by == Phase.BACKWARD)
    graph &= window.made_in >= 0
    first = _first_of(window, {paths[m] for m in training_modules if m})
    if around and is_partly_trained:
        # Of the same model, before its trained part: layers that are frozen, after what is not.
        rows = np.flatnonzero(graph & np.isin(window.module, list(inside - training_modules)))
        rows, begins = _with_begins(window, rows, first)
        if len(rows) and _come_before(window, rows, begins):
            return OwnGraph(rows, line_of_its_own(window, rows, training_modules))
    near = untrained_around(paths, modules, training_modules) if is_partly_trained else inside
    rows = np.flatnonzero(graph & np.isin(window.module, list(near)))
    rows, begins = _with_begins(window, rows, first)
    if len(rows) and _come_before(window, rows, begins):
        return OwnGraph(rows, line_of_its_own(window, rows, training_modules))
    own = given_no_graph(window, rows, training_modules)
    if len(own):
        return OwnGraph(own, line_of_its_own(window, own, training_modules))
    called_at = _line_of_data(window, rows, training_modules) if len(rows) else None
    if called_at is not None:
        return OwnGraph(rows, called_at)
    return _pass_of_data(window, rows, training_modules)


def untrained_around(
    paths: Sequence[str], modules: set[int], training_modules: set[int]
) -> set[int]:
    """All modules within the outermost ones around some in which nothing is trained.

    Parts without parameters are between the others, and save as much.
    """
    trained = [paths[one] for one in training_modules if one]
    around = {_outermost(paths[one], trained) for one in modules}
    return {at for at, path in enumerate(paths) if any(_is_within(path, one) for one in around)}


def _with_begins(window: Window, rows: Ints, first: Mapping[int, int]) -> tuple[Ints, Ints]:
    """Rows of steps in which something is trained, and the event at which that begins in each."""
    begins = np.array([first.get(int(step), -1) for step in window.made_in[rows]], dtype=np.int64)
    return rows[begins >= 0], begins[begins >= 0]


def _come_before(window: Window, rows: Ints, begins: Ints) -> bool:
    """Whether in nearly each step all rows were made before an event of it.

    Results of a validation may be there still when the next step begins; its pass then seems to be
    the one that builds the graph.
    """
    is_late = window.lives.alloc[rows] >= begins
    steps = np.unique(window.made_in[rows])
    late_steps = np.unique(window.made_in[rows[is_late]])
    return len(late_steps) <= _FEW_STEPS * len(steps)


def given_no_graph(window: Window, rows: Ints, training_modules: set[int]) -> Ints:
    """Of some rows those of calls by lines at which nothing was given that takes a gradient.

    Where what is called is trained in part, that part may lead to the rest. A call that no line was
    noted for, as within another module, counts as none of these.
    """
    inputs = window.graph_inputs
    if inputs is None:
        return rows[:0]
    paths = window.owners.module.names
    trained = [f"{paths[module]}." for module in training_modules if module]
    by_line: dict[tuple[str, int], dict[str, bool]] = {}
    noted = zip(inputs.modules, inputs.files, inputs.lines, inputs.given, strict=True)
    for module, filename, line, given in noted:
        is_apart = not any(path.startswith(f"{module}.") for path in trained)
        by_line.setdefault((filename, line), {})[module] = is_apart and not given
    made_by = [*zip(window.lives.stack[rows].tolist(), window.module[rows].tolist(), strict=True)]
    is_free: dict[tuple[int, int], bool] = {}
    for stack, row_module in set(made_by):
        answers = [
            is_none_given
            for frame in (window.trace.stack(stack) if stack != EMPTY else ())
            for root, is_none_given in by_line.get((frame.filename, frame.line), {}).items()
            if f"{paths[row_module]}.".startswith(f"{root}.")
        ]
        is_free[stack, row_module] = bool(answers) and all(answers)
    own: Ints = rows[np.array([is_free[one] for one in made_by], dtype=bool)]
    return own


def _pass_of_data(window: Window, rows: Ints, training_modules: set[int]) -> OwnGraph:
    """Of several passes through the same modules those that one line calls with data alone.

    A line by which what is trained came as well is none. What has no stack is of no known call.
    """
    rows = rows[window.lives.stack[rows] != EMPTY]
    of_others = _frames_of(window, training_modules)
    numbers = np.unique(window.lives.stack[rows]).tolist()
    stacks = {one: window.trace.stack(one) for one in numbers}
    called: dict[Frame, list[int]] = {}
    for stack, frames in stacks.items():
        for frame in dict.fromkeys(window.user_frames(frames)):
            called.setdefault(frame, []).append(stack)
    for frame, of_frame in called.items():
        frames = stacks[of_frame[0]]
        outer = frames[frames.index(frame) :]
        if any(outer != stacks[one][-len(outer) :] for one in of_frame):
            continue
        if len(of_frame) == len(stacks):
            own = _calls_of_data(window, rows, outer)
            if len(own.rows):
                return own
            continue
        if frame not in of_others and is_given_data(window.programs, outer):
            return OwnGraph(rows[np.isin(window.lives.stack[rows], of_frame)], frame)
    return OwnGraph(rows[:0], None)


def _calls_of_data(window: Window, rows: Ints, outer: Sequence[Frame]) -> OwnGraph:
    """What those calls made that a statement gives data alone, where it calls one thing repeatedly.

    Each stack has as many tensors of each call in a step; the calls come one after the other.
    """
    calls = calls_given_data(window.programs, outer)
    given = np.array([is_given for _, is_given in calls], dtype=bool)
    if not given.any() or given.all() or not _all_came_by(window, rows, outer, calls[0][0]):
        return OwnGraph(rows[:0], None)
    keys = np.stack([window.made_in[rows], window.lives.stack[rows]])
    _, group, counts = np.unique(keys, axis=1, return_inverse=True, return_counts=True)
    group = group.reshape(-1)
    if (counts % len(given)).any():
        return OwnGraph(rows[:0], None)
    order = np.lexsort((window.lives.alloc[rows], group))
    place = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    at = place // np.repeat(counts // len(given), counts)
    text = next(ast.unparse(call) for call, is_given in calls if is_given)
    return OwnGraph(np.sort(rows[order[given[at]]]), outer[0], text)


def _all_came_by(window: Window, rows: Ints, outer: Sequence[Frame], call: ast.Call) -> bool:
    """Whether a call of the innermost of some frames, or one like it, led to all of some rows.

    A module's call goes on in torch, that of a function in the function.
    """
    name = called_name(call)
    functions = {
        node.name
        for program in window.programs
        for node in program.nodes
        if isinstance(node, FUNCTIONS) and not isinstance(node, ast.Lambda)
    }
    for stack in np.unique(window.lives.stack[rows]).tolist():
        frames = window.trace.stack(stack)
        inside = frames[: len(frames) - len(outer)][-1:]
        if not inside:
            return False
        if frame_kind(inside[0].filename) is FrameKind.TORCH:
            if name in functions:
                return False
        elif inside[0].name.rpartition(".")[2] != name:
            return False
    return True


def _line_of_data(window: Window, rows: Ints, training_modules: set[int]) -> Frame | None:
    """The line of their own at which their modules are called with data, and nothing else."""
    stacks = _stacks(window, rows)
    for frame in _lines_of_their_own(window, rows, training_modules):
        ways = {stack: stack.index(frame) for stack in stacks if frame in stack}
        if all(_is_given_data(window, stack, at) for stack, at in ways.items()):
            return frame
    return None


def _is_given_data(window: Window, stack: tuple[Frame, ...], at: int) -> bool:
    """Whether data alone is handed on by the line at a place of a stack, or by what it calls.

    A function that is given a model and a batch calls the one with the other.
    """
    for inner in range(at, -1, -1):
        if inner < at and stack[inner].name.rpartition(".")[2] == "forward":
            return False
        if is_given_data(window.programs, stack[inner:]):
            return True
    return False


def _first_of(window: Window, paths: set[str]) -> dict[int, int]:
    """For every step the first event in one of these modules of the pass that builds its graph.

    Passes before it, as of an evaluation between two steps, build none: nothing of theirs is left
    when it begins.
    """
    inside = np.array([label.module in paths for label in window.trace.tables.labels])
    events = np.flatnonzero(inside[window.trace.events.label])
    events = events[window.phase_of_event[events] == Phase.FORWARD]
    begins = _graph_begins(window)
    first: dict[int, int] = {}
    for event in events.tolist():
        step = int(window.step_of_event[event])
        if event >= begins.get(step, -1):
            first.setdefault(step, event)
    return first


def _graph_begins(window: Window) -> dict[int, int]:
    """For every step with a graph the first allocation of the forward pass that builds it.

    What a pass hands on is there until the next tensor is made of it: so a pass begins where
    nothing that forward passes of the step made before is left.
    """
    lives = window.lives
    graph = (window.category == Category.ACTIVATION) & (window.freed_by == Phase.BACKWARD)
    forward = np.flatnonzero((window.phase == Phase.FORWARD) & (window.made_in >= 0))
    forward = forward[np.argsort(lives.alloc[forward], kind="stable")]
    begins: dict[int, int] = {}
    for step in np.unique(window.made_in[forward]).tolist():
        rows = forward[window.made_in[forward] == step]
        alloc, in_graph = lives.alloc[rows], np.flatnonzero(graph[rows])
        if len(in_graph):
            gone = np.maximum.accumulate(lives.free[rows])[:-1] < alloc[1:]
            gaps = np.flatnonzero(gone[: in_graph[0]])
            begins[step] = int(alloc[gaps[-1] + 1] if len(gaps) else alloc[0])
    return begins
