"""parameter-groups: an optimizer is given parameters again and again, and keeps all of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from memprof.reference_chain import LinkKind
from memprof.rules.case import Case
from memprof.rules.rule import Advice, Cause, GrowthRule
from memprof.source_code.idioms import filling
from memprof.source_code.program import Place, bound_names, loaded_names
from memprof.source_code.values import calls_by_name, values_of

__all__ = ["RULE"]

_ADDING = "add_param_group"
_GROUPS = "param_groups"
_OF_GROUP = "params"
"""The key under which a group has its parameters."""


@dataclass(frozen=True, slots=True, eq=False)
class AddedGroup(Cause):
    """The statement that adds a group, or parameters to one."""

    place: Place
    is_of_group: bool = False
    """It adds them to a group that there is."""


class ParameterGroups(GrowthRule[AddedGroup]):
    """`optimizer.add_param_group(…)` for each new task or adapter."""

    name = "parameter-groups"
    summary = "an optimizer keeps every parameter that it was ever given"
    fixes = ("del_ref",)
    precedes = ("growing-container",)

    def match(self, case: Case) -> AddedGroup | None:
        """An optimizer's state in a chain of references, and what adds to the optimizer's groups.

        Of several statements one in a function that led to the tensors comes first.
        """
        if LinkKind.OPTIMIZER_STATE not in case.links:
            return None
        calls = [*case.calls(_ADDING), *calls_by_name(case.programs, _ADDING)]
        added = [*(AddedGroup(place) for _, place in calls), *_added_within(case)]
        ran = {id(place.scope) for _, place in case.frames}
        return min(added, key=lambda one: id(one.place.scope) not in ran, default=None)

    def advice(self, cause: AddedGroup, case: Case) -> Iterator[Advice]:  # noqa: ARG002 - the statement says all
        """Take old groups out, or old parameters out of a group."""
        old = (
            "ones out of the group's `params`"
            if cause.is_of_group
            else "groups out of `param_groups`"
        )
        yield Advice(
            "del_ref",
            f"An optimizer keeps every parameter it was ever given, and its state: take old {old} "
            "and `state`, or make a new optimizer.",
            cause.place,
        )


def _added_within(case: Case) -> Iterator[AddedGroup]:
    """Statements that make the list of groups longer, or a group's list of parameters."""
    for program in case.programs:
        for node in program.nodes:
            if not isinstance(node, (ast.Expr, ast.Assign, ast.AugAssign)):
                continue
            growth, place = filling(node), program.place(node)
            lists: list[ast.expr] = []
            if growth is not None:
                lists = [ast.parse(growth.container, mode="eval").body]
            elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
                lists = [node.target]  # ``group["params"] += prompts``
            if place is None:
                continue
            if growth is not None and growth.keyed:  # ``group["params"] = [*group["params"], new]``
                lists = [one for one in bound_names(node) if _reads(node, one)]
            for one in lists:
                if _is_list(place, one):
                    yield AddedGroup(place, not _is_groups(one))


def _reads(statement: ast.Expr | ast.Assign | ast.AugAssign, target: ast.expr) -> bool:
    text = ast.unparse(target)
    return any(
        isinstance(node, ast.expr) and ast.unparse(node) == text
        for node in ast.walk(statement.value)
    )


def _is_list(place: Place, expression: ast.expr) -> bool:
    """Whether an expression stands for a list of groups, or of a group's parameters."""
    if isinstance(expression, ast.Name):
        values = [one for one in values_of(place, expression.id) if one is not None]
        return any(_is_list(place, one) for one in values if expression.id not in loaded_names(one))
    if isinstance(expression, ast.Subscript):
        key = expression.slice
        is_of_group = isinstance(key, ast.Constant) and key.value == _OF_GROUP
        return is_of_group and _is_group(place, expression.value)
    return _is_groups(expression)


def _is_group(place: Place, expression: ast.expr) -> bool:
    """Whether an expression is a group: ``optimizer.param_groups[0]``, or a loop's variable."""
    if isinstance(expression, ast.Name):
        loops = [
            node.iter
            for node in ast.walk(place.scope)
            if isinstance(node, ast.For) and expression.id in map(ast.unparse, bound_names(node))
        ]
        values = [one for one in values_of(place, expression.id) if isinstance(one, ast.Subscript)]
        return any(_is_groups(node) for one in (*loops, *values) for node in ast.walk(one))
    return isinstance(expression, ast.Subscript) and _is_groups(expression.value)


def _is_groups(expression: ast.AST) -> bool:
    return isinstance(expression, ast.Attribute) and expression.attr == _GROUPS


RULE = ParameterGroups()
