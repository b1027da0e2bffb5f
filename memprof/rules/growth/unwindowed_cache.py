"""unwindowed-cache: a cache of keys and values keeps all that a model with a window has passed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from memprof.rules.case import Case
from memprof.rules.rule import Advice, Cause, GrowthRule
from memprof.source_code.idioms import keyword
from memprof.source_code.program import Place, called_name
from memprof.source_code.scopes import qualified_name

__all__ = ["RULE"]

_CACHE, _LAYER = "DynamicCache", "DynamicLayer"
"""transformers' cache, and its layers that keep everything; those of a window are others."""
_LIBRARY = "transformers."
_WINDOW = "sliding_window"
"""What configurations of transformers call the positions that a layer attends to."""
_SWITCHED, _SWITCH = "Qwen", "use_sliding_window"
"""Configurations that have a switch, off by default (transformers 5.x)."""
_GIVEN = "past_key_values"


@dataclass(frozen=True, slots=True, eq=False)
class UnwindowedCache(Cause):
    """Where the cache is made, and what it would have to be given."""

    place: Place
    call: ast.Call
    config: str
    """As a person would type it; empty where the model has no name there."""


class UnwindowedCacheRule(GrowthRule[UnwindowedCache]):
    """`DynamicCache()` for a model with `sliding_window=128`."""

    name = "unwindowed-cache"
    summary = "a cache keeps all keys and values of a model that attends to the last ones"
    fixes = ("bound_cache",)
    precedes = (
        *("uncalled-release", "generation-cache", "collecting-object", "kept-attribute"),
        *("carried-state", "grown-by-concatenation"),
    )

    def match(self, case: Case) -> UnwindowedCache | None:
        """A cache of transformers that was made without the model's configuration."""
        kinds = {link.type_name for one in case.finding.holders[:1] for link in one.links}
        if not {_CACHE, _LAYER} <= kinds or not _has_window(case):
            return None
        for call, place in case.calls(_CACHE):
            is_bare = not call.args and not call.keywords
            if is_bare and qualified_name(place, call.func).startswith(_LIBRARY):
                return UnwindowedCache(place, call, _config(case))
        return None

    def advice(self, cause: UnwindowedCache, case: Case) -> Iterator[Advice]:  # noqa: ARG002
        """Hand it the configuration."""
        yield Advice(
            "bound_cache",
            f"The model attends to the last positions alone (`{_WINDOW}`), and `{_CACHE}()` keeps "
            "the keys and values of all: with the model's configuration it keeps as many as the "
            "window has.",
            cause.place,
            cause.call.lineno,
            typed=f"{_CACHE}(config={cause.config})" if cause.config else "",
        )


def _has_window(case: Case) -> bool:
    """Whether the program gives a model a window: ``MistralConfig(sliding_window=128)``.

    Qwen's have one only where that is switched on as well.
    """
    return any(
        _is_given(call, _WINDOW)
        and (_is_given(call, _SWITCH) or not called_name(call).startswith(_SWITCHED))
        for call, _ in case.calls()
    )


def _is_given(call: ast.Call, name: str) -> bool:
    given = keyword(call, name)
    return given is not None and not (isinstance(given, ast.Constant) and not given.value)


def _config(case: Case) -> str:
    """The configuration of the model that is called with a cache: ``self.model.config``."""
    models = {
        ast.unparse(call.func) for call, _ in case.calls() if keyword(call, _GIVEN) is not None
    }
    models = {one.removesuffix(".forward").removesuffix(".generate") for one in models}
    return f"{models.pop()}.config" if len(models) == 1 else ""


RULE = UnwindowedCacheRule()
