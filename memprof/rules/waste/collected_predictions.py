"""collected-predictions: a framework's evaluation keeps what the model returned for every batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from memprof.rules.case import Case
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.trace import Frame
from memprof.units import format_bytes
from memprof.views.stacks import made_through
from memprof.views.window import Bools, Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.3
"""Of the peak: every evaluation keeps something."""


class _ResultCollector(NamedTuple):
    """A function of a framework that keeps the results of every batch until the last is done."""

    path: str
    functions: tuple[str, ...]
    name: str
    instead: str
    """How to let it keep less, as a clause."""


_COLLECTORS = (
    _ResultCollector(
        "/transformers/trainer.py",
        ("evaluation_loop", "prediction_loop"),
        "Trainer",
        "reduce each batch to what the metric needs (`preprocess_logits_for_metrics`, or a metric "
        "that adds up with `batch_eval_metrics=True`), and let the model return nothing else "
        "(no hidden states, no attentions)",
    ),
)


@dataclass(frozen=True, slots=True, eq=False)
class PredictionList(Match):
    """Results, and who collects them."""

    collector: _ResultCollector = _COLLECTORS[0]


class CollectedPredictions(WasteRule[PredictionList]):
    """Logits over a vocabulary, or hidden states, of a whole data set for one number."""

    name = "collected-predictions"
    summary = "an evaluation keeps the model's results for the whole data set"
    fixes = ("reduce_predictions",)
    accumulates = True

    def matches(self, window: Window) -> Iterator[PredictionList]:
        """What a framework's loop made at the peak outside of the model: joined results."""
        if window.peak.event < 0:
            return
        by_module = made_through(window, lambda frame: "_call_impl" in frame.name)
        for collector in _COLLECTORS:
            in_collector = _made_by(window, collector) & ~by_module & ~window.has_owner
            there = in_collector & window.at_peak
            if not there.any() or window.share(window.bytes_of(there)) < _LEAST_SHARE:
                continue
            yield PredictionList(
                row=window.main_site(there),
                rows=np.flatnonzero(there),
                nbytes=window.bytes_of(there),
                saving=window.replayed(window.whole(np.flatnonzero(in_collector))),
                collector=collector,
            )

    def title(self, match: PredictionList) -> str:
        """Say who keeps them."""
        return f"are results of every batch, which the {match.collector.name} collects"

    def advice(self, match: PredictionList, case: Case) -> Iterator[Advice]:
        """Keep less of each batch."""
        why = f"{format_bytes(match.nbytes)} of results are kept until the last batch is done"
        yield Advice("reduce_predictions", f"{why}: {match.collector.instead}.", case.site)


def _made_by(window: Window, collector: _ResultCollector) -> Bools:
    def is_meant(frame: Frame) -> bool:
        path = frame.filename.replace("\\", "/")
        return collector.path in path and frame.name.rpartition(".")[2] in collector.functions

    return made_through(window, is_meant)


RULE = CollectedPredictions()
