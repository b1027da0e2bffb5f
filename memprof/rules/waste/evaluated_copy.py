"""evaluated-copy: a model is copied to be evaluated, which changes nothing of it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.program import Place, bound_names, called_name, calls_in, place_of
from memprof.source_code.scopes import reads_of
from memprof.trace import SURVIVOR_AGE, Category
from memprof.units import format_bytes
from memprof.views.window import Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.1
"""Of the peak, in one copy."""
_COPY = "deepcopy"
_SETTINGS = frozenset(("cpu", "eval", "float", "requires_grad_", "to"))
"""Methods of a model that are called of the copy, besides the copy itself."""
_METHOD_CALL = 2
"""Nodes around a name of which a method is called: the attribute, and the call."""
_CHANGING = ("add_", "backward", "copy_", "half", "lerp_", "load_state_dict", "mul_", "step")
"""Calls by which a copy may become something else than the model."""


@dataclass(frozen=True, slots=True, eq=False)
class EvaluatedCopy(Match):
    """What is copied."""

    model: str = ""


class EvaluatedCopyRule(WasteRule[EvaluatedCopy]):
    """`net = copy.deepcopy(model).eval()` in a function that computes a score."""

    name = "evaluated-copy"
    summary = "a model is copied to be evaluated"
    fixes = ("evaluate_itself",)

    def matches(self, window: Window) -> Iterator[EvaluatedCopy]:
        """Copies of parameters at the peak that are gone again in the same step."""
        if window.peak.event < 0:
            return
        lives = window.lives
        brief = ~window.has_owner & (window.freed_in - window.made_in < SURVIVOR_AGE)
        sizes = np.unique(lives.requested[window.category == Category.PARAMETER])
        brief &= (lives.alloc >= 0) & np.isin(lives.requested, sizes)
        for site in window.large_sites(brief & window.at_peak, _LEAST_SHARE):
            place = place_of(window.owners.sites.frames[site])
            model = _copied(place) if place is not None else ""
            if not model:
                continue
            every = brief & (window.site == site)
            there = every & window.at_peak
            yield EvaluatedCopy(
                row=window.largest(there),
                rows=np.flatnonzero(there),
                nbytes=window.bytes_of(there),
                saving=window.replayed(window.whole(np.flatnonzero(every))),
                model=model,
            )
            return

    def title(self, match: EvaluatedCopy) -> str:
        """Say what it is a copy of."""
        return f"are a copy of `{match.model}`, which is only called"

    def advice(self, match: EvaluatedCopy, case: Case) -> Iterator[Advice]:
        """Call the model itself."""
        why = (
            f"A copy of `{match.model}` takes {format_bytes(match.nbytes)}, and what is called of "
            f"it changes nothing: call `{match.model}.eval()`, the model itself without gradients, "
            f"and `{match.model}.train()` when that is done."
        )
        yield Advice("evaluate_itself", why, case.site, typed=f"{match.model}.eval()")


def _copied(place: Place) -> str:
    """What a statement copies, where its function calls the copy and does nothing else with it."""
    statement = place.statement
    copies = [one for one in calls_in(statement, _COPY) if one.args]
    names = [one for one in bound_names(statement) if isinstance(one, ast.Name)]
    if place.function is None or len(copies) != 1 or len(names) != 1:
        return ""
    if calls_in(place.function, *_CHANGING):
        return ""
    model = copies[0].args[0]
    reads = list(reads_of(place.scope, names[0].id))
    is_called = any(_is_called(load, around) for load, around in reads)
    if not is_called or not all(_is_called(*one) or _is_set(*one) for one in reads):
        return ""
    return ast.unparse(model) if isinstance(model, (ast.Name, ast.Attribute)) else ""


def _is_called(load: ast.expr, around: list[ast.AST]) -> bool:
    """Whether the copy is what a call calls."""
    parent = around[-1] if around else None
    return isinstance(parent, ast.Call) and parent.func is load


def _is_set(load: ast.expr, around: list[ast.AST]) -> bool:
    """Whether a method of the copy is called that leaves its values as they are."""
    if len(around) < _METHOD_CALL:
        return False
    method, call = around[-1], around[-2]
    is_method = isinstance(method, ast.Attribute) and method.value is load
    return is_method and called_name(call) in _SETTINGS


RULE = EvaluatedCopyRule()
