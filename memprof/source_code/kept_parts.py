"""Results that a list keeps whole until it is emptied, of whose items only a part is read."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from memprof.source_code.program import (
    FUNCTIONS,
    Place,
    Program,
    bound_names,
    called_name,
    calls_in,
)
from memprof.source_code.reductions import needs_more, reducing
from memprof.source_code.scopes import reads_of
from memprof.source_code.values import goes_backward

__all__ = ["KeptPart", "kept_part", "reduced_items"]

_AFTER_NAME = re.compile(r"^\w+")
_OF_SHAPE = frozenset(("device", "dtype", "ndim", "shape"))


@dataclass(frozen=True, slots=True, eq=False)
class KeptPart:
    """The part of each item that is read, and the statement that keeps it whole."""

    texts: tuple[str, ...]
    """As written: ``out.logits[:, -1]``."""
    place: Place
    instead: str
    """The call that keeps a copy of that alone; empty where there are several such parts."""
    is_computed: bool = False
    """The part is computed of the item: there is nothing to copy."""


def kept_part(place: Place, programs: Sequence[Program]) -> KeptPart | None:
    """``out.logits[:, -1]`` of the items of a list that a statement's result is appended to.

    ``outputs = model(**inputs)``, then ``self.window.append(outputs)`` in the same function. None
    where the list is no attribute or is never emptied, where anything else is appended to it or
    read of its items, where a backward pass may start from it, and where that cannot be told.
    """
    names = {one.id for one in bound_names(place.statement) if isinstance(one, ast.Name)}
    for call in calls_in(place.scope, "append"):
        kept = call.func.value if isinstance(call.func, ast.Attribute) else None
        is_own = len(call.args) == 1 and _name_of(call.args[0]) in names
        at = place.program.place(call)
        if not isinstance(kept, ast.Attribute) or not is_own or at is None:
            continue
        files = {id(one): one for one in (place.program, *programs)}.values()
        reads = _Reads(kept.attr, call)
        if all(reads.follow(one) for one in files) and reads.texts and reads.is_emptied:
            if goes_backward(at, ast.unparse(kept), programs):
                return None  # a copy without its graph would learn nothing
            texts = tuple(dict.fromkeys(reads.texts))
            return KeptPart(texts, at, _instead(call, texts))
    return None


def reduced_items(place: Place) -> KeptPart | None:
    """``p.argmax(dim=1)`` of the items of a local list that a statement's result is appended to.

    ``probs = model(x).softmax(1)``, then ``kept.append(probs)`` in the same loop, and after it
    ``[p.argmax(dim=1) for p in kept]``. None where the function does anything else with the list or
    its items, and where that cannot be told.
    """
    loop = place.loop
    names = {one.id for one in bound_names(place.statement) if isinstance(one, ast.Name)}
    for call in calls_in(loop, "append") if loop is not None else ():
        kept = call.func.value if isinstance(call.func, ast.Attribute) else None
        at = place.program.place(call)
        if not isinstance(kept, ast.Name) or len(call.args) != 1 or at is None:
            continue
        is_own = at.statement is place.statement or _name_of(call.args[0]) in names
        if not is_own or not _is_whole(call.args[0], names):
            continue
        reductions = list(_reductions_of_items(place, kept.id, call))
        if reductions and None not in reductions:
            in_order = [one for one in reductions if one is not None]
            texts = tuple(dict.fromkeys(ast.unparse(one) for one, _ in in_order))
            first, item = in_order[0]
            made = _renamed(first, item, ast.unparse(call.args[0]))
            instead = f"{ast.unparse(call.func)}({made})" if len(texts) == 1 else ""
            return KeptPart(texts, at, instead, is_computed=True)
    return None


def _is_whole(value: ast.expr, names: set[str]) -> bool:
    """Whether a value is what a statement has bound, or what a call returns: no part of it."""
    return isinstance(value, ast.Call) or (isinstance(value, ast.Name) and value.id in names)


def _reductions_of_items(
    place: Place, name: str, filling: ast.Call
) -> Iterator[tuple[ast.Call, str] | None]:
    """What reduces the items of a list, each with the name that an item has there."""
    for load, around in reads_of(place.scope, name):
        parent = around[-1]
        if isinstance(parent, ast.Attribute):
            if parent is not filling.func:
                yield None
        elif isinstance(parent, ast.Call) and called_name(parent) in ("len", "bool"):
            continue
        elif isinstance(parent, (ast.comprehension, ast.For)) and parent.iter is load:
            scope = parent if isinstance(parent, ast.For) else around[-2]
            if not isinstance(parent.target, ast.Name):
                yield None
                continue
            item = parent.target.id
            for read, inside in reads_of(scope, item):
                call = reducing(read, inside)
                is_own = call is not None and not needs_more(place, call, item)
                yield (call, item) if call is not None and is_own else None
        else:
            yield None


def _renamed(call: ast.Call, item: str, text: str) -> str:
    """The reduction of an item, as it is to be written where that has another name."""
    whole = ast.parse(text, mode="eval").body

    class Renaming(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return whole if node.id == item else node

    return ast.unparse(Renaming().visit(ast.parse(ast.unparse(call), mode="eval")))


def _instead(call: ast.Call, texts: tuple[str, ...]) -> str:
    """``self.window.append(outputs.logits[:, -1].detach().clone())``."""
    result = ast.unparse(call.args[0])
    parts = [f"{result}{_AFTER_NAME.sub('', text)}.detach().clone()" for text in texts]
    what = ", ".join(parts) if len(parts) == 1 else f"({', '.join(parts)})"
    return f"{ast.unparse(call.func)}({what})"


class _Reads:
    """What a program does with the list of an attribute's name."""

    def __init__(self, attribute: str, filling: ast.Call) -> None:
        self._attribute = attribute
        self._filling = filling
        self._parents: dict[int, ast.AST] = {}
        self.texts: list[str] = []
        self.is_emptied = False

    def follow(self, program: Program) -> bool:
        """Take in a file; False where it does something that is not known."""
        nodes = list(program.nodes)
        lists = [n for n in nodes if isinstance(n, ast.Attribute) and n.attr == self._attribute]
        if lists:
            self._parents |= {id(c): node for node in nodes for c in ast.iter_child_nodes(node)}
        return all(self._is_known(node) for node in lists)

    def _is_known(self, node: ast.Attribute) -> bool:
        parent = self._parents.get(id(node))
        if isinstance(parent, ast.Attribute):
            if self._parents.get(id(parent)) is self._filling:
                return True
            self.is_emptied |= parent.attr == "clear"
            return parent.attr == "clear"
        if isinstance(parent, (ast.Assign, ast.AnnAssign)) and not isinstance(node.ctx, ast.Load):
            is_new = isinstance(parent.value, ast.List) and not parent.value.elts
            self.is_emptied |= is_new and not self._is_in_init(parent)
            return is_new
        if isinstance(parent, ast.Call):
            return isinstance(parent.func, ast.Name) and parent.func.id in ("len", "bool")
        if isinstance(parent, (ast.If, ast.While, ast.UnaryOp)):
            return True
        if isinstance(parent, ast.comprehension) and parent.iter is node:
            around = self._parents.get(id(parent))
            return around is not None and self._reads_parts(parent.target, around)
        if isinstance(parent, (ast.For, ast.AsyncFor)) and parent.iter is node:
            return self._reads_parts(parent.target, parent)
        return False

    def _is_in_init(self, node: ast.AST) -> bool:
        above: ast.AST | None = node
        while above is not None and not isinstance(above, FUNCTIONS):
            above = self._parents.get(id(above))
        return above is not None and above.name == "__init__"

    def _reads_parts(self, target: ast.expr, scope: ast.AST) -> bool:
        """Whether all that is read of an item is a part of one of its tensors."""
        if not isinstance(target, ast.Name):
            return False
        parts = list(self._parts_of(target.id, scope))
        self.texts += [ast.unparse(one) for one in parts if one is not None]
        return bool(parts) and None not in parts

    def _parts_of(self, name: str, scope: ast.AST) -> Iterator[ast.Subscript | None]:
        for node in ast.walk(scope):
            if not isinstance(node, ast.Name) or node.id != name or isinstance(node.ctx, ast.Store):
                continue
            value: ast.AST = node
            parent = self._parents.get(id(value))
            while isinstance(parent, ast.Attribute) and parent.attr not in _OF_SHAPE:
                value, parent = parent, self._parents.get(id(parent))
            if isinstance(parent, ast.Attribute):
                continue
            part = parent if isinstance(parent, ast.Subscript) else None
            is_one = part is not None and part.value is value and _takes_one(part.slice)
            yield part if is_one else None


def _takes_one(index: ast.expr) -> bool:
    """``[:, -1]``: of several axes one has a single place. ``[0]`` may be an item of a tuple."""
    axes = index.elts if isinstance(index, ast.Tuple) else []
    return any(_is_number(one) for one in axes) and all(
        isinstance(one, (ast.Slice, ast.Constant)) or _is_number(one) for one in axes
    )


def _is_number(node: ast.expr) -> bool:
    inner = node.operand if isinstance(node, ast.UnaryOp) else node
    return isinstance(inner, ast.Constant) and type(inner.value) is int


def _name_of(value: ast.expr) -> str:
    """``outputs`` of ``outputs`` and of ``outputs.logits``."""
    while isinstance(value, ast.Attribute):
        value = value.value
    return value.id if isinstance(value, ast.Name) else ""
