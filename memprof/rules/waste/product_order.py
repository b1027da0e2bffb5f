"""product-order: a large product of two small matrices is made, only to be multiplied again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.large_tensor import large_tensor, made_by_its_statement, match_of
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.product_orders import OtherOrder, other_order
from memprof.units import format_bytes
from memprof.views.window import Window

__all__ = ["RULE"]

_LEAST_RATIO = 3
"""Times as large as any other tensor there: so large are both factors and the last product."""


@dataclass(frozen=True, slots=True, eq=False)
class Reordered(Match):
    """The product, and the other order."""

    order: OtherOrder | None = None


class ProductOrder(WasteRule[Reordered]):
    """`(q @ k.T) @ v` without a softmax: n · n values, where `q @ (k.T @ v)` has d · d."""

    name = "product-order"
    summary = "a large product of small matrices is made to be multiplied again"
    fixes = ("apply_factors",)
    yields_to = ("merged-adapters",)
    other_operators = True

    def matches(self, window: Window) -> Iterator[Reordered]:
        """The large tensor of the peak, a product that is only a factor of others."""
        large = large_tensor(window)
        if large is None or large.place is None or not made_by_its_statement(window, large.row):
            return
        lives = window.lives
        others = window.at_peak & ~large.alike
        if _LEAST_RATIO * lives.requested[others].max(initial=0) > lives.requested[large.row]:
            return
        order = other_order(large.place)
        if order is None:
            return
        match = match_of(window, large, large.in_every_step)
        yield Reordered(
            row=match.row,
            rows=np.asarray(match.rows),
            nbytes=match.nbytes,
            saving=match.saving,
            order=order,
        )

    def title(self, match: Reordered) -> str:
        """Say what it is."""
        assert match.order is not None
        return f"are the product `{match.order.product}`, which is only multiplied again"

    def advice(self, match: Reordered, case: Case) -> Iterator[Advice]:
        """Multiply in the other order."""
        order = match.order
        assert order is not None
        why = (
            f"`{order.product}` takes {format_bytes(match.nbytes)}, more than its factors and what "
            f"comes of it together: in the other order, `{order.instead}`, nothing so large is "
            "made."
        )
        if order.is_summed:
            why += " Its sums along a dimension are products with ones, in that order too."
        yield Advice("apply_factors", why, case.site, typed=order.instead)


RULE = ProductOrder()
