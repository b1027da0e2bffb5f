"""returned-predictions: a framework's loop keeps what each batch returns, to return all of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from memprof.records import Holder
from memprof.reference_chain import LinkKind
from memprof.rules.case import Case
from memprof.rules.rule import Advice, Cause, GrowthRule
from memprof.source_code.program import Place

__all__ = ["RULE"]


class _Loop(NamedTuple):
    """A loop of a framework, and the attribute that it collects results in."""

    type_name: str
    attribute: str
    step: str
    """The method of the program's that returns the results of a batch."""
    call: str
    instead: str
    """How to have nothing collected."""


_LOOPS = (
    _Loop(
        "_PredictionLoop",  # lightning/pytorch/loops/prediction_loop.py
        "_predictions",
        "predict_step",
        "trainer.predict()",
        "`trainer.predict(…, return_predictions=False)` keeps none, and a "
        "`BasePredictionWriter` is given each",
    ),
)


@dataclass(frozen=True, slots=True, eq=False)
class Predictions(Cause):
    """The loop, and where the results of a batch come from."""

    loop: _Loop
    place: Place | None


class ReturnedPredictions(GrowthRule[Predictions]):
    """`predict_step` returns logits of every pixel, of which later the largest are counted."""

    name = "returned-predictions"
    summary = "a framework's loop keeps the results of every batch, to return them all"
    fixes = ("reduce_predictions",)
    precedes = (
        *("collecting-object", "growing-container", "uncalled-release", "kept-graph"),
        *("kept-attribute", "unreset-metric"),
    )

    def match(self, case: Case) -> Predictions | None:
        """A chain of references through the list of such a loop."""
        for holder in case.finding.holders[:1]:
            loop = _loop_of(holder)
            if loop is not None:
                return Predictions(loop, _returned_at(case, loop))
        return None

    def advice(self, cause: Predictions, case: Case) -> Iterator[Advice]:
        """Return less of each batch."""
        loop = cause.loop
        yield Advice(
            "reduce_predictions",
            f"`{loop.call}` keeps what `{loop.step}` returns for every batch until the last is "
            "done: return what is needed of it (the class of each pixel, a count, a number). "
            f"{loop.instead}.",
            cause.place or case.site,
        )


def _loop_of(holder: Holder) -> _Loop | None:
    for link in holder.links:
        for loop in _LOOPS:
            is_list = link.kind == LinkKind.ATTRIBUTE and link.name == loop.attribute
            if is_list and link.type_name == loop.type_name:
                return loop
    return None


def _returned_at(case: Case, loop: _Loop) -> Place | None:
    """The line of the program's own step on the way to what was made; None without one."""
    places = (place for frame, place in case.frames if frame.name.rpartition(".")[2] == loop.step)
    return next(places, None)


RULE = ReturnedPredictions()
