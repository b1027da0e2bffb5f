"""frozen-twin: a frozen model stands beside the same frozen model with adapters."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

import numpy as np

from memprof.rules.case import Case
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.program import called_name, place_of
from memprof.trace import Category, Frame
from memprof.units import format_bytes
from memprof.views.window import Ints, Window

__all__ = ["RULE"]

_ADAPTED = "Peft"
"""How the classes begin that PEFT puts around a model."""
_ADAPTING = "get_peft_model"
_LEAST_COMMON = 0.95
"""Of the bytes of both, in parameters of one size: a head may differ."""
_LEAST_SIZES = 2
"""Different sizes of parameters: a single one is met by chance."""
_COPY = "deepcopy"
"""Python's function that copies a model."""


class FrozenTwin(WasteRule[Match]):
    """A reference for preference training, copied from the base that adapters are trained on."""

    name = "frozen-twin"
    summary = "a frozen model stands beside the same frozen model with adapters"
    fixes = ("disable_adapter",)
    yields_to = ("loaded",)

    def matches(self, window: Window) -> Iterator[Match]:
        """A model without gradients that is, size for size, the frozen part of one with adapters.

        And which was copied, or made by the same call.
        """
        by_model = _frozen_parameters(window)
        for adapted, base in by_model.items():
            if not adapted.startswith(_ADAPTED):
                continue
            for other, twin in by_model.items():
                if other.startswith(_ADAPTED) or not _are_alike(window, base, twin):
                    continue
                if not _is_same_model(window, base, twin):
                    continue
                is_copy = any(one.name == _COPY for one in window.stack(int(twin[0])))
                parting = () if is_copy else _parting(window, base, twin)
                yield Match(
                    row=int(twin[np.argmax(window.lives.size[twin])]),
                    rows=twin,
                    nbytes=int(window.lives.size[twin].sum()),
                    saving=window.replayed(window.whole(twin)),
                    look_at=parting[1] if parting else None,
                )
                return

    def title(self, match: Match) -> str:  # noqa: ARG002 - every match reads the same
        """Say what they are, and of what."""
        return "are a frozen model beside the same frozen model with adapters"

    def advice(self, match: Match, case: Case) -> Iterator[Advice]:
        """Switch the adapters off for the reference."""
        why = (
            f"{format_bytes(match.nbytes)} are weights that the model with adapters has as well, "
            "as nothing trains them: make no second model, and call that one within "
            "`with model.disable_adapter():` instead."
        )
        frame = match.look_at
        place = case.place_at(frame.filename, frame.line) if frame is not None else case.site
        yield Advice("disable_adapter", why, place)


def _frozen_parameters(window: Window) -> dict[str, Ints]:
    """By model, the parameters at the peak that no gradient was made of."""
    names = window.owners.module.names
    with_gradient = np.zeros(len(names), dtype=bool)
    with_gradient[window.module[window.category == Category.GRADIENT]] = True
    of_model = np.array([name.partition(".")[0] for name in names])[window.module]
    frozen = (window.category == Category.PARAMETER) & window.at_peak
    frozen &= ~with_gradient[window.module]
    models = np.unique(of_model[frozen]).tolist()
    return {model: np.flatnonzero(frozen & (of_model == model)) for model in models if model}


def _are_alike(window: Window, base: Ints, twin: Ints) -> bool:
    """Whether both have parameters of the same sizes, one for one."""
    requested = window.lives.requested
    sizes, others = (Counter(requested[rows].tolist()) for rows in (base, twin))
    common = sum(size * count for size, count in (sizes & others).items())
    most = max(sum(size * count for size, count in one.items()) for one in (sizes, others))
    return len(sizes) >= _LEAST_SIZES and common >= _LEAST_COMMON * most


def _is_same_model(window: Window, base: Ints, twin: Ints) -> bool:
    """Whether one was copied of the other, or a call that is written alike made both."""
    stacks = [window.stack(int(rows[0])) for rows in (base, twin)]
    if any(frame.name == _COPY for stack in stacks for frame in stack):
        return True
    calls = {_call_bound_at(frame) for frame in _parting(window, base, twin)}
    return len(calls) == 1 and "" not in calls


def _parting(window: Window, base: Ints, twin: Ints) -> tuple[Frame, ...]:
    """The lines of one function from which each of two models was made; empty for one line."""
    stacks = [window.stack(int(rows[0])) for rows in (base, twin)]
    outermost_first = [window.user_frames(stack)[::-1] for stack in stacks]
    pairs = zip(*outermost_first, strict=False)
    return next((pair for pair in pairs if pair[0] != pair[1]), ())


def _call_bound_at(frame: Frame) -> str:
    """The text of the call that makes the model which a frame's statement binds; empty for none.

    Of ``load().eval()`` it is ``load()``, and of ``get_peft_model(load(), config)``.
    """
    place = place_of(frame)
    value = place.statement.value if place and isinstance(place.statement, ast.Assign) else None
    while isinstance(value, ast.Call):
        if isinstance(value.func, ast.Attribute) and isinstance(value.func.value, ast.Call):
            value = value.func.value
        elif called_name(value).startswith((_ADAPTED, _ADAPTING)) and value.args:
            value = value.args[0]
        else:
            return ast.unparse(value)
    return ""


RULE = FrozenTwin()
