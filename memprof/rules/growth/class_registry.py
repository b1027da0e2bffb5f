"""class-registry: a class's own attribute keeps every object that was registered there."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from memprof.records import Holder
from memprof.reference_chain import LinkKind, instance_attribute
from memprof.rules.case import Case, says
from memprof.rules.containers import FilledContainer, below_item, filled_registry, is_cache
from memprof.rules.rule import Advice, Cause, GrowthRule
from memprof.rules.standard_registries import registration
from memprof.source_code.idioms import last_name
from memprof.source_code.patch import diff, replaced, with_import
from memprof.source_code.program import Place, bound_names

__all__ = ["RULE"]


@dataclass(frozen=True, slots=True, eq=False)
class Registry(Cause):
    """The attribute, and the statement that fills it."""

    holder: Holder
    place: Place | None
    """The statement that makes it, or what the holder names; None where that is not here."""
    filled: FilledContainer | None

    @property
    def of_objects(self) -> bool:
        """Whether objects that have the tensors are registered, and not the tensors themselves."""
        return bool(below_item(self.holder))


class ClassRegistry(GrowthRule[Registry]):
    """`Layer._all.add(self)` in a constructor: each instance lives as long as the class."""

    name = "class-registry"
    summary = "a class keeps every object that was registered with it"
    fixes = ("weakref", "own_container", "clear_container")
    precedes = ("kept-graph",)
    yields_to = ("unbounded-dict",)

    def match(self, case: Case) -> Registry | None:
        """A class's attribute in a chain of references."""
        holder = case.holder(LinkKind.CLASS_ATTRIBUTE)
        if holder is None or LinkKind.LRU_CACHE in case.links:
            return None
        if instance_attribute(holder.links) is not None:
            return None  # the container is an object's, of which the class has one
        if registration([holder]) is not None:
            return None  # a class of the standard library, to which nobody adds a WeakSet
        place, filled = case.place_of(holder), filled_registry(case)
        names = {link.name for link in holder.links if link.kind == LinkKind.CLASS_ATTRIBUTE}
        if filled is not None and place is not None and not _binds(place, names):
            place = None  # of a variable that leads to the class
        return Registry(holder, place, filled)

    def advice(self, cause: Registry, case: Case) -> Iterator[Advice]:  # noqa: ARG002 - the registry says all
        """Register objects weakly; or take them out again."""
        of_class, take = says(cause.holder), "Take"
        filled_at = cause.filled.place if cause.filled is not None else None
        cache = cause.filled is not None and is_cache(cause.filled)
        if cause.of_objects and not cache:  # else nothing but the registry may hold the tensors
            take = "Or take"
            yield Advice(
                "weakref",
                f"Every object that was registered lives as long as the class: {of_class}.",
                cause.place or filled_at,
                patch=_weak(cause.place),
            )
        filled = cause.filled
        if filled is not None and not cause.of_objects and not cache:
            name = filled.filling.container
            if name.startswith("self."):  # whoever means the class's own writes its name
                take = "Or take"
                yield Advice(
                    "own_container",
                    f"`{name}` is one container for all objects of the class, and lives as long as "
                    "the process: make it in `__init__`.",
                    cause.place or filled.place,
                )
        yield Advice(
            "clear_container",
            f"{take} things out again: {of_class}.",
            filled.place if filled is not None else cause.place,
            otherwise=True,
        )


def _binds(place: Place, names: Collection[str]) -> bool:
    """Whether a statement makes a class's attribute of one of some names."""
    return any(last_name(ast.unparse(one)) in names for one in bound_names(place.statement))


def _weak(place: Place | None) -> str:
    """``_all = set()`` becomes ``_all = weakref.WeakSet()``."""
    statement = place.statement if place is not None else None
    if place is None or not isinstance(statement, (ast.Assign, ast.AnnAssign)):
        return ""
    if statement.value is None or ast.unparse(statement.value) != "set()":
        return ""
    edits = with_import(place.program, "weakref")
    if edits is None:
        return ""
    return diff(place.program, *edits, replaced(statement.value, "weakref.WeakSet()"))


RULE = ClassRegistry()
