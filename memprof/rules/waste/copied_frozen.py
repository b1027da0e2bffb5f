"""copied-frozen: copies of a model's parameters have those that nothing trains as well."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.lifespan import FEWEST_STEPS
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.rules.waste.copy_of_model import are_copies
from memprof.source_code.program import Place, called_name, place_of
from memprof.trace import Category
from memprof.units import format_bytes
from memprof.views.window import Bools, Ints, Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.1
"""Of the peak, in copies of what is frozen."""
_PARAMETERS = frozenset(("named_parameters", "parameters"))
_COPYING = frozenset(("clone", "deepcopy"))
_FILTER = "requires_grad"
_AVERAGE = "AveragedModel"
"""It copies the module that it is given by `copy.deepcopy`, and averages all of its parameters."""


@dataclass(frozen=True, slots=True, eq=False)
class FrozenCopies(Match):
    """How much is copied in all."""

    copied: int = 0
    """Bytes."""
    of_module: bool = False
    """A whole module is copied, as `torch.optim.swa_utils.AveragedModel` does."""


class CopiedFrozen(WasteRule[FrozenCopies]):
    """`[p.detach().clone() for p in model.parameters()]` of a model with a frozen part."""

    name = "copied-frozen"
    summary = "an average or a snapshot of a model has copies of parameters that nothing trains"
    fixes = ("copy_trained",)

    def matches(self, window: Window) -> Iterator[FrozenCopies]:
        """Copies of all parameters, by a statement that goes through them without a condition."""
        if len(window.steps) < FEWEST_STEPS or window.peak.event < 0:
            return
        requested = window.lives.requested
        for site in window.large_sites(window.at_peak, _LEAST_SHARE):
            place = place_of(window.owners.sites.frames[site])
            if place is None or not (_copies_all(place) or _averages(place)):
                continue
            # A validation with the average may have put the copies into the model.
            copies = window.at_peak & (window.site == site)
            parameters = window.at_peak & (window.category == Category.PARAMETER) & ~copies
            own = np.flatnonzero(copies)
            every = Counter(requested[parameters].tolist())
            if not every or not are_copies(Counter(requested[own].tolist()), every):
                continue
            rows = _alike(window, own, _frozen(window, parameters))
            nbytes = int(window.lives.size[rows].sum())
            if window.share(nbytes) < _LEAST_SHARE or len(rows) == len(own):
                continue
            yield FrozenCopies(
                row=int(rows[window.lives.size[rows].argmax()]),
                rows=rows,
                nbytes=nbytes,
                saving=window.replayed(window.whole(rows)),
                copied=int(window.lives.size[own].sum()),
                of_module=_averages(place),
            )
            return

    def title(self, match: FrozenCopies) -> str:  # noqa: ARG002 - every match reads the same
        """Say of what they are copies."""
        return "are copies of parameters that nothing trains"

    def advice(self, match: FrozenCopies, case: Case) -> Iterator[Advice]:
        """Copy what is trained."""
        if match.of_module:
            why = (
                f"{format_bytes(match.nbytes)} of the {format_bytes(match.copied)} that are copied "
                "are of frozen parameters, which stay as they are: average what is trained alone "
                "(`AveragedModel(model.part)`), or have the copy share the rest with the model."
            )
            yield Advice("copy_trained", why, case.site)
            return
        why = (
            f"{format_bytes(match.nbytes)} of the {format_bytes(match.copied)} that are copied are "
            "of frozen parameters, which stay as they are: copy those with `requires_grad` alone."
        )
        yield Advice("copy_trained", why, case.site, typed="if p.requires_grad")


def _frozen(window: Window, parameters: Bools) -> Ints:
    """Those of modules that have neither gradients nor states, where others do; else none."""
    of_training = np.isin(window.category, (Category.GRADIENT, Category.OPTIMIZER_STATE))
    trained = np.unique(window.module[of_training & (window.module > 0)])
    frozen = np.flatnonzero(parameters & ~np.isin(window.module, trained))
    is_known = (parameters & np.isin(window.module, trained)).any()
    return frozen if is_known else frozen[:0]


def _alike(window: Window, copies: Ints, frozen: Ints) -> Ints:
    """As many of the copies as there are frozen parameters of their sizes, the largest first."""
    left = Counter(window.lives.requested[frozen].tolist())
    rows: list[int] = []
    for row in copies.tolist():
        size = int(window.lives.requested[row])
        if left[size] > 0:
            left[size] -= 1
            rows.append(row)
    return np.array(rows, dtype=np.int64)


def _copies_all(place: Place) -> bool:
    """Whether a statement copies each of all parameters, and asks nothing of them."""
    nodes = list(ast.walk(place.statement))
    names = {called_name(node) for node in nodes if isinstance(node, ast.Call)}
    asks = any(isinstance(node, ast.Attribute) and node.attr == _FILTER for node in nodes)
    loops = [node.generators for node in nodes if isinstance(node, (ast.DictComp, ast.ListComp))]
    is_chosen = any(one.ifs for generators in loops for one in generators)
    return bool(loops and names & _PARAMETERS and names & _COPYING) and not (asks or is_chosen)


def _averages(place: Place) -> bool:
    """Whether a statement makes an average of a whole module."""
    return any(called_name(node) == _AVERAGE for node in ast.walk(place.statement))


RULE = CopiedFrozen()
