"""Where a program enters autocast, and the advice to do so without the cache of weights."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from memprof.rules.case import Case
from memprof.rules.rule import Advice
from memprof.source_code.idioms import keyword
from memprof.source_code.patch import diff, with_keyword

__all__ = ["uncached"]


def uncached(case: Case, why: str) -> Iterator[Advice]:
    """Advise to turn the cache off at the nearest call of ``autocast`` that leaves it on.

    Where no such call is here, at the line that made the tensors.

    Args:
        case: the finding and its program.
        why: what autocast keeps, a clause that begins a sentence.
    """
    for call, place in case.calls("autocast"):
        value = keyword(call, "cache_enabled")
        if isinstance(value, ast.Constant) and value.value is False:
            continue
        yield Advice(
            "disable_autocast_cache",
            f"{why}: enter it for each call, or turn the cache off.",
            place,
            patch=diff(place.program, with_keyword(call, "cache_enabled", "False")),
        )
        return
    yield Advice("disable_autocast_cache", f"{why}.", case.site)
