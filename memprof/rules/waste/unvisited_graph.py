"""unvisited-graph: a model's graph is kept beside a backward pass that does not go through it."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from memprof.rules.case import Case
from memprof.rules.forward_passes import runs_within
from memprof.rules.graph_lines import is_forward
from memprof.rules.results_read import calling_frame
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.rules.unvisited_passes import unvisited_passes
from memprof.source_code.ended_variables import is_let_go, is_replaced_in_loop
from memprof.source_code.frame_kind import FrameKind, frame_kind
from memprof.source_code.idioms import is_partly_cut
from memprof.source_code.program import Place, bound_names, place_of
from memprof.source_code.scopes import reads_of
from memprof.source_code.torch_modes import without_gradients
from memprof.source_code.verbs import CUTTING
from memprof.trace import Action, Category, Frame, Phase
from memprof.units import format_bytes
from memprof.views.window import Bools, Ints, Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.1
"""Of the peak, that the graph has."""
_LEAST_KEPT = 0.25
"""Of the bytes that a forward pass makes: with gradients on, so many are there when it ends. The
rest is what operators need while they run."""
_LEAST_KEEPING = 0.5
"""Of the modules that make something: where results of layers are returned, the layers within them
keep nothing. Of what autograd was seen to save it need not be so many: an attention over the edges
of a graph saves much, and the layers in it little."""
_NEARLY_ALL = 0.9
"""Of a graph: so much must have come by the line that is named."""
_MOSTLY = 0.5
"""Of what passes saved, that is lost."""
_SIMPLE = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr, ast.Return)
"""Statements that have no others within them."""
_LEAST_MODULES = 3
"""Modules that save something: fewer are a result that is used."""
_LEAST_LET_GO = 2
"""Tensors of variables that end with the pass."""


@dataclass(frozen=True, slots=True, eq=False)
class Unvisited(Match):
    """A graph that no backward pass goes through."""

    frame: Frame | None = None
    """The innermost line of the program on the way to all of it, and to nothing that is read."""
    is_shared: bool = False
    """There is none: it is a line that calls what is read as well."""
    is_learned: bool = False
    """The backward pass goes through other passes of the same model."""


class UnvisitedGraph(WasteRule[Unvisited]):
    """A reference model runs with gradients on, and only its result is used, detached."""

    name = "unvisited-graph"
    summary = "a model keeps activations that the backward pass does not read"
    fixes = ("no_grad",)
    yields_to = ("retained-graph", "evaluation-graph", "old-graphs")

    def matches(self, window: Window) -> Iterator[Unvisited]:
        """Of each model or part of one that is not trained: what its forward passes leave behind.

        A backward pass follows in the same step, and frees none of it.
        """
        learned = np.unique(window.module[window.phase == Phase.BACKWARD])
        names = window.owners.module.names[1:]  # the first stands for none
        waiting = sorted({name.partition(".")[0] for name in names})
        while waiting:
            path = waiting.pop()
            rows = _left_behind(window, path, learned)
            if not len(rows):
                waiting += _large_parts(window, path)
                continue
            if window.share(window.bytes_of(_mask(window, rows) & window.at_peak)) >= _LEAST_SHARE:
                yield _match(window, path, rows)
        for path in sorted({name.partition(".")[0] for name in names}):
            if (_is_inside(path, window.owners.module.names)[learned[learned > 0]]).any():
                rows = _cut_off(window, path)
                nbytes = window.bytes_of(_mask(window, rows) & window.at_peak)
                if window.share(nbytes) >= _LEAST_SHARE:
                    yield replace(_match(window, path, rows), is_learned=True)
                yield from _passed_by(window, path)

    def title(self, match: Unvisited) -> str:
        """Say what they are."""
        if match.is_learned:
            return "are activations of passes whose graph is cut off before the backward pass"
        return "are activations of a model that the backward pass does not go through"

    def advice(self, match: Unvisited, case: Case) -> Iterator[Advice]:
        """Build no graph."""
        frame = match.frame
        place = case.place_at(frame.filename, frame.line) if frame is not None else case.site
        which = "those passes" if match.is_learned else "this model"
        text = _text_cut_off(place) if match.is_shared else ""
        what_to_do = f"run {which} under `torch.no_grad()`"
        if match.is_shared:
            what_to_do += (
                f", and{f' `{text}`' if text else ''} in a statement of its own: this one runs "
                "what learns as well"
            )
        yield Advice(
            "no_grad",
            f"{format_bytes(match.nbytes)} are kept for a backward pass that does not read them: "
            f"{what_to_do}.",
            place,
            typed=f"with torch.no_grad(): wanted = {text}" if text else "",
        )


def _text_cut_off(place: Place | None) -> str:
    """The call whose result a statement cuts off from its graph, if it is one: ``teacher(x)``."""
    texts = [
        ast.unparse(node.value)
        for node in ast.walk(place.statement if place is not None else ast.Pass())
        if isinstance(node, ast.Attribute)
        and node.attr in CUTTING
        and isinstance(node.value, ast.Call)
    ]
    return texts[0] if len(texts) == 1 else ""


def _passed_by(window: Window, path: str) -> Iterator[Unvisited]:
    """Of a model that learns: passes whose graphs are there after the backward pass, untouched."""
    rows = unvisited_passes(window)
    rows = rows[_is_inside(path, window.owners.module.names)[window.module[rows]]]
    by_line: dict[Frame | None, list[int]] = {}
    for row in rows.tolist():
        by_line.setdefault(calling_frame(window, int(window.lives.stack[row])), []).append(row)
    for own in map(np.array, by_line.values()):
        match = _match(window, path, own)
        saves_bytes = match.saving.bytes if match.saving is not None else 0
        if window.share(saves_bytes) >= _LEAST_SHARE:
            yield replace(match, nbytes=match.nbytes or saves_bytes, is_learned=True)


def _match(window: Window, path: str, rows: Ints) -> Unvisited:
    at_peak = _mask(window, rows) & window.at_peak
    after = np.append(window.lives.alloc[rows[1:]], window.lives.alloc[rows[-1:]] + 1)
    others = ~_is_inside(path, window.owners.module.names)[window.module]
    # What is made of the model's result, outside of modules, may be a part of its graph.
    others &= window.module > 0
    # Of the model's own passes those that are gone through.
    others |= window.freed_by == Phase.BACKWARD
    rows_read = others & (window.category == Category.ACTIVATION) & (window.phase == Phase.FORWARD)
    frame, is_shared = _calling_frame(window, rows, np.flatnonzero(rows_read))
    return Unvisited(
        row=window.main_site(at_peak if at_peak.any() else _mask(window, rows)),
        rows=rows,
        nbytes=window.bytes_of(at_peak),
        saving=window.replayed(window.ended_at(rows, after)),
        frame=frame,
        is_shared=is_shared,
    )


def _mask(window: Window, rows: Ints) -> Bools:
    mask = np.zeros(len(window.lives), dtype=bool)
    mask[rows] = True
    return mask


def _cut_off(window: Window, path: str) -> Ints:
    """What passes through a model that learns saved, and lost before the step's backward pass.

    Only passes of which less than half was there when that began. Passes between which nothing is
    computed count as one, at whose end it must have been there. And what is there then, and lost
    after that pass, which went through other models alone: a sampler's gradients of a classifier.
    """
    nothing = np.zeros(0, dtype=np.int64)
    if window.owners.inferred:
        return nothing
    lives = window.lives
    saved = _saved_somewhere(window)
    unread = (window.freed_by != Phase.BACKWARD) & (lives.free < window.events)
    visited = _visits(window, path)
    parts: list[Ints] = []
    for first, last, following, learns in _passes(window, path):
        low, high = np.searchsorted(lives.alloc, [first, last + 1])
        rows = np.arange(low, high)
        rows = rows[saved[rows] & (lives.free[rows] > following)]
        rows_lost = rows[lives.free[rows] < learns]
        if not visited(learns):
            rows_lost = rows[(lives.free[rows] < learns) | unread[rows]]
        if not _is_of_graph(window, rows_lost):
            continue
        if lives.size[rows_lost].sum() >= _MOSTLY * lives.size[rows].sum():
            parts.append(rows_lost)
    return np.concatenate(parts) if parts else nothing


def _visits(window: Window, path: str) -> Callable[[int], bool]:
    """Whether the backward pass that an event is of makes anything for a module, until the next."""
    in_label = _is_inside(path, [one.module for one in window.trace.tables.labels])
    events = window.trace.events
    allocs = np.flatnonzero(events.action == Action.ALLOC)
    phase = window.phase_of_event[allocs]
    forward = allocs[phase == Phase.FORWARD]
    own = allocs[(phase == Phase.BACKWARD) & in_label[events.label[allocs]]]

    def visits(event: int) -> bool:
        at = int(np.searchsorted(forward, event))
        end = int(forward[at]) if at < len(forward) else window.events
        return bool(np.searchsorted(own, event) < np.searchsorted(own, end))

    return visits


@lru_cache(maxsize=1)  # each model that learns asks for it
def _saved_somewhere(window: Window) -> Bools:
    """What graphs save of a line, a module and a size, in the passes that were looked at."""
    lives = window.lives
    keys = np.stack([lives.stack.astype(np.int64), window.module, lives.requested], 1)
    _, number = np.unique(keys, axis=0, return_inverse=True)
    number = number.reshape(-1)
    is_saved = (window.category == Category.ACTIVATION) & (window.phase == Phase.FORWARD)
    saved: Bools = np.isin(number, np.unique(number[is_saved]))
    return saved


def _left_behind(window: Window, path: str, learned: Ints) -> Ints:
    """What the passes through a module leave, if that is a graph and no backward pass goes there.

    None where one of its modules is ``learned``: has memory that a backward pass made.
    """
    inside = _is_inside(path, window.owners.module.names)
    nothing = np.zeros(0, dtype=np.int64)
    if inside[learned[learned > 0]].any():
        return nothing
    lives = window.lives
    goes_unread = (window.freed_by != Phase.BACKWARD) & ~window.has_owner
    goes_unread &= (lives.free < window.events) & (window.freed_in - window.made_in < 2)
    numbers = {name: at for at, name in enumerate(window.owners.module.names)}
    of_label = [numbers.get(one.module, 0) for one in window.trace.tables.labels]
    is_over = ~inside[np.array(of_label, dtype=np.int64)]
    parts: list[Ints] = []
    for first, last, following, _ in _passes(window, path):
        low, high = np.searchsorted(lives.alloc, [first, last + 1])  # rows are in this order
        rows = np.arange(low, high)
        pass_bytes, makers = int(lives.size[rows].sum()), len(_modules_of(window, rows))
        rows = rows[goes_unread[rows]]
        # what the pass has in variables of its own is gone when anything else is made
        graph = rows[lives.free[rows] > following]
        if not _is_graph(window, graph, pass_bytes, makers):
            graph = rows[lives.free[rows] > last]
            graph = graph[is_over[window.trace.events.label[lives.free[graph]]]]
            if not _is_graph(window, graph, pass_bytes, makers) or not _is_cut_off(window, graph):
                continue
        parts.append(graph)
    rows = np.concatenate(parts) if parts else nothing
    return nothing if len(rows) and without_gradients(window.stack(int(rows[0]))) else rows


def _is_graph(window: Window, rows: Ints, pass_bytes: int, makers: int) -> bool:
    """Whether tensors that a pass leaves, of so many bytes and modules, are more than results.

    Of fewer modules, which call functions, some are of names that are surely let go of.
    """
    are_saved = _are_saved(window, rows)
    least = max(_LEAST_MODULES, 0.0 if are_saved else _LEAST_KEEPING * makers)
    if len(_modules_of(window, rows)) < least and not (are_saved and _are_let_go(window, rows)):
        return False
    return int(window.lives.size[rows].sum()) >= _LEAST_KEPT * pass_bytes


def _are_let_go(window: Window, rows: Ints) -> bool:
    """Whether some of what a pass leaves is of variables of its own: only a graph can have that."""
    lines = (next(iter(window.user_frames(window.stack(row))), None) for row in rows.tolist())
    places = (place_of(frame) for frame in lines if frame is not None and is_forward(frame))
    known = [place for place in places if place is not None]
    in_loops = [one for one in known if is_replaced_in_loop(one)]
    last = len({one.line for one in in_loops})  # the last of a loop may be what it returns
    others = [one for one in known if not is_replaced_in_loop(one)]
    return len(in_loops) - last + sum(map(is_let_go, others)) >= _LEAST_LET_GO


def _is_cut_off(window: Window, rows: Ints) -> bool:
    """Whether the statement that calls the model, or one that reads what it binds, ends a graph.

    So what goes right after the pass went with the graph of its result.
    """
    stacks = [_user(window, one) for one in np.unique(window.lives.stack[rows]).tolist()]
    shared = [frame for frame in stacks[0] if all(frame in stack for stack in stacks)]
    return _is_result_cut_off(shared)


def _is_result_cut_off(frames: Sequence[Frame]) -> bool:
    """Whether a statement on the way to a model cuts its result off from the graph.

    Frames are innermost first: those of modules, and of functions that return what they call, are
    followed outwards to the one that does something with it.
    """
    for frame in frames:
        place = place_of(frame)
        if place is None:
            return False
        if isinstance(place.statement, _SIMPLE):
            names = [one.id for one in bound_names(place.statement) if isinstance(one, ast.Name)]
            loads = [load for name in names for load in reads_of(place.scope, name)]
            if is_partly_cut(place.statement) or any(_cuts_off(around) for _, around in loads):
                return True
        if not (is_forward(frame) or isinstance(place.statement, ast.Return)):
            return False
    return False


def _cuts_off(around: Sequence[ast.AST]) -> bool:
    """Whether a name is cut off from its graph where it is read: ``name.detach()``."""
    reader = around[-1]
    return isinstance(reader, ast.Attribute) and reader.attr in CUTTING


def _are_saved(window: Window, rows: Ints) -> bool:
    """Whether autograd was seen to save nearly all of some tensors: they are no mere results."""
    size = window.lives.size[rows]
    saved = size[window.category[rows] == Category.ACTIVATION].sum()
    return not window.owners.inferred and bool(saved >= _NEARLY_ALL * size.sum())


def _is_of_graph(window: Window, rows: Ints) -> bool:
    """Whether what graphs save of a pass is more than results: of several modules, or of one.

    One that calls functions (`F.relu(self.layer(x))`) saves what its variables had.
    """
    modules = _modules_of(window, rows)
    return len(modules) >= _LEAST_MODULES or (bool(modules) and _are_let_go(window, rows))


def _modules_of(window: Window, rows: Ints) -> set[int]:
    return set(window.module[rows].tolist()) - {0}


def _passes(window: Window, path: str) -> Iterator[tuple[int, int, int, int]]:
    """First and last allocation of each pass through a module, and the first one after it.

    The fourth is the first of the backward pass that follows: only passes in whose step one does.
    """
    in_label = _is_inside(path, [one.module for one in window.trace.tables.labels])
    is_alloc = window.trace.events.action == Action.ALLOC
    backward = np.flatnonzero(is_alloc & (window.phase_of_event == Phase.BACKWARD))
    for first, last, following in runs_within(window, in_label):
        at = int(np.searchsorted(backward, last))
        if at < len(backward) and (
            window.step_of_event[backward[at]] == window.step_of_event[last]
        ):
            yield first, last, following, int(backward[at])


def _large_parts(window: Window, path: str) -> list[str]:
    """The modules right below one that have enough bytes at the peak to be looked at."""
    depth = path.count(".") + 1
    of_module = np.bincount(
        window.module[window.at_peak], weights=window.lives.size[window.at_peak]
    )
    bytes_of: Counter[str] = Counter()
    for name, nbytes in zip(window.owners.module.names, of_module.tolist(), strict=False):
        if name.startswith(f"{path}."):
            bytes_of[".".join(name.split(".")[: depth + 1])] += int(nbytes)
    return [part for part, nbytes in bytes_of.items() if window.share(nbytes) >= _LEAST_SHARE]


def _is_inside(path: str, modules: Sequence[str]) -> Bools:
    """Per name of a module: whether it is a path, or lies below it."""
    below = f"{path}."
    return np.array([f"{name}.".startswith(below) for name in modules], dtype=bool)


def _calling_frame(window: Window, rows: Ints, rows_read: Ints) -> tuple[Frame | None, bool]:
    """The innermost line of the program that nearly all ``rows``, and no ``rows_read``, share.

    One that calls the model, where there is one, and none within the model's own pass. Where all
    such lines are shared with those that are read, the innermost that calls it, and True.
    """
    others = {
        frame
        for stack in np.unique(window.lives.stack[rows_read])
        for frame in _user(window, int(stack))
    }
    sizes = np.bincount(window.lives.stack[rows], weights=window.lives.size[rows])
    of_frame: Counter[Frame] = Counter()
    for stack in np.flatnonzero(sizes).tolist():
        of_frame.update(dict.fromkeys(_user(window, stack), int(sizes[stack])))
    least = _NEARLY_ALL * float(sizes.sum())
    every = [frame for frame in _user(window, int(sizes.argmax())) if of_frame[frame] >= least]
    own = [frame for frame in every if frame not in others]
    outside = [frame for frame in own if not is_forward(frame)]
    calling = [frame for frame in every if not is_forward(frame)]
    if own or not calling:
        return next(iter(outside or own), None), False
    return calling[0], True


def _user(window: Window, stack: int) -> list[Frame]:
    frames = window.trace.tables.stack(stack)
    return [frame for frame in frames if frame_kind(frame.filename) is FrameKind.USER]


RULE = UnvisitedGraph()
