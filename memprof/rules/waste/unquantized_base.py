"""unquantized-base: weights in half precision were made float32, as of a quantized model."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from memprof.rules.case import Case
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.trace import Category
from memprof.units import format_bytes
from memprof.views.stacks import made_through
from memprof.views.window import Window

__all__ = ["RULE"]

_PREPARES = "prepare_model_for_kbit_training"
_OF_PEFT = re.compile(r"/peft/utils/other\.py$")
_LEAST_SHARE = 0.1
"""Of the peak."""
_MOSTLY = 0.5
"""Of all parameters: of a quantized model only norms and embeddings are made wider."""


class UnquantizedBase(WasteRule[Match]):
    """`prepare_model_for_kbit_training(model)`, copied from a script that quantizes."""

    name = "unquantized-base"
    summary = "weights that are not quantized were made float32 as if they were"
    fixes = ("keep_dtype",)

    def matches(self, window: Window) -> Iterator[Match]:
        """Parameters that this function has made, where they are most of a model."""
        made = made_through(
            window,
            lambda one: one.name == _PREPARES and bool(_OF_PEFT.search(one.filename)),
        )
        is_parameter = window.at_peak & (window.category == Category.PARAMETER)
        rows = np.flatnonzero(made & is_parameter)
        nbytes, total = window.bytes_of(made & is_parameter), window.bytes_of(is_parameter)
        if not len(rows) or window.share(nbytes) < _LEAST_SHARE or nbytes < _MOSTLY * total:
            return
        yield Match(
            row=int(rows[window.lives.size[rows].argmax()]),
            rows=rows,
            nbytes=nbytes,
            saving=window.replayed(window.whole(rows), divisor=2),
        )

    def title(self, match: Match) -> str:  # noqa: ARG002 - every match reads the same
        """Say what they are."""
        return "are weights in float32 that were loaded in half precision"

    def advice(self, match: Match, case: Case) -> Iterator[Advice]:
        """Leave it out."""
        call, place = next(iter(case.calls(_PREPARES)), (None, None))
        given = call.args[:1] if call is not None else []
        yield Advice(
            "keep_dtype",
            f"`{_PREPARES}` is for weights of 8 or 4 bits, and makes all others float32: here "
            f"{format_bytes(match.nbytes)}, most of the model. Leave it out: `get_peft_model` "
            "freezes the base by itself.",
            place if given else case.site,
        )


RULE = UnquantizedBase()
