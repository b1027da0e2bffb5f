"""unread-field: each item of a container keeps something that nothing reads."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from memprof.reference_chain import Link, LinkKind, largest_container
from memprof.rules.case import Case
from memprof.rules.containers import filled_container
from memprof.rules.rule import EVERY_OTHER, Advice, Cause, GrowthRule
from memprof.source_code.program import Place, Program, called_name

__all__ = ["RULE"]

_FEWEST_ITEMS = 8
"""In a container, below which a chain of objects looks like one."""
_READING_ALL = frozenset(
    (
        *("asdict", "astuple", "copy", "deepcopy", "dump", "dumps", "fields", "getattr"),
        *("replace", "save", "to_dict", "vars"),
    )
)
"""Functions that read what an object has without naming it."""


@dataclass(frozen=True, slots=True, eq=False)
class UnreadField(Cause):
    """The attribute, the class of the items, and the statement that gives it to them."""

    name: str
    class_name: str
    items: int
    place: Place


class UnreadFieldOfItems(GrowthRule[UnreadField]):
    """`Answer(tokens, raw=out)`: the tokens are read later, and `raw` never is."""

    name = "unread-field"
    summary = "each item of a container keeps something that nothing reads"
    fixes = ("del_ref",)
    yields_to = EVERY_OTHER
    precedes = ("growing-container",)

    def match(self, case: Case) -> UnreadField | None:
        """An attribute of items of the program's own class that its source only ever sets."""
        container = filled_container(case)
        at = largest_container(container.holder.links) if container is not None else None
        if container is None or at is None:
            return None
        items, below = container.holder.links[at].length, container.holder.links[at + 1 : at + 2]
        if items < _FEWEST_ITEMS or not below or not _is_of_program(below[0]):
            return None
        name, class_name = below[0].name, below[0].type_name.rpartition(".")[2]
        if any(_may_read(program, name) for program in case.everywhere):
            return None
        place = _given_at(case, name, class_name)
        return UnreadField(name, class_name, items, place) if place is not None else None

    def advice(self, cause: UnreadField, case: Case) -> Iterator[Advice]:  # noqa: ARG002 - the cause says all
        """Leave it out."""
        yield Advice(
            "del_ref",
            f"Nothing reads the `{cause.name}` of `{cause.class_name}`, which {cause.items} items "
            "keep: leave it out, or keep of it what is read.",
            cause.place,
        )


def _is_of_program(link: Link) -> bool:
    """Whether a link is from an object to an attribute that a class of the program's own has."""
    return link.kind == LinkKind.ATTRIBUTE and bool(link.filename)


def _may_read(program: Program, name: str) -> bool:
    """Whether a file reads an attribute of that name, or may do so without naming it."""
    for node in ast.walk(program.tree):
        if isinstance(node, ast.Call) and called_name(node) in _READING_ALL:
            return True
        is_read = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
        if is_read and node.attr in (name, "__dict__"):  # type: ignore[attr-defined]
            return True
    return False


def _given_at(case: Case, name: str, class_name: str) -> Place | None:
    """The call of the class that is handed it under its name, else what assigns the attribute."""
    for call, place in case.calls(class_name):
        if any(keyword.arg == name for keyword in call.keywords):
            return place
    for program in case.programs:
        for node in ast.walk(program.tree):
            is_set = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
            if is_set and node.attr == name:  # type: ignore[attr-defined]
                return program.place(node)
    return next((place for call, place in case.calls(class_name) if call.args), None)


RULE = UnreadFieldOfItems()
