"""standard-callback: a registry of the standard library keeps what it is to call."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from memprof.rules.case import Case
from memprof.rules.rule import Advice, Cause, GrowthRule
from memprof.rules.standard_registries import Registration, registration
from memprof.rules.stored_exceptions import logged_tensors
from memprof.source_code.idioms import keyword, last_name
from memprof.source_code.program import Place, called_name, loaded_names

__all__ = ["RULE"]

_PARAMETERS = {
    "finalize": (1, "func"),
    "addHandler": (0, "hdlr"),
    "addFilter": (0, "filter"),
    "append": (0, ""),
    "insert": (1, ""),
    "Timer": (1, "function"),
    "enter": (2, "action"),
    "enterabs": (2, "action"),
}
"""Where functions that register are handed it: by which position, by which name."""


@dataclass(frozen=True, slots=True, eq=False)
class Callback(Cause):
    """What is registered, and the call that registers it."""

    registration: Registration
    place: Place | None
    function: str
    """As the call writes it: ``self.report``; else the function's name."""
    keeps_watched: bool
    """A finalizer refers to the very object whose end it waits for."""


class StandardCallback(GrowthRule[Callback]):
    """`weakref.finalize(self, self.report)`; `logging.getLogger().addHandler(Capture(model))`."""

    name = "standard-callback"
    summary = "a registry of the standard library keeps what it is to call"
    fixes = ("plain_function", "release")
    precedes = (
        *("kept-graph", "small-view", "growing-container", "unbounded-dict", "assigned-history"),
        *("uncalled-release", "collected-models", "registered-callback", "collecting-object"),
        *("linked-objects", "hook", "carried-state", "class-registry", "kept-method"),
    )

    def match(self, case: Case) -> Callback | None:
        """A chain of references through such a registry."""
        kept = registration(case.finding.holders)
        if kept is None or logged_tensors(case) is not None:
            return None  # a handler is there to store records: what is logged is the mistake
        calls = sorted(
            (one for one in case.calls(*kept.registry.register) if _fills(one[0])),
            key=lambda one: _name_of(kept) not in _names_given(one[0]),
        )
        if not calls:
            return Callback(kept, case.place_of(kept.holder), last_name(kept.function), False)
        call, place = calls[0]
        given = _registered(call)
        is_named = isinstance(given, (ast.Name, ast.Attribute))
        function = ast.unparse(given) if is_named and given else last_name(kept.function)
        return Callback(kept, place, function, kept.is_finalizer and _refers_to_watched(call))

    def advice(self, cause: Callback, case: Case) -> Iterator[Advice]:  # noqa: ARG002 - the chain says all
        """Register what refers to no such object; or take it out again."""
        registry = cause.registration.registry
        of = " and its object" if cause.registration.is_method else " and all that it refers to"
        what = f"`{cause.function}`{of}" if cause.function else "what it is given"
        keeps = f"`{registry.name}` keeps {what} {registry.until}"
        if cause.registration.is_finalizer:
            never = ", which it thereby never lets go of" if cause.keeps_watched else ""
            yield Advice(
                "plain_function",
                f"{keeps}{never}: give it a static method or a plain function, and of the object "
                "only what that needs, not the object itself.",
                cause.place,
            )
        way_out = registry.release.format(cause.function or "it")
        yield Advice(
            "release",
            f"{keeps}: take it out when that is done with (`{way_out}`).",
            cause.place,
            otherwise=cause.registration.is_finalizer,
        )


def _fills(call: ast.Call) -> bool:
    """Whether a call of that name is one of the registry's: ``gc.callbacks.append``."""
    name = called_name(call)
    if name in ("append", "insert"):
        return isinstance(call.func, ast.Attribute) and (
            ast.unparse(call.func.value) == "gc.callbacks"
        )
    return name != "enter" or _registered(call) is not None


def _registered(call: ast.Call) -> ast.expr | None:
    """What a call puts into its registry, handed over by position or by name."""
    position, name = _PARAMETERS[called_name(call)]
    return call.args[position] if position < len(call.args) else keyword(call, name)


def _name_of(kept: Registration) -> str:
    return last_name(kept.function)


def _names_given(call: ast.Call) -> set[str]:
    """The last parts of the names that a call is given, and what stands for a lambda."""
    given = [*call.args, *(one.value for one in call.keywords)]
    return {
        "<lambda>" if isinstance(one, ast.Lambda) else last_name(ast.unparse(one)) for one in given
    }


def _refers_to_watched(call: ast.Call) -> bool:
    """Whether what a finalizer is to call, or is given, reads the name of what it watches."""
    watched = loaded_names(call.args[0]) if call.args else set()
    rest = [*call.args[1:], *(one.value for one in call.keywords)]
    return any(watched & loaded_names(one) for one in rest)


RULE = StandardCallback()
