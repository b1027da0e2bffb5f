"""in-place-update: values are written into a tensor that stays, with the graphs that made them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from memprof.records import Holder
from memprof.reference_chain import Link, LinkKind
from memprof.rules.case import Case
from memprof.rules.finding import Kind
from memprof.rules.rule import Advice, Cause, GrowthRule
from memprof.source_code.idioms import last_name
from memprof.source_code.program import (
    FUNCTIONS,
    Place,
    bound_names,
    called_name,
    calls_in,
    own_calls,
)
from memprof.source_code.torch_modes import is_under_no_grad

__all__ = ["RULE"]

_METHODS = {
    "CopyBackwards": ("copy_",),
    "CopySlices": ("add_", "addcmul_", "copy_", "div_", "index_copy_", "lerp_", "mul_", "sub_"),
    "IndexAddBackward0": ("index_add_",),
    "IndexCopyBackward0": ("index_copy_",),
    "IndexPutBackward0": ("index_put_",),
    "LerpBackward0": ("lerp_",),
    "ScatterBackward0": ("scatter_",),
}
"""Autograd's nodes of operators that write into a tensor, and the methods that make them."""
_BY_VALUE = {
    "AddBackward0": ("add_",),
    "AddcmulBackward0": ("addcmul_",),
    "DivBackward0": ("div_",),
    "MulBackward0": ("mul_",),
    "SubBackward0": ("sub_",),
}
"""Those of operators that also make a new tensor: the source says which it was."""
_BY_INDEX = frozenset({"CopySlices", "IndexPutBackward0"})
"""Those that ``bank[rows] = values`` makes."""
_OF_TENSOR = frozenset(
    {
        *(LinkKind.ATTRIBUTE, LinkKind.BUFFER, LinkKind.CLOSURE, LinkKind.GLOBAL, LinkKind.LOCAL),
        LinkKind.MODULE_ATTRIBUTE,
    }
)
"""Links that may be a tensor itself, where the graph comes next."""
_FEWEST = 2
"""Such nodes, one upon the other."""


@dataclass(frozen=True, slots=True, eq=False)
class InPlaceUpdate(Cause):
    """The statement that writes, and what it writes into, as written."""

    place: Place
    name: str
    holder: Holder


class InPlaceUpdates(GrowthRule[InPlaceUpdate]):
    """`bank.index_copy_(0, rows, new)`, of a memory bank that only ever is read detached."""

    name = "in-place-update"
    summary = "values are written into a tensor with the graphs that made them"
    fixes = ("no_grad", "detach")
    precedes = ("growing-container", "kept-attribute")

    def match(self, case: Case) -> InPlaceUpdate | None:
        """A graph that hangs on a tensor by operators that write into it, and their statement."""
        for holder in case.finding.holders:
            kinds = _writing_nodes(holder)
            statements = list(_statements(case, kinds)) if kinds else []
            if statements:
                # Other tensors may be written into in the same functions, with no graph.
                names = {link.name.rpartition(".")[2] for link in holder.links} - {""}
                of_name = (one for one in statements if one[1].rpartition(".")[2] in names)
                return InPlaceUpdate(*next(of_name, statements[0]), holder)
            statements = [*_written_anywhere(case, holder), *_written_in_loop(case, holder)]
            if statements:
                return InPlaceUpdate(*statements[0], holder)
        return None

    def advice(self, cause: InPlaceUpdate, case: Case) -> Iterator[Advice]:  # noqa: ARG002 - the statement says all
        """Write without gradients; or what has no graph."""
        why = (
            f"`{cause.name}` is written into with values that have a graph, and keeps that, and "
            "those of all values before"
        )
        yield Advice("no_grad", f"{why}: write them under `torch.no_grad()`.", cause.place)
        yield Advice("detach", f"{why}: write them detached.", cause.place)


def _writing_nodes(holder: Holder) -> set[str]:
    """The nodes of a graph that write into the tensor on which it hangs, if there are several."""
    kinds = [link.kind for link in holder.links]
    if LinkKind.AUTOGRAD_NODE not in kinds:
        return set()
    nodes = holder.links[kinds.index(LinkKind.AUTOGRAD_NODE)].nodes
    return {name for name, count in nodes if name in _METHODS and count >= _FEWEST}


