"""zero-rate: modules whose optimizer has a rate of 0 for them are trained for nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.lifespan import FEWEST_STEPS
from memprof.rules.needless_graphs import graph_for_nothing, without_graph
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.idioms import optimizers_made
from memprof.trace import Category, Phase
from memprof.units import format_bytes
from memprof.views.owners import common_module
from memprof.views.window import Window

__all__ = ["RULE"]


@dataclass(frozen=True, slots=True, eq=False)
class ZeroRate(Match):
    """Gradients and states of modules that no step changes, and the graph that is kept for them."""

    modules: str = ""
    """The modules, as a person would name them."""
    graph: int = 0
    """Bytes at the peak of activations that are kept for these gradients alone."""


class ZeroRateRule(WasteRule[ZeroRate]):
    """A backbone is meant to be frozen by ``lr=0``, and everything is computed for it all the same.

    A schedule that begins with 0 has another rate to begin with, and is none.
    """

    name = "zero-rate"
    summary = "parameters with a learning rate of 0 have gradients, states and a graph"
    fixes = ("freeze_params", "no_grad")

    def matches(self, window: Window) -> Iterator[ZeroRate]:
        """What the modules of such groups have, where another module is trained."""
        if not window.unmoved or len(window.steps) < FEWEST_STEPS:
            return
        paths = window.owners.module.names
        modules = {at for at, path in enumerate(paths) if path in window.unmoved}
        learns = np.isin(window.category, (Category.GRADIENT, Category.OPTIMIZER_STATE))
        trained = set(window.module[learns].tolist()) - modules - {0}
        of_modules = np.isin(window.module, list(modules))
        own = of_modules & (learns | (window.phase == Phase.BACKWARD))
        if not trained or not (own & learns).any():
            return
        graph = graph_for_nothing(window, modules, trained).rows
        at_peak = own & learns & window.at_peak
        at_peak[graph] = window.at_peak[graph]
        if not at_peak.any():
            return
        names = sorted(paths[module] for module in modules)
        around = common_module(names)
        inside = np.zeros(len(window.lives), dtype=bool)
        inside[graph] = True
        yield ZeroRate(
            row=window.main_site(inside if len(graph) else at_peak),
            rows=np.flatnonzero(at_peak),
            nbytes=window.bytes_of(at_peak),
            saving=window.replayed(without_graph(window, np.flatnonzero(own), graph)),
            modules=f"`{around or names[0]}`",
            graph=int(window.lives.size[graph[window.at_peak[graph]]].sum()),
        )

    def title(self, match: ZeroRate) -> str:
        """Say whose they are."""
        what = "the graph, gradients and states" if match.graph else "gradients and states"
        return f"are {what} of {match.modules}, which every step multiplies by a rate of 0"

    def advice(self, match: ZeroRate, case: Case) -> Iterator[Advice]:
        """Freeze the parameters, and leave them to no optimizer; compute them without a graph."""
        optimizers = [place for _, place in optimizers_made(case.programs)]
        place = optimizers[0] if len(optimizers) == 1 else case.site
        why = (
            f"A learning rate of 0 does not freeze {match.modules}: its gradients are computed and "
            f"kept, and what the optimizer needs for them, {format_bytes(match.nbytes)} in all. "
            "Say `requires_grad_(False)` of it, and give its parameters to no optimizer."
        )
        yield Advice("freeze_params", why, place)
        if match.graph:
            kept = f"{format_bytes(match.graph)} of its activations are kept for these gradients."
            yield Advice("no_grad", f"Or call it under `no_grad()`: {kept}", case.site)


RULE = ZeroRateRule()
