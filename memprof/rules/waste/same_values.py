"""same-values: several tensors have the same values, or one has them again and again."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.large_tensor import is_in_module
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.rules.values_read import Values, rows_of, values_by_stack_and_size
from memprof.source_code.idioms import keyword
from memprof.source_code.program import Place, calls_in, place_of
from memprof.trace import EMPTY, Category, Phase
from memprof.units import format_bytes
from memprof.views.window import Bools, Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.15
"""Of the peak, that is there again."""
_FEWEST = 3
"""Tensors of the same values: one copy is what many programs have."""
_FEWEST_REPEATS = 3
_REPEATS = "repeat_interleave"
_TRIANGLES = ("tril", "tril_", "triu", "triu_")
_TRAINED = frozenset((Category.PARAMETER, Category.GRADIENT, Category.OPTIMIZER_STATE))
_LEAST_FILLED = 0.02
"""Of the values, that are not zero: of fewer a sample does not tell one part from another."""


@dataclass(frozen=True, slots=True, eq=False)
class SameValues(Match):
    """How often the same is there."""

    times: int = 1
    is_within: bool = False
    """In one tensor, along its dimensions; else in several."""
    shape: tuple[int, ...] = ()


class SameValuesRule(WasteRule[SameValues]):
    """A causal mask in each head of each layer; a mask that is repeated for each head."""

    name = "same-values"
    summary = "several tensors have the same values, or one has them again and again"
    fixes = ("store_once", "reshape")
    yields_to = (
        *("repeated", "copy-of-model", "frozen-twin", "second-states", "mostly-zeros"),
        *("pairwise-differences", "stored-twice", "summed-products", "undivided-batch"),
        "unread-outputs",
        "bytes-as-floats",  # what the source tells; by their values alone they are none there
    )

    def matches(self, window: Window) -> Iterator[SameValues]:
        """What is there at the peak, by samples of its values."""
        for is_within in (False, True):
            match = _match(window, is_within=is_within)
            if match is not None:
                yield match

    def title(self, match: SameValues) -> str:
        """Say how often they are there."""
        if match.is_within:
            return f"are the same values {match.times:,} times over"
        return f"are {_tensors(match)}"

    def advice(self, match: SameValues, case: Case) -> Iterator[Advice]:
        """Keep one of them."""
        nbytes, remains = format_bytes(match.nbytes), 1 / match.times
        row = _row_read(case.site, match.times) if match.is_within else ""
        if row:
            why = (
                f"{nbytes} are rows that are there {match.times:,} times each: keep each once, and "
                f"read row `{row}` for the i-th, as a data set does in `__getitem__`."
            )
            left = 0.0 if _is_there_once(match, case.window) else remains
            yield Advice("store_once", why, case.site, remains=left)
            return
        if match.is_within:
            shape = " × ".join(f"{extent:,}" for extent in match.shape)
            once = (
                "with 1 as the length of that dimension. Operators broadcast by themselves, and "
                "`expand` shows a view."
                if _is_product(match.times, match.shape)
                else "and repeat them where they are read, a part at a time. Attention does so by "
                "itself for heads that share keys and values (`enable_gqa=True`)."
            )
            why = (
                f"{nbytes} ({shape}) are the same values {match.times:,} times over: keep them "
                f"once, {once}"
            )
            yield Advice("reshape", why, case.site, remains=remains)
            return
        why = f"{nbytes} are {_tensors(match)}: make it once, and hand that to all that read it."
        yield Advice("store_once", why, case.site, remains=remains)


def _row_read(place: Place | None, times: int) -> str:
    """Which row is the i-th, where a statement repeats the rows of a tensor; empty where not."""
    statement = place.statement if place is not None else None
    for call in calls_in(statement, _REPEATS) if statement is not None else ():
        along = keyword(call, "dim") or next(iter(call.args[1:]), None)
        if isinstance(along, ast.Constant) and along.value == 0:
            return f"i // {times}"
    return ""


def _is_there_once(match: SameValues, window: Window | None) -> bool:
    """Whether what was repeated is at the peak as well, by its size."""
    if window is None:
        return False
    requested = window.lives.requested
    once = window.at_peak & (requested * match.times == requested[match.row])
    return bool(once.any())


def _is_enlarged(place: Place | None) -> bool:
    """Whether a statement repeats values along two dimensions, as who enlarges an image does."""
    repeats = calls_in(place.statement, _REPEATS) if place is not None else ()
    return len(list(repeats)) > 1


def _is_of_layer(window: Window, key: tuple[int, int]) -> bool:
    """Whether a module that the program calls made it: of rows that are the same it makes such."""
    stack = window.trace.stack(key[0])
    line = next(iter(window.user_frames(stack)), None)
    return line is not None and is_in_module(line, stack)


def _differs(window: Window, key: tuple[int, int], times: int, values: Values) -> bool:
    """Whether a statement makes triangles, no two of whose rows are the same, whatever samples say.

    There may be as many of the same as the dimensions before those of a triangle are long.
    """
    frame = next(iter(window.user_frames(window.trace.stack(key[0]))), None)
    place = place_of(frame) if frame is not None else None
    is_triangle = place is not None and bool(calls_in(place.statement, *_TRIANGLES))
    return is_triangle and not _is_product(times, values.shape[:-2])


def _is_product(times: int, extents: Sequence[int]) -> bool:
    """Whether values that are there so often may be the same along whole dimensions."""
    products = {1}
    for extent in extents:
        products |= {one * extent for one in products}
    return times in products


def _tensors(match: SameValues) -> str:
    if match.times >= len(match.rows):
        return f"{len(match.rows)} tensors of the same values"
    return f"{len(match.rows)} tensors, {match.times} of which have the same values"


def _match(window: Window, *, is_within: bool) -> SameValues | None:
    known = values_by_stack_and_size(window)
    times = {
        key: values.repeats if is_within else values.same
        for key, values in known.items()
        if values.filled > (_LEAST_FILLED if is_within else 0)  # zeros are another matter
    }
    fewest = _FEWEST_REPEATS if is_within else _FEWEST
    own = {
        key: _own(window, key, known[key], is_within=is_within)
        for key, number in times.items()
        if number >= fewest
        and not (
            is_within and (_is_of_layer(window, key) or _differs(window, key, number, known[key]))
        )
    }
    if not own:
        return None
    there = np.logical_or.reduce(list(own.values())) & window.at_peak
    recorded = there & (window.lives.stack != EMPTY)
    if not recorded.any():
        return None
    row = window.main_site(recorded)
    key = int(window.lives.stack[row]), int(window.lives.requested[row])
    if is_within:  # keys and values of one cache, whatever they have come to
        alike = [
            one
            for one in own
            if times[one] == times[key] and _is_longer(known[one].shape, known[key].shape)
        ]
        repeated = np.logical_or.reduce([own[one] for one in alike])
        there &= repeated
        # What is the same along whole dimensions is an operand that broadcasts, in this size.
        is_operand = _is_product(times[key], known[key].shape)
        every = repeated if is_operand else _of_any_size(window, repeated)
    else:
        there &= window.lives.requested == key[1]
        every = there
    nbytes = window.bytes_of(there)
    if window.share(nbytes * (1 - 1 / times[key])) < _LEAST_SHARE:
        return None
    return SameValues(
        row=row,
        rows=np.flatnonzero(there),
        nbytes=nbytes,
        saving=window.replayed(window.whole(np.flatnonzero(every))),
        times=times[key],
        is_within=is_within,
        shape=known[key].shape,
        # what is enlarged so on purpose, as images are, is read as it is
        tentative=is_within and _is_enlarged(place_of(window.frame_of(row))),
    )


def _own(window: Window, key: tuple[int, int], values: Values, *, is_within: bool) -> Bools:
    """What a stack made in a size, but for what training computes with.

    Layers whose weights are zero as training begins return what they are given, or the same for
    all. A mask of one byte a value is nothing that they return, nor is what comes of no weight and
    has few different values, as a bias for what is padded.
    """
    excluded = set(_TRAINED)
    if is_within:
        excluded.add(Category.INPUT)
    if values.item_bytes != 1 and not (values.are_graphless and values.distinct):
        excluded.add(Category.ACTIVATION)
    own = rows_of(window, *key) & ~np.isin(window.category, tuple(excluded))
    mask: Bools = own & (window.phase != Phase.BACKWARD)
    return mask


def _is_longer(shape: Sequence[int], other: Sequence[int]) -> bool:
    """Whether two shapes are the same but for one length, as of a cache that tokens came to."""
    if len(shape) != len(other):
        return False
    return sum(one != two for one, two in zip(shape, other, strict=True)) <= 1


def _of_any_size(window: Window, rows: Bools) -> Bools:
    """These, and what their stacks made in other sizes, not each of which was looked at.

    As a cache is that is joined anew with every token.
    """
    lives = window.lives
    stacks = np.setdiff1d(lives.stack[rows], EMPTY)
    alike = np.isin(lives.stack, stacks) & np.isin(window.category, window.category[rows])
    every: Bools = rows | (alike & (window.phase != Phase.BACKWARD))
    return every


RULE = SameValuesRule()
