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
    """The first statement that makes a group of parameters with a rate of its own."""
    for program in programs:
        for node in program.nodes:
            keys = {key.value for key in _keys(node) if isinstance(key, ast.Constant)}
            place = program.place(node) if keys >= _OF_A_GROUP else None
            if place is not None:
                return place
    return None


def _keys(node: ast.AST) -> list[ast.expr | None]:
    return node.keys if isinstance(node, ast.Dict) else []


RULE = ZeroRateRule()
