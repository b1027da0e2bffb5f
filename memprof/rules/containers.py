"""Containers that grow: the statements that fill them, and what their items are."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from memprof.records import Holder
from memprof.reference_chain import CYCLES, Link, LinkKind, breadth
from memprof.rules.case import Case
from memprof.source_code.idioms import Filling, checks_for_key, growing, last_name
from memprof.source_code.program import FUNCTIONS, Place, bound_names

__all__ = ["FilledContainer", "below_item", "filled_container", "filled_registry", "is_cache"]


@dataclass(frozen=True, slots=True, eq=False)
class FilledContainer:
    """A container that the program's own source fills."""

    holder: Holder
    place: Place
    """The statement that fills it."""
    filling: Filling

    def __str__(self) -> str:
        """Say that it grows, and how long it is, where that was seen."""
        length = max(self.holder.links, key=breadth).length if self.holder.links else -1
        size = f" ({length} items)" if length > 0 else ""
        return f"`{self.filling.container}`{size} only grows"


def filled_container(case: Case) -> FilledContainer | None:
    """The container of the first holder that the source shows to be filled.

    None where a cycle or a memoized function holds the tensors: that is what is wrong then.
    """
    if case.links & CYCLES or LinkKind.LRU_CACHE in case.links:
        return None
    for holder in case.found.holders:
        place = case.place_of(holder)
        if place is None:
            continue
        filling = growing(place)
        if filling is None or isinstance(place.statement, FUNCTIONS):
            place = _filling_statement(place)
            filling = growing(place)
        if place is not None and filling is not None:
            return FilledContainer(holder, place, filling)
    return None


def filled_registry(case: Case) -> FilledContainer | None:
    """The same of a class's own attribute: ``cls._made[key] = made``."""
    holder = case.holder(LinkKind.CLASS_ATTRIBUTE)
    if holder is None or LinkKind.LRU_CACHE in case.links:
        return None
    names = {link.name for link in holder.links if link.kind == LinkKind.CLASS_ATTRIBUTE}
    for program in case.programs:
        for node in ast.walk(program.tree):
            if isinstance(node, (ast.Expr, ast.Assign)):
                place = program.place(node)
                filling = growing(place)
                if place is not None and filling and last_name(filling.container) in names:
                    return FilledContainer(holder, place, filling)
    return None


def is_cache(container: FilledContainer) -> bool:
    """Whether the function that fills a container asks it for the key first."""
    filling = container.filling
    return filling.keyed and checks_for_key(container.place, filling.container)


def below_item(holder: Holder) -> Sequence[Link]:
    """The links of a chain below the item of the largest container."""
    items = [at for at, link in enumerate(holder.links) if link.kind == LinkKind.ITEM]
    top = max(items, key=lambda at: breadth(holder.links[at]), default=len(holder.links))
    return holder.links[top + 1 :]


def _filling_statement(place: Place) -> Place | None:
    """The statement that fills what a line makes: ``kept = []`` or ``def f(x, kept=[])``."""
    statement = place.statement
    scope: ast.AST = place.scope
    names = {ast.unparse(target) for target in bound_names(statement)}
    if isinstance(statement, FUNCTIONS):
        scope = statement
        arguments = statement.args
        names = {a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    for node in ast.walk(scope):
        if isinstance(node, (ast.Expr, ast.Assign)):
            where = place.program.place(node)
            filling = growing(where)
            if filling is not None and filling.container in names:
                return where
    return None
