"""Attributes of a custom Function's context that hold its output, and the way out."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from memprof.reference_chain import LinkKind
from memprof.rules.case import Case
from memprof.rules.graph_lines import holding_places
from memprof.rules.rule import Advice, Cause
from memprof.source_code.attributes_by_name import attributes_by_name
from memprof.source_code.idioms import is_autograd_function
from memprof.source_code.patch import diff, replaced
from memprof.source_code.program import FUNCTIONS, Place, bound_names, calls_in
from memprof.source_code.values import is_object

__all__ = ["StoredAttribute", "advice_on_context", "stored_attribute"]

_NO_TENSORS = (
    *(ast.Constant, ast.Dict, ast.DictComp, ast.GeneratorExp, ast.Lambda, ast.List, ast.ListComp),
    *(ast.Set, ast.SetComp, ast.Tuple),
)
"""Values that `save_for_backward` does not take."""


@dataclass(frozen=True, slots=True, eq=False)
class StoredAttribute(Cause):
    """The statement in ``forward`` that stores, and the attribute as written: ``ctx.y``."""

    place: Place
    attribute: str


def stored_attribute(case: Case) -> StoredAttribute | None:
    """An attribute of a node's ``ctx`` in a chain of references, and what assigns it."""
    if LinkKind.CTX_ATTRIBUTE not in case.links:
        return None
    for place in holding_places(case):
        targets = bound_names(place.statement)
        of_ctx = isinstance(targets[0], ast.Attribute) if targets else False
        assigns = isinstance(place.statement, ast.Assign)
        if is_autograd_function(place) and of_ctx and assigns:
            return StoredAttribute(place, ast.unparse(targets[0]))
    return _by_name(case)


def _by_name(case: Case) -> StoredAttribute | None:
    """The one ``setattr(ctx, name, y)`` in a custom Function that may set such an attribute."""
    links = [link for holder in case.finding.holders for link in holder.links]
    for name in dict.fromkeys(one.name for one in links if one.kind is LinkKind.CTX_ATTRIBUTE):
        calls = [
            (call, place)
            for call, place in attributes_by_name(case.programs, name)
            if is_autograd_function(place) and case.is_as_it_ran(place.program) is not False
        ]
        if len(calls) == 1:
            call, place = calls[0]
            return StoredAttribute(place, f"{ast.unparse(call.args[0])}.{name}")
    return None


def advice_on_context(cause: StoredAttribute) -> Iterator[Advice]:
    """Save it for the backward pass."""
    yield Advice(
        "save_for_backward",
        f"`{cause.attribute}` makes the graph node hold the tensor and the tensor the "
        "node; what `save_for_backward` keeps is not counted as a reference to the output.",
        cause.place,
        patch=_saved_name(cause.place),
    )


def _saved_name(place: Place) -> str:
    """The attribute moves into ``save_for_backward``, and ``backward`` reads it from there.

    Only where the function saves by one plain call (or none) and backward unpacks all of it.
    """
    statement, forward, class_ = place.statement, place.function, place.class_
    if not isinstance(statement, ast.Assign) or forward is None or class_ is None:
        return ""
    target, value = statement.targets[0], statement.value
    saves = calls_in(forward, "save_for_backward")
    backward = next(
        (n for n in class_.body if isinstance(n, FUNCTIONS) and n.name == "backward"), None
    )
    if backward is None or not isinstance(target, ast.Attribute) or saves:
        return ""
    if len(statement.targets) > 1 or isinstance(value, _NO_TENSORS) or is_object(place, value):
        return ""
    context = ast.unparse(target.value)
    name = backward.args.args[0].arg if backward.args.args else context
    uses = [
        n
        for n in ast.walk(backward)
        if isinstance(n, ast.Attribute) and n.attr == target.attr and ast.unparse(n.value) == name
    ]
    if not uses or calls_in(backward, "saved_tensors") or _are_taken_apart(backward, uses):
        return ""
    saved = replaced(statement, f"{context}.save_for_backward({ast.unparse(value)})")
    return diff(place.program, saved, *(replaced(u, f"{name}.saved_tensors[0]") for u in uses))


def _are_taken_apart(backward: ast.AST, uses: Sequence[ast.Attribute]) -> bool:
    """Whether the backward pass reads entries of what was stored, or goes through it."""
    inner = {id(use) for use in uses}
    for node in ast.walk(backward):
        through = node.iter if isinstance(node, (ast.For, ast.comprehension)) else None
        if isinstance(node, (ast.Subscript, ast.Starred)):
            through = node.value
        if isinstance(node, ast.Assign):
            into = [one for one in node.targets if isinstance(one, (ast.List, ast.Tuple))]
            through = node.value if into else None
        if id(through) in inner:
            return True
    return False
