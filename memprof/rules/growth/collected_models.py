"""collected-models: a container keeps whole models, one of each fold or trial."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from memprof.records import Holder
from memprof.reference_chain import LinkKind
from memprof.rules.being_made import collecting_statement
from memprof.rules.case import Case
from memprof.rules.containers import (
    FilledContainer,
    below_item,
    filled_container,
    gradient_of_data,
)
from memprof.rules.copied_objects import copied_source, made_by_copying, sized_as_models
from memprof.rules.rule import Advice, Cause, GrowthRule
from memprof.rules.source_facts import handed_over
from memprof.source_code.program import Place, place_of
from memprof.trace import Category
from memprof.views.owners import CATEGORY_NAMES

__all__ = ["RULE"]


_MOSTLY = 0.5
"""Of what grows, in data that are copied."""


@dataclass(frozen=True, slots=True, eq=False)
class CopiedData:
    """Data that are copied with the objects that refer to them."""

    place: Place
    """The statement that copies."""
    source: str
    """What it copies, as it is called there."""
    share: float
    """Of what grows."""


@dataclass(frozen=True, slots=True, eq=False)
class Models(Cause):
    """The container, and the statement that gives it a model."""

    container: FilledContainer
    origin: Place
    copied: CopiedData | None = None
    """What most of it is, where that is no part of the models."""


@dataclass(frozen=True, slots=True, eq=False)
class ModelsOfExpression(Cause):
    """The statement whose expression makes models one by one, and how that begins."""

    place: Place
    call: str


class CollectedModels(GrowthRule[Models | ModelsOfExpression]):
    """`models.append(model)` in a loop over folds, where only the scores are read afterwards."""

    name = "collected-models"
    summary = "a container keeps whole models"
    fixes = ("del_ref", "store_once")
    yields_to = ("unbounded-dict", "kept-graph", "unreset-metric", "registered-callback")

    def match(self, case: Case) -> Models | ModelsOfExpression | None:
        """A container in whose items parts of a model or of an optimizer lie.

        Where a search found no holder, the expression that is making one.
        """
        if case.of_model and not case.finding.holders and case.finding.growth.has_parameters:
            return _of_expression(case)
        container = filled_container(case) if case.of_model else None
        if container is None or container.is_module:
            return None  # parts of one model, such as adapters, are no models
        if any(map(gradient_of_data, case.finding.holders)):
            return None  # tensors that an optimizer was given by hand
        if _is_of_gradients(case, container.holder) or _are_tensors(case.finding.holders):
            return None
        return Models(container, _origin(container, case), _copied_data(case))

    def advice(self, cause: Models | ModelsOfExpression, case: Case) -> Iterator[Advice]:
        """Keep what is read of them."""
        if isinstance(cause, ModelsOfExpression):
            more = ", and the states of its optimizer with it" if all(_shares(case)) else ""
            yield Advice(
                "del_ref",
                f"`{cause.call}` collects objects that each keep a whole model{more}: have each "
                "give its score or its weights alone, and keep the best.",
                cause.place,
            )
            return
        if cause.copied is not None:
            copied = cause.copied
            yield Advice(
                "store_once",
                f"`deepcopy` copies all that `{copied.source}` refers to, and most of that is data "
                "which are there already: where nothing writes to them, keep them out of it, or "
                "have the copy refer to the same: "
                f"`copy.deepcopy({copied.source}, {{id(data): data}})`.",
                copied.place,
                remains=1 - copied.share,
            )
        last_links = {holder.links[-1].kind for holder in case.finding.holders}
        parameters, states = _shares(case)
        if last_links == {LinkKind.OPTIMIZER_STATE} and not case.finding.growth.has_parameters:
            keeps = "optimizers with their state: keep the last one, or the numbers that are read"
            yield Advice("del_ref", f"{cause.container}, and keeps {keeps}.", cause.container.place)
        elif parameters and states:
            keeps = (
                "whole models, each with the states of its optimizer and its gradients: keep the "
                "models alone, after `zero_grad()`; or the best of them, their scores or files"
            )
            why = f"{cause.container}, and keeps {keeps}."
            yield Advice("del_ref", why, cause.origin, remains=parameters)
        else:
            keeps = "whole models: keep the last or the best of them, or their scores or files"
            yield Advice("del_ref", f"{cause.container}, and keeps {keeps}.", cause.origin)


def _of_expression(case: Case) -> ModelsOfExpression | None:
    """The expression that makes what stays, one by one, on the way to all that was made."""
    collecting = collecting_statement(case.finding.stack)
    if collecting is None:
        return None
    place, value = collecting
    call = f"{ast.unparse(value.func)}(…)" if isinstance(value, ast.Call) else "[… for …]"
    return ModelsOfExpression(place, call)


def _are_tensors(holders: Sequence[Holder]) -> bool:
    """Whether the items are the tensors themselves, as of who was given one to move by hand."""
    return bool(holders) and all(
        holder.links[-1].kind == LinkKind.ITEM
        and holder.links[-1].type_name == "list"
        and not below_item(holder)
        for holder in holders
    )


def _is_of_gradients(case: Case, holder: Holder) -> bool:
    """Whether the items are gradients, and no models have them."""
    is_item = holder.links[-1].kind == LinkKind.ITEM
    return is_item and case.finding.category == CATEGORY_NAMES[Category.GRADIENT]


def _shares(case: Case) -> tuple[float, float]:
    """The shares of the bytes that are parameters, which stay with the models, and states."""
    window = case.window
    if window is None:
        return 0.0, 0.0
    rows = np.flatnonzero(np.isin(window.lives.alloc, case.finding.evidence.allocs))
    sizes, category = window.lives.size[rows], window.category[rows]
    parameters, states = (
        float(sizes[category == one].sum()) / max(1, int(sizes.sum()))
        for one in (Category.PARAMETER, Category.OPTIMIZER_STATE)
    )
    return parameters, states


def _copied_data(case: Case) -> CopiedData | None:
    """What `deepcopy` copied besides models, where that is most of it and is there once more."""
    window = case.window
    if window is None:
        return None
    lives, is_of_copies = window.lives, made_by_copying(window) & ~window.has_owner
    grown = np.isin(lives.alloc, case.finding.evidence.allocs)
    copied = grown & is_of_copies & ~sized_as_models(window)
    copied &= np.isin(lives.requested, np.unique(lives.requested[window.at_peak & ~is_of_copies]))
    share = window.bytes_of(copied) / max(1, window.bytes_of(grown))
    if share < _MOSTLY:
        return None
    place = place_of(window.frame_of(window.largest(copied)))
    source = copied_source(place) if place is not None else ""
    return CopiedData(place, source, share) if place is not None and source else None


def _origin(container: FilledContainer, case: Case) -> Place:
    """The statement that gives a model to what the container keeps: ``trial.model = model``."""
    for link in below_item(container.holder):
        place = case.place_at(link.filename, link.line) if link.kind == LinkKind.ATTRIBUTE else None
        if place is None:
            continue
        source = handed_over(case, place, getattr(place.statement, "value", None))
        if source is None and place.function is not None and place.function.name == "__init__":
            continue  # an item makes its own model: what keeps the item is to keep less
        return source[0] if source is not None else place
    source = handed_over(case, container.place, container.filling.values[-1])
    return source[0] if source is not None else container.place


RULE = CollectedModels()
