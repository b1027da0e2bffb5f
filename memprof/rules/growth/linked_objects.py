"""linked-objects: every object keeps the one before it, and with the last all of them are there."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass

from memprof.records import Holder
from memprof.reference_chain import CYCLES, LinkKind, linked_at
from memprof.rules.case import Case
from memprof.rules.rule import Advice, Cause, GrowthRule
from memprof.source_code.idioms import last_name
from memprof.source_code.program import Place, arguments, assigned, bound_names
from memprof.source_code.values import values_of

__all__ = ["RULE"]

_NAMED_KINDS = frozenset({LinkKind.ATTRIBUTE, LinkKind.MODULE_ATTRIBUTE, LinkKind.CLOSURE})


@dataclass(frozen=True, slots=True, eq=False)
class Chain(Cause):
    """How one object refers to the next, and the statement that makes it do so."""

    place: Place | None
    name: str
    """As the statement writes it: ``self.previous``; else the attribute or the key."""
    type_name: str
    is_attribute: bool
    wrapped: str = ""
    """What is made anew of itself: ``self.data`` of ``self.data = Joined([self.data, more])``."""
    base: str = ""
    """What that was bound to first, by a name that is known at the place; empty for none."""
    reader: str = ""
    """The function that goes from object to object in a loop: ``tokens``; empty where none does."""


class LinkedObjects(GrowthRule[Chain]):
    """`Snapshot(model, previous=last)`, of which a history of four keeps the last ones only."""

    name = "linked-objects"
    summary = "every object keeps the one that was made before it"
    fixes = ("del_ref",)
    precedes = (
        *("growing-container", "unbounded-dict", "assigned-history", "kept-graph", "small-view"),
        *("uncalled-release", "collected-models", "registered-callback", "carried-state"),
        *("generation-cache", "class-registry", "grown-by-concatenation"),
    )

    def match(self, case: Case) -> Chain | None:
        """A chain of references in which objects follow one another by the same name."""
        if case.links & CYCLES:
            return None
        for holder in case.finding.holders:
            at = linked_at(holder.links)
            if at is not None:
                return _chain(case, holder, at)
        return None

    def advice(self, cause: Chain, case: Case) -> Iterator[Advice]:  # noqa: ARG002 - the chain says all
        """Keep what is read of the object before, or cut the chain."""
        if cause.wrapped:
            base = f"`{cause.base}`" if cause.base else "what the first was made of"
            typed = ""
            if cause.base and cause.place is not None:
                typed = _made_of(cause.place.statement, cause.wrapped, cause.base)
            yield Advice(
                "del_ref",
                f"Each `{cause.type_name}` is made of the last one, `{cause.wrapped}`, and keeps "
                f"it: make it of {base}, with what is to be added.",
                cause.place,
                typed=typed,
            )
            return
        name = f"`{cause.name}`" if cause.name else "one reference"
        if cause.reader:
            yield Advice(
                "del_ref",
                f"Each `{cause.type_name}` keeps the one before it by {name}, and the last keeps "
                f"them all, with every tensor they have: keep what `{cause.reader}()` makes of the "
                f"last, and the numbers that are read of it, in place of the object.",
                cause.place,
            )
            return
        cut = f" (`{cause.name} = None`)" if cause.is_attribute else ""
        yield Advice(
            "del_ref",
            f"Each `{cause.type_name}` keeps the one before it by {name}, and the last keeps them "
            f"all: keep what is read of it, such as a number, or cut it off when the next one is "
            f"made{cut}.",
            cause.place,
        )


def _chain(case: Case, holder: Holder, at: int) -> Chain:
    with_names = (link for link in holder.links[at:] if link.kind in _NAMED_KINDS)
    link = next(with_names, holder.links[at])
    place = case.place_at(link.filename, link.line)
    targets = bound_names(place.statement) if place is not None else []
    texts = [ast.unparse(target) for target in targets]
    name = next((text for text in texts if last_name(text) == link.name), link.name)
    held_at = case.place_of(holder)
    others = (case.place_at(one.filename, one.line) for one in holder.links if one.filename)
    keeping = next((one for one in (place, held_at, *others) if _wrapped(one)), place or held_at)
    wrapped = _wrapped(keeping)
    reader = _reader(place, link.name) if place is not None and not wrapped else ""
    if reader and held_at is not None:
        keeping = held_at
    return Chain(
        keeping,
        name,
        link.type_name,
        is_attribute=link.kind in _NAMED_KINDS and link.kind != LinkKind.CLOSURE,
        wrapped=wrapped,
        base=_base(keeping, wrapped) if keeping is not None and wrapped else "",
        reader=reader,
    )


def _reader(place: Place, attribute: str) -> str:
    """The function of a file that follows objects by an attribute; empty where none or many do.

    It has ``node = node.parent`` in a loop, and returns what it has read of the objects: these
    cannot be cut off as long as the last one is there.
    """
    readers = {
        found.function.name
        for loop in place.program.nodes
        if isinstance(loop, (ast.While, ast.For))
        for node in ast.walk(loop)
        for target, value in assigned(node)
        if isinstance(target, ast.Name)
        and isinstance(value, ast.Attribute)
        and (ast.unparse(value.value), value.attr) == (target.id, attribute)
        and (found := place.program.place(node)) is not None
        and found.function is not None
        and any(isinstance(one, ast.Return) and one.value for one in ast.walk(found.function))
    }
    return next(iter(readers)) if len(readers) == 1 else ""


def _wrapped(place: Place | None) -> str:
    """What a statement binds to a call that has the very same among parts in a list; else empty.

    ``self.data = Joined([self.data, more])``. What a call is given by itself may be the one before
    of a history, whose next could not do without.
    """
    for target, value in assigned(place.statement) if place is not None else ():
        if isinstance(value, ast.Call) and ast.unparse(target) in _parts(value):
            return ast.unparse(target)
    return ""


def _parts(call: ast.Call) -> list[str]:
    """What is written in the lists and tuples that a call is given."""
    lists = (one for one in arguments(call) if isinstance(one, (ast.List, ast.Tuple)))
    return [ast.unparse(part) for one in lists for part in one.elts]


def _base(place: Place, wrapped: str) -> str:
    """What a name or attribute is bound to elsewhere, if that has a name that stays.

    ``self.labelled``, where ``__init__`` binds that and ``self.data`` to the same parameter.
    """
    values = [one for one in values_of(place, wrapped, place.statement) if one is not None]
    texts = {ast.unparse(one) for one in values if isinstance(one, (ast.Attribute, ast.Name))}
    if len(values) != 1 or len(texts) != 1:
        return ""
    (base,) = texts
    if "." in base or "." not in wrapped:
        return base
    others = {
        ast.unparse(target)
        for node in place.program.nodes
        for target, value in assigned(node)
        if value is not None and ast.unparse(value) == base and isinstance(target, ast.Attribute)
    }
    return min(others - {wrapped}, default="")


class _Instead(ast.NodeTransformer):
    """Puts one expression in the place of another, wherever that is read."""

    def __init__(self, wrapped: str, base: str) -> None:
        self._wrapped, self._base = wrapped, ast.parse(base, mode="eval").body

    def generic_visit(self, node: ast.AST) -> ast.AST:
        is_read = isinstance(node, ast.expr) and isinstance(getattr(node, "ctx", None), ast.Load)
        if is_read and ast.unparse(node) == self._wrapped:
            return self._base
        return super().generic_visit(node)


def _made_of(statement: ast.stmt, wrapped: str, base: str) -> str:
    """The statement, with one thing in the place of another where it reads that."""
    return ast.unparse(_Instead(wrapped, base).visit(copy.deepcopy(statement)))


RULE = LinkedObjects()
