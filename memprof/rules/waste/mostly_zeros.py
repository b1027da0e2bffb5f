"""mostly-zeros: tensors that stay are zeros for the most part, by samples of their values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

import numpy as np

from memprof.rules.case import Case
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.rules.values_read import Values, rows_of, values_by_stack_and_size
from memprof.source_code.size_statement import length_given_at, size_statement
from memprof.trace import EMPTY, SURVIVOR_AGE, Category
from memprof.units import format_bytes
from memprof.views.window import Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.15
"""Of the peak."""
_MOST_REMAINS = 0.5
"""Of the bytes, after the change: else it is hardly worth it."""
_FEWEST_PLACES = 16
"""Along a dimension: a shorter one is no length that somebody chose."""
_MOST_DIMENSIONS = 3
"""Of what is kept by its indices: of images fewer bytes a value do, see `bytes-as-floats`."""
_INDEX_BYTES = 8
_FAR_LESS = 4
"""Times as many places as were ever filled, where each tensor is soon replaced by a copy, …"""
_FEWEST_BEGUN, _COPIED_TIMES = 4, 2
"""… steps that begin with an empty one, and copies of each."""
_IN_USE = frozenset(
    (Category.PARAMETER, Category.GRADIENT, Category.OPTIMIZER_STATE, Category.ACTIVATION)
)
"""What training computes with: that it is zero now does not mean that it stays so."""


class _Pattern(Enum):
    """How zeros lie among the other values."""

    TAIL = "right_size"
    """Behind a place along a dimension that no line reaches, …"""
    PADDING = "pad_to_longest"
    """… or behind each line's own."""
    ONES = "class_indices"
    """All others are the same value."""
    SCATTERED = "sparse_matrix"


_BY_INDICES = (_Pattern.ONES, _Pattern.SCATTERED)


@dataclass(frozen=True, slots=True, eq=False)
class MostlyZeros(Match):
    """How the zeros lie, and how few other values there are."""

    pattern: _Pattern = _Pattern.SCATTERED
    values: Values | None = None
    """Those of the tensor that stands for all."""
    remains: float = 0.0
    """Share of the bytes that the change leaves."""


class MostlyZerosRule(WasteRule[MostlyZeros]):
    """A cache for 2,048 positions of which 60 are used, a one-hot corpus, a dense adjacency."""

    name = "mostly-zeros"
    summary = "tensors that stay are zeros for the most part"
    fixes = ("right_size", "pad_to_longest", "class_indices", "sparse_matrix")
    yields_to = (
        *("dense-adjacency", "dense-detour", "dense-edge-labels", "diagonal-matrix"),
        *("kept-one-hot", "one-hot", "padded-corpus", "unread-buffer"),
    )

    def matches(self, window: Window) -> Iterator[MostlyZeros]:
        """What is there at the peak, stays, and was as full when half the steps were over."""
        lives = window.lives
        known = values_by_stack_and_size(window)
        own = ~np.isin(window.category, tuple(_IN_USE))
        rows = {key: rows_of(window, *key) & own for key in known}
        kinds: dict[tuple[int, int], tuple[_Pattern, float]] = {}
        for key, one in known.items():
            are_several = bool(np.count_nonzero(rows[key] & window.at_peak) > 1)
            pattern_of = _kind(one, dimensions=len(one.shape) + are_several)
            if pattern_of is not None:
                kinds[key] = pattern_of
        lasting = window.stays | (window.freed_in - window.made_in > SURVIVOR_AGE)
        settled = np.zeros(len(lives), bool)
        for key in kinds:
            if known[key].is_settled:
                settled |= rows[key]
        settled &= window.at_peak & lasting & (lives.stack != EMPTY)
        is_settled = bool(settled.any())
        main = window.main_site(settled) if is_settled else _begun_anew(window, known, kinds)
        if main < 0:
            return
        main_key = int(lives.stack[main]), int(lives.requested[main])
        pattern, remains = kinds[main_key]
        values = known[main_key] if is_settled else _fullest(known, kinds, known[main_key])
        if not is_settled:
            remains = values.used / values.extent
        every = np.zeros(len(lives), bool)
        for key, (kind, _) in kinds.items():
            if kind is not pattern:
                continue
            # Indices do for all of them, and for what they were made of; of others by their shape.
            if pattern in _BY_INDICES or known[key].shape == known[main_key].shape:
                every |= rows[key]
            else:
                every |= rows[key] & (window.site == window.site[main])
        there = np.flatnonzero(every & window.at_peak)
        nbytes = int(lives.size[there].sum())
        if window.share(nbytes) < _LEAST_SHARE:
            return
        yield MostlyZeros(
            row=main,
            rows=there,
            nbytes=nbytes,
            saving=window.replayed(window.whole(np.flatnonzero(every))),
            pattern=pattern,
            values=values,
            remains=remains,
        )

    def title(self, match: MostlyZeros) -> str:
        """Say how the zeros lie."""
        values = match.values
        assert values is not None
        if match.pattern is _Pattern.TAIL:
            used = f"{values.used:,} were seen filled"
            return f"are tensors of {values.extent:,} places, of which {used}"
        if match.pattern is _Pattern.PADDING:
            return (
                f"are padded to {values.extent:,} places of which {values.mean_used:,.0f} are "
                "filled on average"
            )
        return f"are zeros but for {_percent(values.filled)} of their values"

    def advice(self, match: MostlyZeros, case: Case) -> Iterator[Advice]:
        """Keep what is not zero."""
        values = match.values
        assert values is not None
        nbytes = format_bytes(match.nbytes)
        place = case.site
        if match.pattern is _Pattern.TAIL:
            why = (
                f"{nbytes} are made for {values.extent:,} places along dimension {values.dim}, and "
                f"no look saw more than {values.used:,} of them filled: make them as long as what "
                "is put in, and longer where that is not enough."
            )
            given = length_given_at(place, values.dim, case.everywhere)
            place = given or size_statement(place) or place
        elif match.pattern is _Pattern.PADDING:
            why = (
                f"{nbytes} are padded along dimension {values.dim}: keep each entry as long as it "
                "is, and pad those of a batch to the longest among them."
            )
        elif match.pattern is _Pattern.ONES:
            why = (
                f"Of {nbytes} all but {_percent(values.filled)} are zeros, and the others are the "
                "same value: keep the indices of those, and make the rows of a batch of them."
            )
        else:
            why = (
                f"Of {nbytes} all but {_percent(values.filled)} are zeros: keep the others with "
                "their indices, `torch.sparse_coo_tensor(indices, values, shape)`, and multiply by "
                "that, or make the rows of a batch of it."
            )
        yield Advice(match.pattern.value, why, place, remains=match.remains)


