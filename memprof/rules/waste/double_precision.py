"""double-precision: a model was converted to float64, and with it all that is computed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from memprof.rules.case import Case
from memprof.rules.rule import EVERY_OTHER, Advice, Match, WasteRule
from memprof.trace import Category, Frame
from memprof.units import format_bytes
from memprof.views.peak_without import Saving
from memprof.views.stacks import made_through
from memprof.views.window import Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.9
"""Of the parameters' bytes that the conversion made: a model with one layer in double precision,
for a sum that needs it, is meant so."""
_LBFGS_FILE = "/torch/optim/lbfgs.py"
_MODULE_FILE = "/torch/nn/modules/module.py"


class DoublePrecision(WasteRule[Match]):
    """`model.double()`: what is computed with such weights is twice as wide as in float32."""

    name = "double-precision"
    summary = "a model and all it computes are in double precision"
    fixes = ("single_precision",)
    yields_to = EVERY_OTHER  # a simulation may need it

    def matches(self, window: Window) -> Iterator[Match]:
        """Parameters at the peak that ``Module.double`` made."""
        if window.peak.event < 0:
            return
        parameters = window.at_peak & (window.category == Category.PARAMETER)
        double = parameters & made_through(window, _is_conversion)
        if not double.any():
            return
        if window.bytes_of(double) < _LEAST_SHARE * window.bytes_of(parameters):
            return
        if made_through(window, _is_lbfgs).any():  # its line searches end early in float32
            return
        peak = window.peak.bytes
        yield Match(
            row=window.main_site(double),
            rows=np.flatnonzero(window.at_peak),
            nbytes=peak,
            saving=Saving(peak, peak - peak // 2),
        )

    def title(self, match: Match) -> str:  # noqa: ARG002 - every match reads the same
        """Say how wide they are."""
        return "are in double precision"

    def advice(self, match: Match, case: Case) -> Iterator[Advice]:
        """Compute in float32: autocast leaves what is in double precision as it is."""
        nbytes = format_bytes(match.nbytes)
        why = (
            f"The model was made `double()`, and with it the {nbytes}: in float32 they are half. "
            "Leave out `double()`, make the data `float()`, and what says `torch.double` too."
        )
        yield Advice("single_precision", why, case.site)


def _is_conversion(frame: Frame) -> bool:
    """Whether it is a frame of ``Module.double``."""
    if frame.name.rpartition(".")[2] != "double":
        return False
    return frame.filename.replace("\\", "/").endswith(_MODULE_FILE)


def _is_lbfgs(frame: Frame) -> bool:
    return frame.filename.replace("\\", "/").endswith(_LBFGS_FILE)


RULE = DoublePrecision()
