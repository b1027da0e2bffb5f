"""frozen-by-attribute: `module.requires_grad = False` freezes none of the module's parameters."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, fields

from memprof.rules.case import Case
from memprof.rules.lifespan import FEWEST_STEPS
from memprof.rules.needless_graphs import NeedlessTraining, needless_training
from memprof.rules.rule import Advice, WasteRule
from memprof.source_code.frozen_by_attribute import FreezingAttribute, freezing_attributes
from memprof.source_code.patch import diff, replaced
from memprof.units import format_bytes
from memprof.views.window import Window

__all__ = ["RULE"]


@dataclass(frozen=True, slots=True, eq=False)
class NotFrozen(NeedlessTraining):
    """What a module has that was meant to be frozen, and the statement that does not freeze it."""

    attribute: FreezingAttribute | None = None


class FrozenByAttribute(WasteRule[NotFrozen]):
    """A module has no `requires_grad`: setting it makes an attribute, and freezes no parameter."""

    name = "frozen-by-attribute"
    summary = "`requires_grad = False` of a module freezes none of its parameters"
    fixes = ("freeze_params",)

    def matches(self, window: Window) -> Iterator[NotFrozen]:
        """What the modules of such a statement have, where another module is trained."""
        if len(window.steps) < FEWEST_STEPS:
            return
        paths = window.owners.module.names
        for program in window.programs:
            for attribute in freezing_attributes(program, paths[1:]):
                modules = {at for at, path in enumerate(paths) if path in attribute.modules}
                match = needless_training(window, modules)
                if match is not None:
                    own = {one.name: getattr(match, one.name) for one in fields(match)}
                    yield NotFrozen(**own, attribute=attribute)

    def title(self, match: NotFrozen) -> str:
        """Say whose they are."""
        return f"are {match.what} of {match.modules}, which was to be frozen and is not"

    def advice(self, match: NotFrozen, case: Case) -> Iterator[Advice]:  # noqa: ARG002 - the match says all
        """Call the method that freezes the parameters."""
        attribute = match.attribute
        assert attribute is not None
        place = attribute.place
        own = f"{ast.unparse(attribute.receiver)}.requires_grad_(False)"
        yield Advice(
            "freeze_params",
            "A module has no `requires_grad`: the statement sets an attribute that nothing reads, "
            f"and its parameters are trained, for {format_bytes(match.nbytes)}.",
            place,
            patch=diff(place.program, replaced(place.statement, own)),
            typed=own,
        )


RULE = FrozenByAttribute()
