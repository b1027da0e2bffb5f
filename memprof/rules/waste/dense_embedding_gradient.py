"""dense-embedding-gradient: the gradient of a whole table, of which a step looks up few rows."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from memprof.rules.case import Case
from memprof.rules.large_tensor import is_in_module
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.program import Place, place_of
from memprof.trace import EMPTY, Category, Phase
from memprof.units import format_bytes, format_percent
from memprof.views.stacks import made_through
from memprof.views.window import Bools, Ints, Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.15
"""Of the peak, with all such gradients: a language model's table is a small part of it, and mostly
tied to its head."""
_MOST_LOOKED_UP = 0.1
"""Of the table's rows, in any step; of so many tables as a step makes gradients of one, as each
lookup has its own."""
_LAYER = "/torch/nn/modules/sparse.py"
_FUNCTIONS = "/torch/nn/functional.py"
_LOOKING_UP = ("embedding", "embedding_bag")


@dataclass(frozen=True, slots=True, eq=False)
class DenseGradient(Match):
    """How much of the table is looked up."""

    looked_up: float = 0.0
    """Share of its bytes, in the step that looks up the most."""
    count: int = 1
    """Gradients at the peak."""
    by_function: bool = False
    """The program looks the rows up itself, without a layer of torch's."""


class DenseEmbeddingGradient(WasteRule[DenseGradient]):
    """`nn.Embedding(users, 64)` of millions of rows, of which a batch has a few hundred."""

    name = "dense-embedding-gradient"
    summary = "an embedding has a gradient for every row, and a step looks up few"
    fixes = ("sparse_gradient",)

    def matches(self, window: Window) -> Iterator[DenseGradient]:
        """All tables whose gradients are at the peak together, by what their lookups return."""
        if window.peak.event < 0:
            return
        tables = [*_tables(window, _of_layers(window), by_layers=True)]
        functions = _of_functions(window)
        own = [*_tables(window, functions, by_layers=False)] if functions.any() else []
        tables += own
        rows = np.array([row for one in tables for row in one.there], dtype=np.int64)
        nbytes = int(window.lives.size[rows].sum())
        if not len(rows) or window.share(nbytes) < _LEAST_SHARE:
            return
        alike = np.concatenate([one.alike for one in tables])
        made = [row for one in tables for row in one.made]
        at = made or rows.tolist()
        if len(own) == len(tables):
            at = np.flatnonzero(functions & (window.lives.stack != EMPTY)).tolist() or at
        yield DenseGradient(
            row=max(at, key=lambda row: int(window.lives.size[row])),
            rows=rows,
            nbytes=nbytes,
            saving=window.replayed(window.whole(alike)),
            looked_up=max(one.share for one in tables),
            count=len(rows),
            by_function=len(own) == len(tables),
        )

    def title(self, match: DenseGradient) -> str:
        """Say how little of the table is looked up."""
        share = format_percent(match.looked_up, 1.0)
        what = "a table" if match.by_function else "an embedding"
        of = f"the gradient of {what}"
        if match.count > 1:
            of = f"{match.count} gradients of {'tables' if match.by_function else 'embeddings'}"
        return f"are {of}, of whose rows a step looks up {share} at most"

    def advice(self, match: DenseGradient, case: Case) -> Iterator[Advice]:
        """Have a gradient for the rows that were looked up."""
        why = (
            f"{format_bytes(match.nbytes)} are zeros for rows that no index names: with "
            "`sparse=True` the gradient has the rows that were looked up (for SGD, Adagrad and "
            "SparseAdam)."
        )
        typed = "torch.nn.functional.embedding(index, table, sparse=True)"
        yield Advice("sparse_gradient", why, case.site, typed=typed if match.by_function else "")


def _of_layers(window: Window) -> Bools:
    """What calls of `nn.Embedding` return."""
    through = made_through(window, lambda frame: _LAYER in frame.filename.replace("\\", "/"))
    of_layers: Bools = through & (window.phase == Phase.FORWARD)
    return of_layers


