"""Iterators of itertools in a chain of references, and what to do about one."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from memprof.reference_chain import Link, LinkKind
from memprof.rules.case import Case
from memprof.rules.rule import Advice, Cause
from memprof.source_code.idioms import last_name
from memprof.source_code.program import LOOPS, Place, assigned, bound_names

__all__ = ["KeepingIterator", "advice_on_iterator", "keeping_iterator"]


@dataclass(frozen=True, slots=True, eq=False)
class KeepingIterator(Cause):
    """The iterator, and what holds it."""

    place: Place | None
    """The statement that makes it; None where that is not here."""
    is_tee: bool
    name: str
    """By which it is held, as the statement writes it; empty where it is held by none."""
    is_of_tuple: bool = False
    """It is an item that cannot be deleted."""
    is_second_pass: bool = False
    """It is a variable that is gone through when nothing reads the other branch any more."""


def keeping_iterator(case: Case) -> KeepingIterator | None:
    """An iterator of ``itertools`` that holds what a finding is about."""
    for holder in case.finding.holders:
        kinds = [link.kind for link in holder.links]
        if LinkKind.ITERATOR not in kinds:
            continue
        at = kinds.index(LinkKind.ITERATOR)
        place = case.link_place(LinkKind.ITERATOR) or case.place_of(holder)
        is_tee = holder.links[at].type_name == "tee"
        name = _name_of(holder.links[:at], place)
        is_of_tuple = at > 0 and holder.links[at - 1].type_name == "tuple"
        is_second_pass = is_tee and place is not None and _is_read_last(place, name)
        return KeepingIterator(place, is_tee, name, is_of_tuple, is_second_pass)
    return None


def advice_on_iterator(cause: KeepingIterator) -> Iterator[Advice]:
    """Begin anew what is cycled through; let go of the branch that is not read."""
    if not cause.is_tee:
        yield Advice(
            "reiterate",
            "`itertools.cycle` keeps all that it has passed on, for its next rounds: begin "
            "what it goes through anew for each round (`while True: yield from loader`).",
            cause.place,
        )
        return
    name = f"`{cause.name}`" if cause.name else "one branch"
    if cause.is_second_pass:
        yield Advice(
            "reiterate",
            f"`itertools.tee` keeps all that one branch has passed on and the other has not, and "
            f"{name} is gone through when the other has come to its end: begin what they go "
            "through anew for the second pass, or compute both in one.",
            cause.place,
        )
        return
    yield Advice(
        "del_ref",
        f"`itertools.tee` keeps all that one branch has passed on and the other has not, and "
        f"{name} lags behind: let go of it when it has been read"
        + (f" (`del {cause.name}`)." if cause.name and not cause.is_of_tuple else "."),
        cause.place,
    )


def _name_of(links: Sequence[Link], place: Place | None) -> str:
    """What a chain ends with, as it is read: ``self.peek``, or an item of that."""
    if not links:
        return ""
    if links[-1].kind is not LinkKind.ITEM:
        return _as_written(place, links[-1].name)
    container = _name_of(links[:-1], place)
    return f"{container}[{links[-1].name}]" if container else ""


def _as_written(place: Place | None, name: str) -> str:
    """``self.peek`` for ``peek``, as the statement binds it, or one that takes its result apart."""
    if place is None:
        return name
    targets = [ast.unparse(one) for one in bound_names(place.statement)]
    texts = [text for text in targets if last_name(text) == name]
    for node in ast.walk(place.scope) if not texts else ():
        for target, value in assigned(node):
            if value is not None and ast.unparse(value) in targets:
                texts += [text for text in [ast.unparse(target)] if last_name(text) == name]
    return texts[0] if texts else name


def _is_read_last(place: Place, name: str) -> bool:
    """Whether a variable is handed on, or looped over, after all reads of the others.

    Others are those that the statement binds with it. In a loop around, nothing comes last.
    """
    names = [ast.unparse(one) for one in bound_names(place.statement)]
    if name not in names or len(names) != len(("one", "other")) or not name.isidentifier():
        return False
    reads: dict[str, list[ast.Name]] = {one: [] for one in names}
    loops: list[ast.AST] = []
    for node in ast.walk(place.scope):
        if isinstance(node, LOOPS):
            loops.append(node)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in reads:
            reads[node.id].append(node)
    own = reads.pop(name)
    others = [one for both in reads.values() for one in both]
    if not own or not others or max(map(_line, others)) >= min(map(_line, own)):
        return False
    return not any(_both_within(loop, own, others) for loop in loops)


def _line(node: ast.expr) -> int:
    return node.lineno


def _both_within(loop: ast.AST, own: Sequence[ast.Name], others: Sequence[ast.Name]) -> bool:
    inside = set(map(id, ast.walk(loop)))
    return any(id(one) in inside for one in own) and any(id(one) in inside for one in others)
