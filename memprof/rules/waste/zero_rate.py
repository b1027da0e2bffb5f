"""zero-rate: modules whose optimizer has a rate of 0 for them are trained for nothing."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from memprof.rules.case import Case
from memprof.rules.lifespan import FEWEST_STEPS
from memprof.rules.needless_graphs import NeedlessTraining, needless_training
from memprof.rules.rule import Advice, WasteRule
from memprof.source_code.idioms import optimizers_made
from memprof.source_code.program import Place, Program
from memprof.units import format_bytes
from memprof.views.window import Window

__all__ = ["RULE"]

_OF_A_GROUP = frozenset(("lr", "params"))
"""Keys of a group of parameters with a rate of its own."""


class ZeroRateRule(WasteRule[NeedlessTraining]):
    """A backbone is meant to be frozen by ``lr=0``, and everything is computed for it all the same.

    A schedule that begins with 0 has another rate to begin with, and is none.
    """

    name = "zero-rate"
    summary = "parameters with a learning rate of 0 have gradients, states and a graph"
    fixes = ("freeze_params", "no_grad")

    def matches(self, window: Window) -> Iterator[NeedlessTraining]:
        """What the modules of such groups have, where another module is trained."""
        if not window.unmoved or len(window.steps) < FEWEST_STEPS:
            return
        paths = window.owners.module.names
        modules = {at for at, path in enumerate(paths) if path in window.unmoved}
        match = needless_training(window, modules)
        if match is not None:
            yield match

    def title(self, match: NeedlessTraining) -> str:
        """Say whose they are."""
        return f"are {match.what} of {match.modules}, which every step multiplies by a rate of 0"

    def advice(self, match: NeedlessTraining, case: Case) -> Iterator[Advice]:
        """Freeze the parameters, and leave them to no optimizer; compute them without a graph."""
        optimizers = [place for _, place in optimizers_made(case.programs)]
        place = optimizers[0] if len(optimizers) == 1 else case.site
        place = _group_with_rate(case.programs) or place
        why = (
            f"A learning rate of 0 does not freeze {match.modules}: its gradients are computed and "
            f"kept, and what the optimizer needs for them, {format_bytes(match.nbytes)} in all. "
            "Say `requires_grad_(False)` of it, and give its parameters to no optimizer."
        )
        yield Advice("freeze_params", why, place)
        if match.graph:
            kept = f"{format_bytes(match.graph)} of its activations are kept for these gradients."
            yield Advice("no_grad", f"Or call it under `no_grad()`: {kept}", case.site)


def _group_with_rate(programs: Sequence[Program]) -> Place | None:
    """The first statement that makes a group with a rate of 0; else one with a computed rate.

    None where groups have other numbers as well: of these it is not known which is meant.
    """
    groups = [
        (place, rate)
        for program in programs
        for node in program.nodes
        if isinstance(node, ast.Dict)
        and (rate := _rate_of_group(node)) is not None
        and (place := program.place(node)) is not None
    ]
    zero = [place for place, rate in groups if isinstance(rate, ast.Constant) and rate.value == 0]
    if zero:
        return zero[0]
    is_computed = not any(isinstance(rate, ast.Constant) for _, rate in groups)
    return groups[0][0] if groups and is_computed else None


def _rate_of_group(node: ast.Dict) -> ast.expr | None:
    """What a group of parameters has as its rate; None for other dictionaries."""
    values = {
        key.value: value
        for key, value in zip(node.keys, node.values, strict=True)
        if isinstance(key, ast.Constant)
    }
    return values.get("lr") if values.keys() >= _OF_A_GROUP else None


RULE = ZeroRateRule()
