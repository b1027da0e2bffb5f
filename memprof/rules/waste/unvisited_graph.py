"""unvisited-graph: a model's graph is kept beside a backward pass that does not go through it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.frame_kind import FrameKind, frame_kind
from memprof.trace import Category, Frame, Phase
from memprof.units import format_bytes
from memprof.views.window import Bools, Ints, Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.1
"""Of the peak, that the graph has."""
_NEARLY_ALL = 0.9
"""Of what a model saves in its forward passes: so much must outlast the backward pass. A result
that the program has in a variable outlasts it, too."""
_LEAST_READ = 0.1
"""Of all that is saved: so much must the backward pass free, else it was told to keep its graph."""
_LEAST_MODULES = 3
"""Modules that save something: fewer are a result that is used."""


@dataclass(frozen=True, slots=True, eq=False)
class Unvisited(Match):
    """A graph that no backward pass goes through."""

    frame: Frame | None = None
    """The innermost line of the program on the way to all of it, and to nothing that is read."""


class UnvisitedGraph(WasteRule[Unvisited]):
    """A reference model runs with gradients on, and only its result is detached."""

    name = "unvisited-graph"
    summary = "a model keeps activations that the backward pass does not read"
    fixes = ("no_grad",)
    yields_to = ("retained-graph", "evaluation-graph", "old-graphs")

    def matches(self, window: Window) -> Iterator[Unvisited]:
        """What a model saves before a backward pass, and has afterwards still.

        A backward pass frees what it reads, node by node.
        """
        saved, outlasts = _saved_and_outlasting(window)
        if not outlasts.any() or window.bytes_of(saved & ~outlasts) < _LEAST_READ * (
            window.bytes_of(saved)
        ):
            return
        roots = _roots(window)
        for root in np.unique(roots[outlasts & (roots > 0)]).tolist():
            of_root = saved & (roots == root)
            rows = np.flatnonzero(of_root & outlasts)
            modules = set(window.module[rows].tolist())
            if len(modules) < _LEAST_MODULES:
                continue
            if window.bytes_of(of_root & outlasts) < _NEARLY_ALL * window.bytes_of(of_root):
                continue
            other_models = saved & ~outlasts & (roots > 0) & (roots != root)
            frame = _own_frame(window, rows, np.flatnonzero(other_models))
            if frame is not None:
                rows = np.flatnonzero(outlasts & _made_under(window, frame))
            mask = np.zeros(len(window.lives), dtype=bool)
            mask[rows] = True
            at_peak = mask & window.at_peak
            if window.share(window.bytes_of(at_peak)) < _LEAST_SHARE:
                continue
            after = np.append(window.lives.alloc[rows[1:]], window.lives.alloc[rows[-1:]] + 1)
            yield Unvisited(
                row=window.main_site(at_peak),
                rows=rows,
                nbytes=window.bytes_of(at_peak),
                saving=window.replayed(window.ended_at(rows, after)),
                frame=frame,
            )

    def title(self, match: Unvisited) -> str:  # noqa: ARG002 - every match reads the same
        """Say what they are."""
        return "are activations of a model that the backward pass does not go through"

    def advice(self, match: Unvisited, case: Case) -> Iterator[Advice]:
        """Build no graph."""
        frame = match.frame
        place = case.place_at(frame.filename, frame.line) if frame is not None else case.site
        yield Advice(
            "no_grad",
            f"{format_bytes(match.nbytes)} are kept for a backward pass that does not read them: "
            "run this model under `torch.no_grad()`.",
            place,
        )


def _saved_and_outlasting(window: Window) -> tuple[Bools, Bools]:
    """What forward passes save in steps with a backward pass, and what of that outlasts it."""
    backward = np.flatnonzero(window.phase_of_event == Phase.BACKWARD)
    size = len(window.lives)
    saved, outlasts = np.zeros(size, dtype=bool), np.zeros(size, dtype=bool)
    if not len(backward):
        return saved, outlasts
    lives = window.lives
    activation = (window.category == Category.ACTIVATION) & (window.phase == Phase.FORWARD)
    # A pass of a later step may read it: of a generator, which learns after its discriminator.
    in_backward = np.append(window.phase_of_event == Phase.BACKWARD, np.zeros(1, dtype=bool))
    read_later = in_backward[np.minimum(lives.free, len(in_backward) - 1)]
    steps = window.step_of_event[backward]
    for step in np.unique(steps).tolist():
        of_step = backward[steps == step]
        first, last = int(of_step[0]), int(of_step[-1])
        mine = activation & (window.made_in == step) & (lives.alloc < first) & (lives.free > first)
        saved |= mine
        # what the window's end cuts off, nobody knows of
        saved &= ~(mine & (lives.free >= window.events))
        outlasts |= mine & (lives.free > last) & saved & ~read_later
    return saved, outlasts


def _roots(window: Window) -> Ints:
    """Per lifetime a number for the outermost module that made it; 0 for none."""
    names = window.owners.module.names  # the first stands for none
    index: dict[str, int] = {names[0]: 0}
    of_name = [index.setdefault(name.split(".")[0], len(index)) for name in names]
    roots: Ints = np.array(of_name, dtype=np.int64)[window.module]
    return roots


def _own_frame(window: Window, rows: Ints, read: Ints) -> Frame | None:
    """The innermost line of the program that nearly all ``rows`` share, and no ``read`` one has."""
    others = {
        frame
        for stack in np.unique(window.lives.stack[read])
        for frame in _user(window, int(stack))
    }
    sizes = np.bincount(window.lives.stack[rows], weights=window.lives.size[rows])
    of_frame: Counter[Frame] = Counter()
    for stack in np.flatnonzero(sizes).tolist():
        of_frame.update(dict.fromkeys(_user(window, stack), int(sizes[stack])))
    least = _NEARLY_ALL * float(sizes.sum())
    for frame in _user(window, int(sizes.argmax())):
        if frame not in others and of_frame[frame] >= least:
            return frame
    return None


def _made_under(window: Window, frame: Frame) -> Bools:
    """Per lifetime: whether that line of the program is on its stack."""
    of_stack = np.array(
        [frame in _user(window, stack) for stack in range(len(window.trace.tables.stacks))],
        dtype=bool,
    )
    made: Bools = of_stack[window.lives.stack]
    return made


def _user(window: Window, stack: int) -> list[Frame]:
    frames = window.trace.tables.stack(stack)
    return [frame for frame in frames if frame_kind(frame.filename) is FrameKind.USER]


RULE = UnvisitedGraph()
