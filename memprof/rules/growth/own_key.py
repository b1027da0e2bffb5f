"""own-key: the value under a weak key refers to that key, which so never ends."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from memprof.records import Holder
from memprof.reference_chain import IN_PATHS, LinkKind
from memprof.rules.case import Case
from memprof.rules.rule import Advice, Cause, GrowthRule
from memprof.source_code.idioms import filling, last_name
from memprof.source_code.patch import diff, replaced, with_import
from memprof.source_code.program import Place

__all__ = ["RULE"]

_STATEMENTS = (ast.AnnAssign, ast.Assign, ast.Expr, ast.Return)
"""Those that may put something under a key."""


@dataclass(frozen=True, slots=True, eq=False)
class ValueWithKey(Cause):
    """The dict, and the statement by which the value refers to the key."""

    container: str
    length: int
    place: Place | None


class OwnKey(GrowthRule[ValueWithKey]):
    """`self._loops[learner] = InnerLoop(learner)` of a `weakref.WeakKeyDictionary`."""

    name = "own-key"
    summary = "a value under a weak key keeps its own key alive"
    fixes = ("weakref",)
    precedes = (
        *("collected-models", "collecting-object", "growing-container", "unbounded-dict"),
        *("kept-graph", "linked-objects", "uncalled-release"),
    )

    def match(self, case: Case) -> ValueWithKey | None:
        """Chains that all go through such an entry: nothing else keeps the key."""
        holders = case.finding.holders
        entries = [at for holder in holders if (at := _entry_at(holder)) is not None]
        if not holders or len(entries) < len(holders):
            return None
        at, links = entries[0], holders[0].links
        is_named = bool(at) and links[at - 1].kind in (*IN_PATHS, LinkKind.CLASS_ATTRIBUTE)
        container = links[at - 1].name if is_named else ""
        below = links[at + 1] if at + 1 < len(links) else None
        if below is not None and below.kind is LinkKind.BOUND_METHOD:
            below = None  # where the method is defined says nothing of the entry
        place = case.place_at(below.filename, below.line) if below is not None else None
        if place is None and links[at - 1].kind is LinkKind.CLASS_ATTRIBUTE:
            place = _only_filling(case, container)
        return ValueWithKey(container, links[at].length, place or case.place_of(holders[0]))

    def advice(self, cause: ValueWithKey, case: Case) -> Iterator[Advice]:  # noqa: ARG002 - the entry says all
        """Let the value refer to the key weakly."""
        name = f"`{cause.container}` ({cause.length} items)" if cause.container else "A dict"
        yield Advice(
            "weakref",
            f"{name} refers to its keys weakly, but each value refers to its own key and keeps it: "
            "let the value refer to it weakly, too (`weakref.proxy`, `weakref.ref`).",
            cause.place,
            patch=_proxy(cause.place),
        )


def _entry_at(holder: Holder) -> int | None:
    """The position of an entry whose value refers to its own key; None without one."""
    return next((at for at, link in enumerate(holder.links) if link.keeps_own_key), None)


def _only_filling(case: Case, container: str) -> Place | None:
    """The one statement that puts something under a key of what has that name; else None."""
    places = [
        program.place(node)
        for program in case.programs
        for node in program.nodes
        if isinstance(node, _STATEMENTS)
        and (growth := filling(node)) is not None
        and growth.keyed
        and last_name(growth.container) == container
    ]
    return places[0] if len(places) == 1 else None


def _proxy(place: Place | None) -> str:
    """``self.learner = learner`` becomes ``self.learner = weakref.proxy(learner)``.

    Only where the statement stores a parameter in an attribute.
    """
    statement = place.statement if place is not None else None
    if place is None or not isinstance(statement, ast.Assign) or place.function is None:
        return ""
    value, (target, *more) = statement.value, statement.targets
    own = {argument.arg for argument in place.function.args.args}
    if more or not isinstance(target, ast.Attribute) or not isinstance(value, ast.Name):
        return ""
    edits = with_import(place.program, "weakref")
    if edits is None or value.id not in own:
        return ""
    return diff(place.program, *edits, replaced(value, f"weakref.proxy({value.id})"))


RULE = OwnKey()
