"""tensor-key: a dict has tensors, or the objects that have them, for keys."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from memprof.reference_chain import CYCLES, THROUGH_GRAPH, Link, LinkKind, largest_container
from memprof.rules.case import Case
from memprof.rules.rule import Advice, Cause, GrowthRule
from memprof.source_code.idioms import growing, last_name
from memprof.source_code.program import Place, bound_names, called_name, calls_in
from memprof.source_code.verbs import FILLING

__all__ = ["RULE"]


_RESULT = ("Future", "_result")
_IN_TURN = "as_completed"


@dataclass(frozen=True, slots=True, eq=False)
class Keys(Cause):
    """The dict, and the statement that fills it."""

    place: Place | None
    container: str
    """As written; empty where the statement is not here."""
    length: int
    are_tensors: bool
    """And not objects that have tensors."""
    of_calls: bool = False
    """The keys are arguments of calls, whose results the dict is to remember."""
    of_values: bool = False
    """The values grow: none is ever replaced, as each has a tensor of its own for a key."""
    of_set: bool = False
    """They are a set's, which is only asked what is in it."""
    are_futures: bool = False
    """They are futures, which keep their results."""


class TensorKey(GrowthRule[Keys]):
    """`self.names[output] = name` for every activation that passes."""

    name = "tensor-key"
    summary = "a dict keeps the tensors that are its keys"
    fixes = ("weakref", "bound_cache", "item", "clear_container")
    precedes = (
        *("kept-graph", "unbounded-dict", "growing-container", "grown-by-concatenation"),
        *("assigned-history", "collecting-object"),
    )

    def match(self, case: Case) -> Keys | None:
        """A key of a dict in the first chain of references."""
        if case.links & CYCLES or LinkKind.LRU_CACHE in case.links:
            return None  # the keys of a function's cache are its arguments
        for holder in case.finding.holders[:1]:
            for at, link in enumerate(holder.links):
                if at != largest_container(holder.links):
                    continue
                place = case.place_of(holder)
                if link.is_keyed_by_tensor:
                    place = _filling(place, holder.links[at - 1].name if at else "") or place
                    filling = growing(place)
                    container = filling.container if filling is not None else ""
                    place = _key_made(place) or place
                    return Keys(place, container, link.length, are_tensors=True, of_calls=True)
                if _is_element(link) and at == len(holder.links) - 1 and _only_asked(place):
                    name = growth.container if (growth := growing(place)) is not None else ""
                    return Keys(place, name, link.length, are_tensors=True, of_set=True)
                if link.kind != LinkKind.KEY and not link.is_under_tensor:
                    continue
                filling = growing(place)
                if any(map(_is_result, holder.links[at + 1 :])):
                    name = holder.links[at - 1].name if at else ""
                    return Keys(place, name, link.length, are_tensors=False, are_futures=True)
                if link.is_under_tensor:
                    container = filling.container if filling is not None else ""
                    return Keys(place, container, link.length, are_tensors=True, of_values=True)
                below = {one.kind for one in holder.links[at + 1 :]} - THROUGH_GRAPH
                return Keys(
                    place,
                    filling.container if filling is not None else "",
                    link.length,
                    below <= {LinkKind.BASE, LinkKind.GRAD},
                )
        return None

    def advice(self, cause: Keys, case: Case) -> Iterator[Advice]:
        """Hold the keys weakly; of calls, let the keys be values, or the dict have a bound."""
        name = f"`{cause.container}` ({cause.length} items)" if cause.container else "A dict"
        if cause.of_calls:
            yield Advice(
                "bound_cache",
                f"{name} has tensors in its keys, which equal themselves alone: a call with a new "
                "tensor never finds what an earlier one left. Let the key be values (a length, a "
                "shape), or give the cache a largest size.",
                cause.place,
            )
            return
        if cause.of_set:
            yield Advice(
                "weakref",
                f"{name} has tensors in a set, which equal themselves alone: one of the same "
                "values is never found. Let it have what tells them apart (a number, or a hash of "
                "the values); or hold them weakly, as the keys of "
                "`torch.utils.weak.WeakTensorKeyDictionary()`.",
                cause.place,
            )
            return
        if cause.are_futures:
            yield _let_go(cause, name, case)
            return
        weak = (
            "torch.utils.weak.WeakTensorKeyDictionary"
            if cause.are_tensors
            else ("weakref.WeakKeyDictionary")
        )
        if cause.of_values and _are_states(case):
            yield Advice(
                "clear_container",
                f"{name} keeps what was made beside each tensor that is a key, and new ones come "
                "again and again: empty it where they are made, or key it by their place.",
                cause.place,
            )
            yield Advice("weakref", f"Or let it hold its keys weakly (`{weak}()`).", cause.place)
            return
        if cause.of_values:
            yield Advice(
                "item",
                f"{name} has tensors for keys, which equal themselves alone: no entry is found or "
                "replaced by another tensor of the same value. Let the key be its number "
                "(`.item()`, `.tolist()`).",
                cause.place,
            )
            return
        what = "tensors" if cause.are_tensors else "objects that have tensors"
        yield Advice(
            "weakref",
            f"{name} has {what} for keys and keeps them: let it hold them weakly (`{weak}()`), or "
            "take each out when it is done with.",
            cause.place,
        )


