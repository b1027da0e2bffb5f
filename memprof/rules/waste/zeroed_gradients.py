"""zeroed-gradients: gradients are computed, and the program sets them to 0 before each step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from memprof.rules.case import Case
from memprof.rules.lifespan import FEWEST_STEPS
from memprof.rules.needless_graphs import NeedlessTraining, needless_training
from memprof.rules.rule import Advice, WasteRule
from memprof.source_code.zeroed_gradients import ZeroedGradient, zeroed_gradients
from memprof.trace import Category
from memprof.units import format_bytes
from memprof.views.stacks import made_by_lines
from memprof.views.window import Window

__all__ = ["RULE"]


class ZeroedGradients(WasteRule[NeedlessTraining]):
    """`model.items.weight.grad.zero_()` in each step, between `backward()` and `step()`."""

    name = "zeroed-gradients"
    summary = "gradients are set to 0 before each step, and everything is computed for them"
    fixes = ("freeze_params", "no_grad")

    def matches(self, window: Window) -> Iterator[NeedlessTraining]:
        """What the modules have whose gradients the source empties, where others are trained."""
        if len(window.steps) < FEWEST_STEPS:
            return
        paths = window.owners.module.names
        lines_run = {(one.filename, one.line) for one in window.trace.tables.frames}
        for one in zeroed_gradients(window.programs):
            filename = one.place.program.filename
            if all((filename, line) not in lines_run for line in one.lines):
                continue  # it stands in a function that nobody called
            modules = {at for at, path in enumerate(paths) if _is_of(path, one)}
            modules = modules or _given_gradients(window, one)
            needless = needless_training(window, modules) if modules else None
            if needless is not None:
                yield replace(needless, zeroed=one)

    def title(self, match: NeedlessTraining) -> str:
        """Say whose they are."""
        return f"are {match.what} of {match.modules}, whose gradients are set to 0 before each step"

    def advice(self, match: NeedlessTraining, case: Case) -> Iterator[Advice]:
        """Freeze the parameters, and leave them to no optimizer."""
        why = (
            f"A gradient of 0 does not freeze {match.modules}: it is computed and kept, and what "
            f"the optimizer needs for it, {format_bytes(match.nbytes)} in all. Freeze it before "
            "the optimizer is made, and leave the line out."
        )
        assert match.zeroed is not None
        typed = f"{match.zeroed.expression}.requires_grad_(False)"
        yield Advice("freeze_params", why, match.zeroed.place, typed=typed)
        if match.graph:
            kept = f"{format_bytes(match.graph)} of its activations are kept for these gradients."
            yield Advice("no_grad", f"Or call it under `no_grad()`: {kept}", case.site)


def _given_gradients(window: Window, zeroed: ZeroedGradient) -> set[int]:
    """The modules whose gradients are made by the statement itself, ``p.grad = zeros_like(p)``.

    So they are known where the model has no name in the recording, as what is never called.
    """
    place = zeroed.place
    made = made_by_lines(window, place.program.filename, place.lines)
    made &= (window.category == Category.GRADIENT) & (window.module > 0)
    return set(np.unique(window.module[made]).tolist())


def _is_of(path: str, zeroed: ZeroedGradient) -> bool:
    """Whether a module is the one whose gradients are meant, or a part of it."""
    parts = tuple(path.split("."))
    own, wanted = parts[1:], zeroed.module  # a path begins with the class of the root
    if zeroed.with_parts:
        return any(own[at : at + len(wanted)] == wanted for at in range(len(own)))
    return own[-len(wanted) :] == wanted


RULE = ZeroedGradients()
