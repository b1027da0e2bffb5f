"""Iterators of itertools in a chain of references, and what to do about one."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from memprof.reference_chain import Link, LinkKind
from memprof.rules.case import Case
from memprof.rules.rule import Advice, Cause
from memprof.source_code.idioms import last_name
from memprof.source_code.program import Place, bound_names

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
        return KeepingIterator(place, is_tee, name, is_of_tuple)
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
    """``self.peek`` for ``peek``, as the statement binds it."""
    targets = bound_names(place.statement) if place is not None else []
    texts = [ast.unparse(target) for target in targets]
    return next((text for text in texts if last_name(text) == name), name)
