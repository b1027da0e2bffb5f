"""context-attribute: a custom Function stores its output as an attribute of `ctx`."""

from __future__ import annotations

from collections.abc import Iterator

from memprof.rules.case import Case
from memprof.rules.rule import Advice, GrowthRule
from memprof.rules.stored_contexts import StoredAttribute, advice_on_context, stored_attribute

__all__ = ["RULE"]


class ContextAttribute(GrowthRule[StoredAttribute]):
    """`ctx.y = y` in the forward of a `torch.autograd.Function`."""

    name = "context-attribute"
    summary = "a custom Function keeps its output as an attribute of `ctx`"
    fixes = ("save_for_backward",)
    precedes = ("kept-graph",)

    def match(self, case: Case) -> StoredAttribute | None:
        """An attribute of a node's ``ctx`` in a chain of references, and what assigns it."""
        return stored_attribute(case)

    def advice(self, cause: StoredAttribute, case: Case) -> Iterator[Advice]:  # noqa: ARG002 - the statement says all
        """Save it for the backward pass."""
        yield from advice_on_context(cause)


RULE = ContextAttribute()