def _is_result(link: Link) -> bool:
    """Whether a link is what a future keeps of the call that it was made for."""
    return (link.type_name, link.name) == _RESULT


def _let_go(cause: Keys, name: str, case: Case) -> Advice:
    """Take each future out, where the program takes its result: ``futures.pop(future)``."""
    why = (
        f"{name} has futures for keys, and each keeps its result: take it out when that was taken, "
        "or have the call return what is needed of it."
    )
    for program in case.programs:
        for loop in (node for node in program.nodes if isinstance(node, ast.For)):
            entry = _entry_in_turn(loop, cause.container)
            if entry is not None:
                typed = f"{cause.container}.pop({ast.unparse(entry.slice)})"
                return Advice("clear_container", why, program.place(entry), typed=typed)
    return Advice("clear_container", why, cause.place)


def _entry_in_turn(loop: ast.For, container: str) -> ast.Subscript | None:
    """What a loop over futures as they are done reads under one: ``jobs[job]``."""
    calls = calls_in(loop.iter, _IN_TURN)
    if not any(ast.unparse(one) == container for call in calls for one in call.args):
        return None
    futures = {one.id for one in ast.walk(loop.target) if isinstance(one, ast.Name)}
    entries = (node for node in ast.walk(loop) if isinstance(node, ast.Subscript))
    own = (one for one in entries if ast.unparse(one.value) == container)
    return next((one for one in own if ast.unparse(one.slice) in futures), None)


def _is_element(link: Link) -> bool:
    return link.kind == LinkKind.ITEM and link.type_name == "set"


def _only_asked(place: Place | None) -> bool:
    """Whether the file fills a set, and else only asks what is in it, or how much."""
    filling = growing(place)
    if place is None or filling is None:
        return False
    name, asked = last_name(filling.container), 0
    parents = {id(c): node for node in place.program.nodes for c in ast.iter_child_nodes(node)}
    for node in place.program.nodes:
        if not isinstance(node, (ast.Name, ast.Attribute)) or not isinstance(node.ctx, ast.Load):
            continue
        if last_name(ast.unparse(node)) != name:
            continue
        above = parents[id(node)]
        if _asks(above, node):
            asked += 1
        elif not (isinstance(above, ast.Attribute) and above.attr in FILLING):
            at = place.program.place(node)
            if at is None or growing(at) is None:  # ``seen = seen | {x}``
                return False
    return asked > 0


def _asks(node: ast.AST, container: ast.AST) -> bool:
    """``x in seen``, or ``len(seen)``."""
    if isinstance(node, ast.Compare):
        are_in = all(isinstance(one, (ast.In, ast.NotIn)) for one in node.ops)
        return are_in and node.left is not container
    return called_name(node) == "len"


def _are_states(case: Case) -> bool:
    """Whether what grows was made in the shape of another tensor, as an optimizer's states are."""
    statement = case.site.statement if case.site is not None else None
    calls = calls_in(statement) if statement is not None else []
    return any(called_name(call).endswith("_like") for call in calls)


def _filling(place: Place | None, name: str) -> Place | None:
    """The statement of the same file that puts something under a key: ``table[key] = …``."""
    program = place.program if place is not None else None
    for node in program.nodes if program is not None else ():
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            there = program.place(node) if program is not None else None
            filling = growing(there)
            if filling is not None and last_name(filling.container) == name:
                return there
    return None


def _key_made(place: Place | None) -> Place | None:
    """The one statement that makes the key under whose name a statement puts something."""
    statement = place.statement if place is not None else None
    if place is None or not isinstance(statement, ast.Assign):
        return None
    keys = [
        one.slice.id
        for one in statement.targets
        if isinstance(one, ast.Subscript) and isinstance(one.slice, ast.Name)
    ]
    made = [
        node
        for node in ast.walk(place.scope)
        if isinstance(node, ast.Assign)
        and any(isinstance(one, ast.Name) and one.id in keys for one in bound_names(node))
    ]
    return place.program.place(made[0]) if len(made) == 1 else None


RULE = TensorKey()
