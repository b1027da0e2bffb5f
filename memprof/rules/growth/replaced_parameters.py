"""replaced-parameters: an optimizer keeps the states of parameters that were replaced."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from memprof.reference_chain import LinkKind
from memprof.rules.case import Case
from memprof.rules.rule import Advice, Cause, GrowthRule
from memprof.source_code.idioms import written_entries
from memprof.source_code.program import Place, bound_names, called_name
from memprof.source_code.values import values_of

__all__ = ["RULE"]

_EMPTYING = ("clear", "pop", "remove")
"""Methods that take groups out of the list of them."""


@dataclass(frozen=True, slots=True, eq=False)
class OrphanedStates(Cause):
    """The optimizer's class, how many states are of no use, and where its groups are changed."""

    type_name: str
    count: int
    place: Place | None
    optimizer: str
    """As the statement writes it; empty where it has no name there."""


class ReplacedParameters(GrowthRule[OrphanedStates]):
    """`group["params"][0] = nn.Parameter(larger)`, and the state of the old one is still there."""

    name = "replaced-parameters"
    summary = "an optimizer keeps the states of parameters that were replaced"
    fixes = ("del_ref",)
    precedes = (
        *("parameter-groups", "growing-container", "unbounded-dict", "collecting-object"),
        *("uncalled-release", "collected-models", "tensor-key", "linked-objects", "kept-graph"),
    )

    def match(self, case: Case) -> OrphanedStates | None:
        """States in a chain of references, of which some belong to no group's parameter."""
        for holder in case.finding.holders:
            for link in holder.links:
                if link.kind == LinkKind.OPTIMIZER_STATE and link.orphaned > 1:
                    place, optimizer = _changed_at(case)
                    place = _taken_at(place, optimizer) or place
                    return OrphanedStates(
                        link.type_name, link.orphaned, place or case.place_of(holder), optimizer
                    )
        return None

    def advice(self, cause: OrphanedStates, case: Case) -> Iterator[Advice]:  # noqa: ARG002 - the states say all
        """Delete the state with the parameter, or begin anew."""
        name = cause.optimizer or "optimizer"
        yield Advice(
            "del_ref",
            f"`{cause.type_name}` has states of {cause.count} parameters that are in none "
            "of its groups any more, and keeps those parameters: delete each when it is replaced "
            f"(`del {name}.state[old]`), or make a new optimizer.",
            cause.place,
        )


def _changed_at(case: Case) -> tuple[Place | None, str]:
    """The statement that puts parameters into an optimizer's groups or their states elsewhere.

    One in a function in which tensors were recorded comes first.
    """
    candidates = [
        (place, changed)
        for attribute in ("param_groups", "state")
        for program in case.programs
        for node in program.nodes
        if (changed := _changed_name(node, attribute)) is not None
        and (place := program.place(node)) is not None
    ]
    candidates += _changed_through_names(case)
    return min(candidates, key=lambda one: not _has_run(case, one[0]), default=(None, ""))


def _changed_through_names(case: Case) -> Iterator[tuple[Place, str]]:
    """Statements that put something into a list that is a group's by another name.

    ``params = optimizer.param_groups[0]["params"]``, and then ``params[at] = new``.
    """
    for program in case.programs:
        for node in program.nodes:
            targets = bound_names(node) if isinstance(node, ast.Assign) else []
            place = program.place(node) if isinstance(node, ast.Assign) else None
            for target in targets if place is not None else ():
                within = target.value if isinstance(target, ast.Subscript) else None
                if not isinstance(within, ast.Name) or place is None:
                    continue
                for value in values_of(place, within.id):
                    if value is not None and _is_in_group(value):
                        yield place, _of_attribute(value, "param_groups")


def _taken_at(place: Place | None, optimizer: str) -> Place | None:
    """Where the same function takes the old state, or puts in the new: there the old one can go.

    ``stored = self.opt.state.get(old)``, or ``self.opt.state[new] = stored``.
    """
    of_state = [
        node
        for node in ast.walk(place.function if place is not None and place.function else ast.Pass())
        if isinstance(node, (ast.Call, ast.Subscript))
        and (name := _state_of(node))
        and optimizer.rpartition(".")[2] in ("", name.rpartition(".")[2])
    ]
    of_state.sort(key=lambda node: (not _reads(node), node.lineno))
    return place.program.place(of_state[0]) if place is not None and of_state else None


