"""optimizer-temporaries: an optimizer makes its temporaries for all parameters at once."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

import numpy as np

from memprof.rules.case import Case
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.idioms import arguments_named, keyword, optimizers_made
from memprof.source_code.patch import diff, replaced, with_keyword
from memprof.source_code.program import Place, Program, assigned, calls_in
from memprof.units import format_bytes
from memprof.views.multi_tensor import beyond_one_parameter, multi_tensor_temporaries
from memprof.views.window import Window

__all__ = ["RULE"]

_SETTING = "foreach"
_CLIPPING = ("clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_", "get_total_norm")
"""Functions with a parameter of that name that are no optimizer."""


class OptimizerTemporaries(WasteRule[Match]):
    """The peak is in an optimizer's step, which works on all parameters at once (``foreach``)."""

    name = "optimizer-temporaries"
    summary = "the optimizer's temporaries for all parameters make the peak"
    fixes = ("foreach_false",)

    def matches(self, window: Window) -> Iterator[Match]:
        """Temporaries of a multi-tensor implementation that are there at the peak."""
        if window.peak.event < 0:
            return
        temporary = multi_tensor_temporaries(window)
        mask = temporary & window.at_peak
        if not mask.any():
            return
        rows = np.flatnonzero(temporary)
        spare_rows = beyond_one_parameter(window, rows, window.made_in[rows])
        yield Match(
            row=window.main_site(mask),
            rows=np.flatnonzero(mask),
            nbytes=window.bytes_of(mask),
            saving=window.replayed(window.whole(spare_rows)),
        )

    def title(self, match: Match) -> str:  # noqa: ARG002 - every match reads the same
        """Say whose they are."""
        return "are temporaries of an optimizer that updates all parameters at once"

    def advice(self, match: Match, case: Case) -> Iterator[Advice]:
        """Let the optimizer go tensor by tensor, or fuse its step."""
        constructions, settings = _constructions(case), list(_settings(case.programs))
        place, call = constructions[0] if constructions else (case.site, None)
        patch = ""
        if settings and (call is None or _asks_for_foreach(call) is None):
            place, value = settings[0]
            patch = diff(place.program, replaced(value, "False"))
        elif place is not None and call is not None:
            patch = diff(place.program, with_keyword(call, "foreach", "False"))
        why = (
            "The multi-tensor optimizer makes temporaries for all parameters at once, "
            f"{format_bytes(match.nbytes)} at the peak; `fused=True` makes none and is faster on "
            "CUDA."
        )
        yield Advice("foreach_false", why, place, patch=patch)


def _settings(programs: Sequence[Program]) -> Iterator[tuple[Place, ast.expr]]:
    """Where a program asks for it: of a call, in a dictionary, or of a group of parameters."""
    for place, value in arguments_named(programs, _SETTING):
        clipping = [
            one.value
            for call in calls_in(place.statement, *_CLIPPING)
            for one in call.keywords
            if one.arg == _SETTING
        ]
        if all(one is not value for one in clipping) and _is_true(value):
            yield place, value
    for program in programs:
        for node in program.nodes:
            yield from (
                (at, value)
                for target, value in assigned(node)
                if _is_entry(target) and value is not None and _is_true(value)
                if (at := program.place(node)) is not None
            )


def _is_entry(target: ast.expr) -> bool:
    """Whether it is ``group["foreach"]``."""
    key = target.slice if isinstance(target, ast.Subscript) else None
    return isinstance(key, ast.Constant) and key.value == _SETTING


def _is_true(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is True


def _constructions(case: Case) -> list[tuple[Place, ast.Call]]:
    """Where the program makes its optimizers; those that ask for ``foreach`` first."""
    constructions = [
        (p, c) for c, p in optimizers_made(case.programs) if _asks_for_foreach(c) is not False
    ]
    return sorted(constructions, key=lambda pair: _asks_for_foreach(pair[1]) is not True)


def _asks_for_foreach(call: ast.Call) -> bool | None:
    value = keyword(call, "foreach")
    return bool(value.value) if isinstance(value, ast.Constant) else None


RULE = OptimizerTemporaries()
