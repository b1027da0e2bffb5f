"""frozen-by-attribute: an attribute is set that freezes nothing, of a module or misspelled."""

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
from memprof.trace import Category
from memprof.units import format_bytes
from memprof.views.window import Window

__all__ = ["RULE"]


@dataclass(frozen=True, slots=True, eq=False)
class NotFrozen(NeedlessTraining):
    """What a module has that was meant to be frozen, and the statement that does not freeze it."""

    attribute: FreezingAttribute | None = None


class FrozenByAttribute(WasteRule[NotFrozen]):
    """A module has no `requires_grad`, and a parameter no `require_grad`: both are only set."""

    name = "frozen-by-attribute"
    summary = "an attribute is set that freezes nothing: of a module, or misspelled"
    fixes = ("freeze_params",)

    def matches(self, window: Window) -> Iterator[NotFrozen]:
        """What the modules of such a statement have, where another module is trained."""
        if len(window.steps) < FEWEST_STEPS:
            return
        paths = window.owners.module.names
        with_gradients = set(window.module[window.category == Category.GRADIENT].tolist())
        for program in window.programs:
            for attribute in freezing_attributes(program, paths[1:]):
                modules = {at for at, path in enumerate(paths) if path in attribute.modules}
                if attribute.meant:
                    modules &= with_gradients  # what the model is put together in has none
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
        receiver = ast.unparse(attribute.receiver)
        is_alone = len(getattr(place.statement, "targets", ())) < 2  # else others are set as well
        own = f"{receiver}.requires_grad_(False)"
        why = "A module has no `requires_grad`"
        if attribute.meant:
            own = f"{receiver}.{attribute.meant} = False"
            why = f"`{attribute.name}` is misspelled, `{attribute.meant}` is meant"
        yield Advice(
            "freeze_params",
            f"{why}: the statement sets an attribute that nothing reads, and gradients are "
            f"computed all the same, for {format_bytes(match.nbytes)}.",
            place,
            patch=diff(place.program, replaced(place.statement, own)) if is_alone else "",
            typed=own,
        )


RULE = FrozenByAttribute()