def _state_of(node: ast.Call | ast.Subscript) -> str:
    """``self.opt`` of ``self.opt.state[old]`` and ``self.opt.state.get(old)``; else empty."""
    states = node.value if isinstance(node, ast.Subscript) else None
    if isinstance(node, ast.Call) and called_name(node) == "get":
        states = node.func.value if isinstance(node.func, ast.Attribute) else None
    is_state = isinstance(states, ast.Attribute) and states.attr == "state"
    return ast.unparse(states.value) if is_state and isinstance(states, ast.Attribute) else ""


def _reads(node: ast.Call | ast.Subscript) -> bool:
    return isinstance(node, ast.Call) or isinstance(node.ctx, ast.Load)


def _has_run(case: Case, place: Place) -> bool:
    """Whether a tensor was made while the function around a statement ran."""
    frames = case.trace.tables.frames if case.trace is not None else ()
    function, name = place.function, place.program.filename
    if function is None:
        return True
    first, last = function.lineno, function.end_lineno or function.lineno
    return any(one.filename == name and first <= one.line <= last for one in frames)


def _changed_name(node: ast.AST, attribute: str) -> str | None:
    """The optimizer whose groups a statement changes, "" where it has no name; else None."""
    if attribute == "param_groups":
        emptied = _emptied_name(node)
        if emptied is not None:
            return emptied
        if isinstance(node, ast.Call):
            return _updated_name(node)
    for target in bound_names(node) if isinstance(node, (ast.Assign, ast.AugAssign)) else ():
        if attribute == "param_groups" and _is_in_group(target):
            return _of_attribute(target, attribute)
        if isinstance(target, ast.Subscript) and _of_attribute(target, attribute):
            return _of_attribute(target, attribute)
    return None


def _emptied_name(node: ast.AST) -> str | None:
    """The optimizer whose groups are taken out, or replaced as a whole; None where none are.

    ``optimizer.param_groups.clear()``, ``del optimizer.param_groups[1:]``, and
    ``optimizer.param_groups = []``.
    """
    lists: list[ast.expr] = []
    if isinstance(node, ast.Call) and called_name(node) in _EMPTYING:
        lists = [node.func.value] if isinstance(node.func, ast.Attribute) else []
    elif isinstance(node, ast.Delete):
        lists = [one for one in node.targets if isinstance(one, ast.Subscript)]
    elif isinstance(node, ast.Assign):
        lists = [one for one in bound_names(node) if _is_list_of_groups(one)]
    names = (_of_attribute(one, "param_groups") for one in lists)
    return next(filter(None, names), None)


def _is_list_of_groups(target: ast.expr) -> bool:
    """Whether a target is the list itself, or a part of it by a slice."""
    while isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Slice):
        target = target.value
    return isinstance(target, ast.Attribute)


def _updated_name(call: ast.Call) -> str | None:
    """The same of ``group.update(params=[new])`` and ``group.update({"params": [new]})``."""
    if called_name(call) != "update" or not isinstance(call.func, ast.Attribute):
        return None
    keys = [one.arg for one in call.keywords]
    keys += [_text(key) for one in call.args for key, _ in written_entries(one)]
    return _of_attribute(call.func.value, "param_groups") if "params" in keys else None


def _is_in_group(target: ast.expr) -> bool:
    """Whether a target is ``…["params"]`` or an item of that."""
    while isinstance(target, ast.Subscript):
        if isinstance(target.slice, ast.Constant) and target.slice.value == "params":
            return True
        target = target.value
    return False


def _text(key: ast.expr) -> str:
    return str(key.value) if isinstance(key, ast.Constant) else ""


def _of_attribute(target: ast.expr, attribute: str) -> str:
    """``self.optimizer`` of ``self.optimizer.state[new]``; empty for anything else."""
    while isinstance(target, ast.Subscript):
        target = target.value
    is_named = isinstance(target, ast.Attribute) and target.attr == attribute
    return ast.unparse(target.value) if is_named and isinstance(target, ast.Attribute) else ""


RULE = ReplacedParameters()
