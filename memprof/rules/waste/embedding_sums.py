"""embedding-sums: a row is looked up for each index, and only sums of rows are read."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.program import Place, called_name, own_calls, place_of
from memprof.source_code.reductions import reductions_of, summed_indices
from memprof.trace import Phase
from memprof.units import format_bytes
from memprof.views.stacks import made_through
from memprof.views.window import Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.25
"""Of the peak, in looked up rows or in gradients of them."""
_LAYER = ("/torch/nn/modules/sparse.py", "/torch/nn/functional.py")
_ADDING = frozenset(("mean", "sum"))
_OF_INDICES = (["1"], ["-2"], ["(1,)"])
"""The dimension of what one row of indices looks up."""


@dataclass(frozen=True, slots=True, eq=False)
class SummedRows(Match):
    """The reduction, as written, and which one it is."""

    text: str = ""
    mode: str = "mean"


class EmbeddingSums(WasteRule[SummedRows]):
    """`self.items(history).mean(dim=1)`: a user is the mean of two hundred items."""

    name = "embedding-sums"
    summary = "rows of an embedding are looked up one by one, and only their sums are read"
    fixes = ("embedding_bag",)

    def matches(self, window: Window) -> Iterator[SummedRows]:
        """Rows looked up at a line that sums them, and gradients as large as these."""
        if window.peak.event < 0:
            return
        lives = window.lives
        is_backward = window.phase == Phase.BACKWARD
        looked_up = made_through(window, lambda frame: frame.filename.endswith(_LAYER))
        looked_up &= ~is_backward & ~window.has_owner & (lives.alloc >= 0)
        for site in np.unique(window.site[looked_up]).tolist():
            rows = looked_up & (window.site == site)
            rows &= lives.requested * 2 >= lives.requested[rows].max(initial=0)
            place = place_of(window.owners.sites.frames[site])
            path = window.module_name(int(np.flatnonzero(rows)[0]))
            reduction = _reduction(place, path) if place is not None else None
            if place is None or reduction is None:
                continue
            sizes = np.unique(lives.requested[rows])
            gradients = is_backward & ~window.has_owner & np.isin(lives.requested, sizes)
            gradients &= np.isin(window.origin_site, _sites_of(window, site, place, reduction))
            every = np.flatnonzero(rows | gradients)
            there = every[window.at_peak[every]]
            nbytes = int(lives.size[there].sum())
            if window.share(nbytes) < _LEAST_SHARE:
                continue
            yield SummedRows(
                row=int(np.flatnonzero(rows)[-1]),
                rows=there,
                nbytes=nbytes,
                saving=window.replayed(window.whole(every)),
                text=ast.unparse(reduction),
                mode="mean" if called_name(reduction) == "mean" else "sum",
            )
            return

    def title(self, match: SummedRows) -> str:
        """Say what is read of them."""
        return f"are rows of an embedding or their gradients, of which only `{match.text}` is read"

    def advice(self, match: SummedRows, case: Case) -> Iterator[Advice]:
        """Have one function look up and add."""
        why = (
            f"{format_bytes(match.nbytes)} have a row for each index. `nn.EmbeddingBag` adds rows "
            "up as it reads them, and has no gradient for each; weights or a mask go in as "
            '`per_sample_weights` (with `mode="sum"`).'
        )
        typed = f'nn.EmbeddingBag(…, mode="{match.mode}")'
        yield Advice("embedding_bag", why, case.site, typed=typed)


def _sites_of(window: Window, site: int, place: Place, reduction: ast.Call) -> list[int]:
    """The lines from which a gradient of the rows may come: of the lookup, and of the reduction."""
    frames = window.owners.sites.frames
    lines = {frames[site].line, reduction.lineno}
    return [
        at
        for at, frame in enumerate(frames)
        if frame.filename == place.program.filename and frame.line in lines
    ]


def _reduction(place: Place, path: str) -> ast.Call | None:
    """The sum or mean over its indices that is all that is read of what a statement looks up.

    ``path`` is that of the layer; one that is no part of a model may be called anything.
    """
    for call in _lookups(place, path):
        if called_name(call) in _ADDING:
            continue
        calls = reductions_of(place, call)
        if calls and all(one is not None and _adds_indices(one) for one in calls):
            return calls[0]
    return None


def _lookups(place: Place, path: str) -> list[ast.Call]:
    """The calls of a statement that may be of a layer: of its name, or of an item of its list."""
    around, _, name = path.rpartition(".")
    calls = own_calls(place.statement)
    if not around:
        return calls
    container = around.rpartition(".")[2]
    names = {name, "embedding"} | _items_of(place, container)
    return [
        call
        for call in calls
        if called_name(call) in names
        or (isinstance(call.func, ast.Subscript) and _reads(call.func.value, container))
    ]


def _items_of(place: Place, container: str) -> set[str]:
    """Names that a loop or a comprehension around a statement binds to what a list has."""
    loops = [one for one in place.around if isinstance(one, (ast.For, ast.AsyncFor))]
    inside = [one for one in ast.walk(place.statement) if isinstance(one, ast.comprehension)]
    return {
        target.id
        for loop in (*loops, *inside)
        if _reads(loop.iter, container)
        for target in ast.walk(loop.target)
        if isinstance(target, ast.Name)
    }


def _reads(value: ast.expr, attribute: str) -> bool:
    """Whether an expression reads an attribute or a variable of a name."""
    return any(
        getattr(node, "attr", "") == attribute or getattr(node, "id", "") == attribute
        for node in ast.walk(value)
    )


def _adds_indices(call: ast.Call) -> bool:
    if called_name(call) == "einsum":
        return summed_indices(call) == (-2,)
    if called_name(call) not in _ADDING:
        return False
    is_method = isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) != "torch"
    given = [one.value for one in call.keywords if one.arg == "dim"]
    given = given or (call.args[:1] if is_method else call.args[1:2])
    return [ast.unparse(one) for one in given] in _OF_INDICES


RULE = EmbeddingSums()
