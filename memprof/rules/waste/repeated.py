"""repeated: a tensor is copied several times where a view would do."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import numpy as np

from memprof.rules.case import NO_FIGURE, Case
from memprof.rules.large_tensor import LargeTensor, large_tensor, made_by_module, match_of
from memprof.rules.rule import EVERY_OTHER, Advice, Match, WasteRule
from memprof.source_code.expanded_inputs import expanded_input
from memprof.source_code.program import Place, called_name, calls_in, own_calls, place_of
from memprof.source_code.values import values_of
from memprof.source_code.verbs import JOINING, REPEATING
from memprof.trace import Category
from memprof.views.window import Bools, Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.2
"""Of the peak, in what a model is given."""
_SHOWING = frozenset(("expand", "expand_as", "broadcast_to"))
"""Methods whose result shows the same values several times."""


_LISTS = (ast.List, ast.Tuple)
_ROWS_AND_ONE = 2
"""What `repeat` is given to show a row several times: ``(n, 1)``."""


class Repeated(WasteRule[Match]):
    """`x.repeat(…)` or `repeat_interleave` before an operation that would broadcast."""

    name = "repeated"
    summary = "a smaller tensor is repeated where a view would do"
    fixes = ("reshape", "chunk")
    yields_to = (*EVERY_OTHER, "grown-by-copy", "broadcast", "expanded-input")

    def matches(self, window: Window) -> Iterator[Match]:
        """The large tensor of the peak, made by a statement that repeats a tensor."""
        large = large_tensor(window)
        if large is not None and _repeats(large.place) and not _is_of_layers(window, large):
            yield match_of(window, large, large.in_every_step & _made_by_repeating(window))
            return
        given = _given_to_model(window)
        there = np.flatnonzero(given & window.at_peak)
        if len(there) and window.share(window.bytes_of(given & window.at_peak)) >= _LEAST_SHARE:
            yield Match(
                row=int(there[window.lives.size[there].argmax()]),
                rows=there,
                nbytes=int(window.lives.size[there].sum()),
                saving=window.replayed(window.whole(np.flatnonzero(given))),
            )

    def title(self, match: Match) -> str:  # noqa: ARG002 - every match reads the same
        """Say of what they come."""
        return "come of repeating a smaller tensor"

    def advice(self, match: Match, case: Case) -> Iterator[Advice]:  # noqa: ARG002
        """Let it broadcast, else go in parts."""
        why = (
            "A repetition copies: `expand`, or operands of shapes that broadcast, read the same "
            "values without."
        )
        if case.site is not None and _joins_repeated(case.site):
            why = (
                "Each part is repeated and then joined: a linear layer of joined parts is the sum "
                "of one for each part. Give each part its share of the weight before it is "
                "repeated, and let the sum broadcast."
            )
        elif case.site is not None and _copies_expanded(case.site):
            why = (
                "`expand` shows the same values several times and takes no memory; what copies it "
                "afterwards does. Leave that out, or let the operands broadcast."
            )
        typed = ""
        drawn = _drawn(case.site) if case.site is not None else None
        if drawn is not None:
            why = (
                "All rows are the same: draw all numbers from one of them, with replacement. "
                "(Without replacement `multinomial` makes another table as large, and a row has no "
                "number twice; with many to choose from that is rare anyway.)"
            )
            typed = drawn
        yield Advice("reshape", why, case.site, typed=typed)
        yield Advice("chunk", "Or work through it in parts.", case.site, saving=NO_FIGURE)


def _is_of_layers(window: Window, large: LargeTensor) -> bool:
    """Whether a module made it that is called with one input, shown to each sample."""
    is_given = large.place is not None and expanded_input(large.place) is not None
    return is_given and made_by_module(window, large.row)


def _repeats(place: Place | None) -> bool:
    if place is None:
        return False
    if own_calls(place.statement, *REPEATING) or _copies_expanded(place):
        return True
    return _joins_repeated(place)


def _drawn(place: Place) -> str | None:
    """The draw from one row, where a statement draws from repeated rows; empty if unknown how.

    ``torch.multinomial(p.repeat(n, 1), k)``. None where it does anything else.
    """
    for call in own_calls(place.statement, "multinomial"):
        receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
        is_method = called_name(receiver) in REPEATING if receiver is not None else False
        given = [receiver, *call.args] if is_method else [*call.args]
        rows = given[0] if given else None
        if not isinstance(rows, ast.Call) or called_name(rows) not in REPEATING:
            continue
        times = [ast.unparse(one) for one in rows.args]
        of_row = rows.func.value if isinstance(rows.func, ast.Attribute) else None
        is_plain = len(times) == _ROWS_AND_ONE and times[1] == "1" and len(given) > 1
        if of_row is None or not is_plain or given[1] is None:
            return ""
        row, count = ast.unparse(of_row), ast.unparse(given[1])
        drawn = f"{times[0]} * {count}"
        return f"torch.multinomial({row}, {drawn}, replacement=True).view({times[0]}, {count})"
    return None


def _joins_repeated(place: Place) -> bool:
    """True if all that is joined is repeated: ``cat([a.repeat(1, n), b.repeat(n, 1)])``."""
    for call in own_calls(place.statement, *JOINING):
        parts = call.args[0].elts if call.args and isinstance(call.args[0], _LISTS) else []
        if len(parts) > 1 and all(_is_repeated(place, part) for part in parts):
            return True
    return False


def _is_repeated(place: Place, part: ast.expr) -> bool:
    """True of a call that repeats, and of a name that nothing else is bound to."""
    values: list[ast.expr | None] = [part]
    if isinstance(part, ast.Name):
        values = list(values_of(place, part.id, place.statement))
    return bool(values) and all(
        value is not None and calls_in(value, *REPEATING, *_SHOWING) for value in values
    )


def _copies_expanded(place: Place) -> bool:
    """True if what `expand` shows several times is copied: ``mask.expand(…).contiguous()``."""
    return any(
        isinstance(call.func, ast.Attribute) and called_name(call.func.value) in _SHOWING
        for call in own_calls(place.statement, "contiguous", "clone")
    )


def _given_to_model(window: Window) -> Bools:
    """What a step makes by repeating, and hands to a model: a mask for each head, say."""
    given = (window.category == Category.INPUT) & (window.made_in >= 0)
    repeated: Bools = given & _made_by_repeating(window)
    return repeated


def _made_by_repeating(window: Window) -> Bools:
    """Per lifetime: whether its statement repeats a tensor."""
    sites = np.array([_repeats(place_of(frame)) for frame in window.owners.sites.frames])
    in_repeats: Bools = sites[window.site]
    return in_repeats


RULE = Repeated()
