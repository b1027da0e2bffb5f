"""binned-curve: a metric compares each value with hundreds of thresholds at once."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import NO_FIGURE, Case
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.idioms import keyword
from memprof.source_code.program import Place
from memprof.source_code.scopes import qualified_name
from memprof.trace import Frame
from memprof.units import format_bytes
from memprof.views.stacks import made_through
from memprof.views.window import Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.2
"""Of the peak."""
_COUNTS = re.compile(r"_precision_recall_curve_update(_vectorized)?$")
_OF_TORCHMETRICS = re.compile(r"/torchmetrics/functional/")
_LIBRARY, _KEYWORD = "torchmetrics.", "thresholds"


@dataclass(frozen=True, slots=True, eq=False)
class BinnedCurve(Match):
    """What a curve of torchmetrics counts with."""


class BinnedCurveRule(WasteRule[BinnedCurve]):
    """`MultilabelAveragePrecision(num_labels=64, thresholds=500)`, updated by whole batches."""

    name = "binned-curve"
    summary = "a metric compares each value with hundreds of thresholds at once"
    fixes = ("fewer_thresholds", "chunk")

    def matches(self, window: Window) -> Iterator[BinnedCurve]:
        """What torchmetrics makes to count between thresholds, at the peak."""
        made = made_through(window, _is_counting) & ~window.has_owner & ~window.stays
        there = np.flatnonzero(made & window.at_peak)
        nbytes = window.bytes_of(made & window.at_peak)
        if not len(there) or window.share(nbytes) < _LEAST_SHARE:
            return
        yield BinnedCurve(
            row=int(there[window.lives.size[there].argmax()]),
            rows=there,
            nbytes=nbytes,
            saving=window.replayed(window.whole(np.flatnonzero(made))),
        )

    def title(self, match: BinnedCurve) -> str:  # noqa: ARG002 - every match reads the same
        """Say what they compare."""
        return "compare every value of a batch with every threshold of a curve"

    def advice(self, match: BinnedCurve, case: Case) -> Iterator[Advice]:
        """Keep the values, where they are fewer; else compare them with fewer, or in parts."""
        made = [*_curves(case)]  # of several it is not known which of them this is
        call, place = made[0] if len(made) == 1 else (None, None)
        given = keyword(call, _KEYWORD) if call is not None else None
        typed, number = "", "all thresholds"
        if call is not None and given is not None:
            typed = _without(call)
            if isinstance(given, ast.Constant) and isinstance(given.value, int):
                number = f"{given.value} thresholds"
        yield Advice(
            "fewer_thresholds",
            f"{format_bytes(match.nbytes)} compare each value with {number} at once, as int64. "
            "The exact curve keeps the values themselves, some bytes for each: that takes less "
            "where all that it is given has fewer values than a batch has comparisons. Or take "
            "few thresholds (50).",
            place or case.site,
            call.lineno if call is not None else 0,
            typed=typed,
        )
        yield Advice(
            "chunk", "Or update the metric with parts of the batch.", case.site, saving=NO_FIGURE
        )


def _is_counting(frame: Frame) -> bool:
    return bool(_COUNTS.search(frame.name) and _OF_TORCHMETRICS.search(frame.filename))


def _curves(case: Case) -> Iterator[tuple[ast.Call, Place]]:
    """Calls that make a metric of torchmetrics with thresholds."""
    for call, place in case.calls():
        is_given = keyword(call, _KEYWORD) is not None
        if is_given and qualified_name(place, call.func).startswith(_LIBRARY):
            yield call, place


def _without(call: ast.Call) -> str:
    """The call as code, without its thresholds."""
    others = [one for one in call.keywords if one.arg != _KEYWORD]
    return ast.unparse(ast.Call(func=call.func, args=call.args, keywords=others))


RULE = BinnedCurveRule()
