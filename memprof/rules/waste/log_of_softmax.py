"""log-of-softmax: a loss is computed by hand from probabilities, and each step of it is kept."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import numpy as np

from memprof.rules.case import Case
from memprof.rules.large_tensor import large_tensor
from memprof.rules.made_in_calls import spared_by_one_function
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.program import (
    Place,
    bound_names,
    called_name,
    calls_in,
    loaded_names,
    place_of,
)
from memprof.source_code.values import values_of
from memprof.units import format_bytes
from memprof.views.window import Window

__all__ = ["RULE"]

_FUSED = {"sigmoid": "logsigmoid", "softmax": "log_softmax"}
"""What computes the logarithm of the probabilities that a function returns."""
_SIMPLE = (ast.AnnAssign, ast.Assign, ast.AugAssign, ast.Expr, ast.Return)


class LogOfSoftmax(WasteRule[Match]):
    """`torch.log(logits.softmax(-1) + 1e-9)`: three tables are kept where one is needed."""

    name = "log-of-softmax"
    summary = "a logarithm is taken of probabilities, and both are kept for the backward pass"
    fixes = ("fused_loss",)

    def matches(self, window: Window) -> Iterator[Match]:
        """Of the tensors as large as the largest those that a line with such a logarithm made."""
        large = large_tensor(window)
        if large is None or not window.learns_after(int(window.lives.alloc[large.row])):
            return
        sites = window.owners.sites.frames
        for site in np.unique(window.site[large.alike & window.at_peak]).tolist():
            place = place_of(sites[site])
            if place is None or not _probabilities(place):
                continue
            made = np.flatnonzero(large.in_every_step & (window.site == site))
            row = int(made[window.at_peak[made]][-1])
            lines = _lines_of_loss(place)
            spared = spared_by_one_function(
                window,
                place.program.filename,
                lines,
                is_loss=True,
            )
            there = spared[window.at_peak[spared]]
            if not len(there):
                continue
            yield Match(
                row=row,
                rows=there,
                nbytes=int(window.lives.size[there].sum()),
                saving=window.replayed(window.whole(spared)),
            )
            return

    def title(self, match: Match) -> str:  # noqa: ARG002 - every match reads the same
        """Say what they are."""
        return "are the logarithm of probabilities, kept beside them for the backward pass"

    def advice(self, match: Match, case: Case) -> Iterator[Advice]:
        """Compute it from the logits in one go."""
        if case.site is None:
            return
        function = _probabilities(case.site)
        nbytes = format_bytes(match.nbytes)
        if function == "sigmoid":
            instead = "`F.binary_cross_entropy_with_logits` takes the logits, and keeps those alone"
        else:
            instead = "`F.cross_entropy` takes the logits and keeps one table"
        fused = _FUSED.get(function, "log_softmax")
        why = f"{nbytes} are made of probabilities: {instead} (and so does `F.{fused}`)."
        yield Advice("fused_loss", why, case.site)


def _probabilities(place: Place) -> str:
    """The function whose result a statement takes the logarithm of; empty for none."""
    for call in calls_in(place.statement, "log"):
        assert isinstance(call.func, ast.Attribute | ast.Name)
        is_method = isinstance(call.func, ast.Attribute) and not _is_torch(call.func.value)
        value = call.func.value if is_method and isinstance(call.func, ast.Attribute) else None
        operand = value or (call.args[0] if call.args else None)
        function = _made_by(place, operand)
        if function:
            return function
    return ""


def _lines_of_loss(place: Place) -> frozenset[int]:
    """The lines that make the probabilities, and those that compute with them in the function."""
    statements: list[ast.stmt] = [place.statement]
    names: set[str] = set()
    for node in ast.walk(place.scope):
        if isinstance(node, ast.Assign) and called_name(node.value) in _FUSED:
            names |= {one.id for one in bound_names(node) if isinstance(one, ast.Name)}
            statements.append(node)
    in_order = [node for node in ast.walk(place.scope) if isinstance(node, _SIMPLE)]
    for node in sorted(in_order, key=lambda one: one.lineno):
        if names & loaded_names(node) or node is place.statement:
            statements.append(node)
            names |= {one.id for one in bound_names(node) if isinstance(one, ast.Name)}
    return frozenset(
        line for one in statements for line in range(one.lineno, (one.end_lineno or one.lineno) + 1)
    )


def _is_torch(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("torch", "np", "numpy", "math")


def _made_by(place: Place, value: ast.expr | None) -> str:
    """``softmax`` or ``sigmoid``, where a value is its result, plus a small number perhaps."""
    if isinstance(value, ast.BinOp):  # `1 - p + eps`
        return _made_by(place, value.left) or _made_by(place, value.right)
    if value is not None and called_name(value) in ("clamp", "clip"):
        assert isinstance(value, ast.Call)
        value = value.func.value if isinstance(value.func, ast.Attribute) else None
        return _made_by(place, value)
    if isinstance(value, ast.Name):
        bound = [one for one in values_of(place, value.id, place.statement) if one is not None]
        value = bound[-1] if len(bound) == 1 else None
    name = called_name(value) if value is not None else ""
    return name if name in _FUSED else ""


RULE = LogOfSoftmax()