def _fullest(
    known: Mapping[tuple[int, int], Values],
    kinds: Mapping[tuple[int, int], tuple[_Pattern, float]],
    values: Values,
) -> Values:
    """Of what has the same shape and is empty at its end, that with the most places filled."""
    alike = (known[key] for key, (kind, _) in kinds.items() if kind is _Pattern.TAIL)
    return max((one for one in alike if one.shape == values.shape), key=lambda one: one.used)


def _begun_anew(
    window: Window,
    known: Mapping[tuple[int, int], Values],
    kinds: Mapping[tuple[int, int], tuple[_Pattern, float]],
) -> int:
    """A tensor of many places, of which few are filled until the next is made; -1 for none.

    Copies of it take its place in every step, as where beams are put in order, and no single one
    stays: it is known from the several that were begun with.
    """
    tails = [key for key, (kind, _) in kinds.items() if kind is _Pattern.TAIL]
    best, most = -1, 0
    for key in tails:
        rows = np.flatnonzero(rows_of(window, *key))
        copies = [
            np.flatnonzero(rows_of(window, *other))
            for other in tails
            if other != key and known[other].shape == known[key].shape
        ]
        there = sum(int(np.count_nonzero(window.at_peak[one])) for one in copies)
        is_short = all(
            _FAR_LESS * known[one].used <= known[one].extent
            for one in tails
            if known[one].shape == known[key].shape
        )
        is_begun = len(np.unique(window.made_in[rows])) >= _FEWEST_BEGUN
        is_copied = any(len(one) >= _COPIED_TIMES * len(rows) for one in copies)
        if is_begun and is_copied and is_short and there > most:
            best, most = int(rows[0]), there
    return best


def _kind(values: Values, dimensions: int) -> tuple[_Pattern, float] | None:
    """How the zeros of a tensor lie, and the share of its bytes that the change leaves.

    ``dimensions`` are those of all that are like it: several are as one tensor of one more.
    """
    extent, filled = values.extent, values.filled
    if extent >= _FEWEST_PLACES and values.used <= _MOST_REMAINS * extent:
        return _Pattern.TAIL, values.used / extent
    is_mask = values.are_ones  # a triangle of ones is no padding
    if extent >= _FEWEST_PLACES and not is_mask and values.mean_used <= _MOST_REMAINS * extent:
        return _Pattern.PADDING, values.mean_used / extent
    item_bytes = values.item_bytes
    if not filled or not item_bytes or dimensions > _MOST_DIMENSIONS:
        return None  # nobody has begun to fill it, or they are images
    if values.are_ones:
        remains = filled * _INDEX_BYTES / item_bytes
        kind = _Pattern.ONES
    else:
        remains = filled * (_INDEX_BYTES * min(2, len(values.shape)) + item_bytes) / item_bytes
        kind = _Pattern.SCATTERED
    if kind is _Pattern.ONES and values.shape == values.shape[::-1] and len(values.shape) > 1:
        kind = _Pattern.SCATTERED  # pairs of the same things
    return (kind, remains) if remains <= _MOST_REMAINS else None


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share >= 0.001 else "less than 0.1 %"


RULE = MostlyZerosRule()
