"""frozen-twin: a frozen model stands beside the same frozen model with adapters."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.adapters import adapters_by_hand
from memprof.source_code.program import Place, bound_names, called_name, calls_in, place_of
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
_LOADING = "from_pretrained"
"""By which libraries load a model, in threads of their own."""


@dataclass(frozen=True, slots=True, eq=False)
class Twin(Match):
    """Where the second model comes from, and what has the adapters of the first."""

    place: Place | None = None
    """The statement, where another than the one that made the tensors."""
    adapter: str = ""
    """The class of the program's own that has adapters; empty: PEFT."""


class FrozenTwin(WasteRule[Twin]):
    """A reference for preference training, copied from the base that adapters are trained on."""

    name = "frozen-twin"
    summary = "a frozen model stands beside the same frozen model with adapters"
    fixes = ("disable_adapter",)
    yields_to = ("loaded",)

    def matches(self, window: Window) -> Iterator[Twin]:
        """A model without gradients that is, size for size, the frozen part of one with adapters.

        And which was copied, or made by the same call.
        """
        by_model = _frozen_parameters(window)
        by_hand = _adapted_by_hand(window)
        for adapted, base in by_model.items():
            if not (adapted.startswith(_ADAPTED) or adapted in by_hand):
                continue
            for other, twin in by_model.items():
                if other.startswith(_ADAPTED) or other in by_hand or other == adapted:
                    continue
                if not _are_alike(window, base, twin):
                    continue
                is_same, place = _same_model(window, base, twin)
                if not is_same:
                    continue
                yield Twin(
                    row=int(twin[np.argmax(window.lives.size[twin])]),
                    rows=twin,
                    nbytes=int(window.lives.size[twin].sum()),
                    saving=window.replayed(window.whole(twin)),
                    place=place,
                    adapter=by_hand.get(adapted, ""),
                )
                return

    def title(self, match: Twin) -> str:  # noqa: ARG002 - every match reads the same
        """Say what they are, and of what."""
        return "are a frozen model beside the same frozen model with adapters"

    def advice(self, match: Twin, case: Case) -> Iterator[Advice]:
        """Switch the adapters off for the reference."""
        how = "within `with model.disable_adapter():` instead"
        if match.adapter:
            how = f"with a switch of `{match.adapter}` by which it leaves out what is its own"
        why = (
            f"{format_bytes(match.nbytes)} are weights that the model with adapters has as well, "
            f"as nothing trains them: make no second model, and call that one {how}."
        )
        place = match.place
        at = case.place_at(place.program.filename, place.line) if place is not None else None
        yield Advice("disable_adapter", why, at or case.site)


def _adapted_by_hand(window: Window) -> dict[str, str]:
    """By model with layers around which the program's own class puts adapters: that class."""
    names = window.owners.module.names
    adapted: dict[str, str] = {}
    for adapter in adapters_by_hand(window.programs):
        for name in names:
            if adapter.base and name.endswith(f".{adapter.base}"):
                adapted.setdefault(name.partition(".")[0], adapter.class_name)
    return adapted


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


def _same_model(window: Window, base: Ints, twin: Ints) -> tuple[bool, Place | None]:
    """Whether one is a copy of the other, or made alike; and the statement of the second, if known.

    One is copied, loads what the other has, or both are made by a call that is written alike.
    """
    stacks = [window.stack(int(rows[0])) for rows in (base, twin)]
    if not any(map(window.user_frames, stacks)):
        place = _loaded_again(window)
        return place is not None, place
    parting = [place_of(frame) for frame in _parting(window, base, twin)]
    copied = [any(frame.name == _COPY for frame in stack) for stack in stacks]
    if any(copied):
        return True, parting[0] if parting and not copied[1] else None
    for frame in window.user_frames(stacks[1]):
        place = place_of(frame)
        if place is not None and _takes_values(place):
            return True, place
    calls = {_call_bound_at(place) for place in parting}
    is_alike = len(calls) == 1 and "" not in calls
    return is_alike, parting[1] if is_alike else None


def _loaded_again(window: Window) -> Place | None:
    """The statement that loads a model which another one loads as well, and puts adapters around.

    By the source: threads of the library read the values, and no line of the program has called.
    """
    loaded: dict[str, list[Place]] = {}
    for program in window.programs:
        for call in calls_in(program.tree, _LOADING):
            place = program.place(call)
            if place is not None and _call_bound_at(place) == ast.unparse(call):
                loaded.setdefault(ast.unparse(call), []).append(place)
    alike = [places for places in loaded.values() if len(places) > 1]
    if len(alike) != 1:
        return None
    plain = [place for place in alike[0] if not _is_adapted(place)]
    return plain[0] if len(plain) == 1 else None


def _is_adapted(place: Place) -> bool:
    """Whether PEFT puts adapters around what a statement binds, there or later."""
    names = {ast.unparse(one) for one in bound_names(place.statement)}
    calls = [one for one in calls_in(place.scope) if called_name(one).startswith(_ADAPTING)]
    calls += [one for one in calls_in(place.scope) if called_name(one).startswith(_ADAPTED)]
    inside = {id(node) for node in ast.walk(place.statement)}
    return any(id(one) in inside for one in calls) or any(
        ast.unparse(given) in names for one in calls for given in one.args[:1]
    )


def _takes_values(place: Place) -> bool:
    """Whether what a statement binds loads the values of another model: ``load_state_dict``."""
    names = {ast.unparse(one) for one in bound_names(place.statement)}
    return any(
        isinstance(call.func, ast.Attribute)
        and ast.unparse(call.func.value) in names
        and len(call.args) == 1
        and called_name(call.args[0]) == "state_dict"
        for call in calls_in(place.scope, "load_state_dict")
    )


def _parting(window: Window, base: Ints, twin: Ints) -> tuple[Frame, ...]:
    """The lines of one function from which each of two models was made; empty for one line."""
    stacks = [window.stack(int(rows[0])) for rows in (base, twin)]
    outermost_first = [window.user_frames(stack)[::-1] for stack in stacks]
    pairs = zip(*outermost_first, strict=False)
    return next((pair for pair in pairs if pair[0] != pair[1]), ())


def _call_bound_at(place: Place | None) -> str:
    """The text of the call that makes the model which a statement binds; empty for none.

    Of ``load().eval()`` it is ``load()``, and of ``get_peft_model(load(), config)``.
    """
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