def _of_functions(window: Window) -> Bools:
    """What the program looks up itself: by `F.embedding`, or an index of a parameter.

    The latter are lines whose backward pass makes something as large as a parameter.
    """
    through = made_through(
        window,
        lambda frame: (
            frame.filename.replace("\\", "/").endswith(_FUNCTIONS) and frame.name in _LOOKING_UP
        ),
    )
    of_layers = _of_layers(window)
    lines = {
        frame
        for row in np.flatnonzero(_gradients(window) & window.at_peak).tolist()
        if (frame := window.origin_of(row)) is not None and _indexes(place_of(frame))
    }
    at_lines = np.array([one in lines for one in window.owners.sites.frames])[window.site]
    # A line may call a module as well: what that makes is no lookup.
    stacks = np.unique(window.lives.stack[at_lines]).tolist()
    frames = {stack: window.trace.stack(stack) for stack in stacks}
    by_modules = [
        stack
        for stack in stacks
        if any(line in frames[stack] and is_in_module(line, frames[stack]) for line in lines)
    ]
    at_lines &= ~np.isin(window.lives.stack, by_modules)
    of_functions: Bools = (through | at_lines) & (window.phase == Phase.FORWARD) & ~of_layers
    return of_functions


def _gradients(window: Window) -> Bools:
    """What a backward pass makes as large as a parameter, and as much of the peak as matters."""
    lives = window.lives
    sizes = lives.requested[window.category == Category.PARAMETER]
    large = lives.size >= _LEAST_SHARE / 10 * window.peak.bytes
    gradients: Bools = (window.phase == Phase.BACKWARD) & large & np.isin(lives.requested, sizes)
    return gradients


def _indexes(place: Place | None) -> bool:
    """Whether a statement takes rows of an attribute by an index that is no slice or number."""
    return place is not None and any(
        isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Attribute)
        and isinstance(node.slice, (ast.Name, ast.Attribute, ast.Call, ast.Subscript))
        for node in ast.walk(place.statement)
    )


class _Table(NamedTuple):
    """A table of which few rows are looked up."""

    there: list[int]
    """Its gradients at the peak."""
    alike: Ints
    """And in every step."""
    made: list[int]
    """The table itself, where the recording has it made."""
    share: float
    """Of its bytes, that the step looks up which looks up the most."""


def _learned(window: Window, rows: Ints) -> Ints:
    """The lookups that graphs keep: an evaluation, of all rows perhaps, makes no gradient."""
    learned: Ints = rows[window.category[rows] == Category.ACTIVATION]
    return learned if len(learned) else rows


def _tables(window: Window, looked_up: Bools, *, by_layers: bool) -> Iterator[_Table]:
    """The tables of modules in which something is looked up, each with its gradients."""
    lives = window.lives
    backward = window.phase == Phase.BACKWARD
    parameters = window.category == Category.PARAMETER
    sizes: list[tuple[int, int]] = []
    for module in np.unique(window.module[looked_up]).tolist():
        own = np.unique(lives.requested[parameters & (window.module == module)])
        of_gradients = lives.requested[backward & (window.module == module)]
        both = np.intersect1d(own, of_gradients) if len(own) else of_gradients[:0]
        largest = int(of_gradients.max(initial=0))
        sizes += [(module, int(one)) for one in both.tolist() or [largest]]
    lines = {window.frame_of(row) for row in np.flatnonzero(looked_up).tolist()}
    for module, size in sizes:
        of_gradient = backward & (window.module == module) & (lives.requested == size)
        at_peak = np.flatnonzero(of_gradient & window.at_peak)
        origins = {window.origin_of(row) for row in at_peak.tolist()} - {None}
        rows = np.flatnonzero(looked_up & (window.module == module))
        rows = _learned(window, rows) if by_layers else rows
        share = window.most_in_a_step(rows, lives.requested[rows]) / max(1, size)
        of_size = np.flatnonzero(parameters & (lives.requested == size))
        # A head, perhaps, whose gradient is dense, is as large.
        of_modules = [one for one, of in sizes if of == size]
        is_tied = not np.isin(window.module[of_size], of_modules).all()
        # One table may serve both, and the head's gradient of it is made where the head is.
        elsewhere = backward & ~np.isin(window.module, of_modules)
        is_tied |= bool((elsewhere & (lives.requested == size)).any())
        made = window.made_in[of_gradient & (window.made_in >= 0)]
        lookups = int(np.bincount(made).max()) if len(made) else 1
        if not len(at_peak) or share > _MOST_LOOKED_UP * lookups or is_tied:
            continue
        if origins <= lines:
            yield _Table(
                at_peak.tolist(),
                np.flatnonzero(of_gradient),
                of_size[lives.alloc[of_size] >= 0].tolist(),
                share,
            )


RULE = DenseEmbeddingGradient()