def _written_anywhere(case: Case, holder: Holder) -> Iterator[tuple[Place, str]]:
    """Statements that write into the tensor which a holder is, by its name, anywhere.

    Where the graph on it has several nodes of operators that may write in place; or where there is
    nothing of the graph but such nodes, which grow on the host.
    """
    kinds = [link.kind for link in holder.links]
    if LinkKind.AUTOGRAD_NODE in kinds:
        at = kinds.index(LinkKind.AUTOGRAD_NODE)
        counts = [(name, count) for name, count in holder.links[at].nodes if name in _BY_VALUE]
        if sum(count for _, count in counts) < _FEWEST:
            return
        methods = {method for name, _ in counts for method in _BY_VALUE[name]}
        inner, is_by_index = holder.links[at - 1] if at else None, False
    else:
        methods = {method for one in (*_METHODS.values(), *_BY_VALUE.values()) for method in one}
        inner, is_by_index = holder.links[-1] if holder.links else None, True
        if case.finding.kind is not Kind.HOST_GROWTH:
            return
    if inner is None or inner.kind not in _OF_TENSOR or not inner.name:
        return
    name = inner.name.rpartition(".")[2]
    for program in case.programs:
        for call in calls_in(program.tree, *methods):
            place, receiver = program.place(call), _receiver(call)
            if place is not None and last_name(receiver) == name and _may_run(place, inner):
                yield place, receiver
        for node in program.nodes if is_by_index else ():
            for target in bound_names(node) if isinstance(node, ast.Assign) else ():
                place = program.place(node)
                if not isinstance(target, ast.Subscript) or not _is_by_place(target):
                    continue
                text = ast.unparse(target.value)
                if place is not None and last_name(text) == name and _may_run(place, inner):
                    yield place, text


def _written_in_loop(case: Case, holder: Holder) -> Iterator[tuple[Place, str]]:
    """Statements that write into the tensors of a list: ``for h, new in zip(self.hess, grads)``."""
    kinds = [link.kind for link in holder.links]
    at = kinds.index(LinkKind.AUTOGRAD_NODE) if LinkKind.AUTOGRAD_NODE in kinds else 0
    if at < len(("list", "item")) or kinds[at - 1] is not LinkKind.ITEM:
        return
    container = holder.links[at - 2]
    counts = {name: count for name, count in holder.links[at].nodes if name in _BY_VALUE}
    if container.kind not in _OF_TENSOR or sum(counts.values()) < _FEWEST:
        return
    methods = [method for name in counts for method in _BY_VALUE[name]]
    name = container.name.rpartition(".")[2]
    for program in case.programs:
        for call in calls_in(program.tree, *methods):
            place, receiver = program.place(call), _receiver(call)
            loop = place.loop if place is not None else None
            if place is None or not isinstance(loop, ast.For) or not _may_run(place, container):
                continue
            iterated = _iterated(loop, receiver)
            if iterated is not None and last_name(ast.unparse(iterated)) == name:
                yield place, receiver


def _iterated(loop: ast.For, name: str) -> ast.expr | None:
    """What a loop goes through by a variable of its own, alone or beside others."""
    if isinstance(loop.target, ast.Name):
        return loop.iter if loop.target.id == name else None
    if not isinstance(loop.target, ast.Tuple) or called_name(loop.iter) != "zip":
        return None
    names = [one.id if isinstance(one, ast.Name) else "" for one in loop.target.elts]
    given = getattr(loop.iter, "args", [])
    at = names.index(name) if name in names else len(given)
    return given[at] if at < len(given) else None


def _may_run(place: Place, link: Link) -> bool:
    """Whether gradients may be on in a statement, and it is no method of another class's objects.

    A subclass may have a method of its own in its place.
    """
    if is_under_no_grad(place):
        return False
    function, classes = place.function, {one.name: one for one in place.program.classes()}
    class_ = classes.get(link.type_name.rpartition(".")[2])
    while class_ is not None and place.class_ is not None and function is not None:
        if any(isinstance(one, FUNCTIONS) and one.name == function.name for one in class_.body):
            return class_ is place.class_
        bases = (classes.get(last_name(ast.unparse(one))) for one in class_.bases)
        class_ = next((one for one in bases if one is not None), None)
    return True


def _receiver(call: ast.Call) -> str:
    """What the first of a chain of methods in place is called of: ``center.mul_(m).add_(x)``."""
    value: ast.expr = call
    while isinstance(value, ast.Call) and called_name(value).endswith("_"):
        if not isinstance(value.func, ast.Attribute):
            return ""
        value = value.func.value
    return ast.unparse(value)


def _statements(case: Case, kinds: set[str]) -> Iterator[tuple[Place, str]]:
    """Statements that write so, in the functions that ran when the tensors were made."""
    methods = [method for kind in sorted(kinds) for method in _METHODS[kind]]
    for _, around in case.frames:
        program, scope = around.program, around.scope
        for call in calls_in(scope, *methods):
            place = program.place(call)
            own = own_calls(place.statement, *methods) if place is not None else ()
            if place is not None and any(one is call for one in own):
                yield place, ast.unparse(call.func.value)  # type: ignore[attr-defined]
        for node in ast.walk(scope) if kinds & _BY_INDEX else ():
            targets = bound_names(node) if isinstance(node, ast.Assign) else ()
            for target in targets:
                place = program.place(node)
                if isinstance(target, ast.Subscript) and place is not None and _is_by_place(target):
                    yield place, ast.unparse(target.value)


def _is_by_place(target: ast.Subscript) -> bool:
    """Whether an index may be one of a tensor: ``bank[rows]``, and not ``state["bank"]``."""
    return not (isinstance(target.slice, ast.Constant) and isinstance(target.slice.value, str))


RULE = InPlaceUpdates()
