"""Where a program enters autocast, and the advice to do so without the cache of weights."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from memprof.rules.case import Case
from memprof.rules.rule import Advice
from memprof.source_code.idioms import keyword
from memprof.source_code.patch import diff, with_keyword
from memprof.source_code.program import called_name
from memprof.source_code.values import values_of

__all__ = ["regions_around", "uncached"]

_REGION = "autocast"


def regions_around(case: Case) -> list[ast.Call]:
    """The calls of ``autocast`` that a finding's tensors were made inside of, innermost first.

    As ``with torch.autocast(…)``, or with a variable that is bound to such a call.
    """
    places = [place for _, place in case.frames]
    contexts = [
        (place, item.context_expr)
        for place in places
        for node in reversed(place.around)
        if isinstance(node, ast.With)
        for item in node.items
    ]
    values = [
        value
        for place, one in contexts
        for value in (values_of(place, one.id) if isinstance(one, ast.Name) else [one])
    ]
    return [
        value for value in values if isinstance(value, ast.Call) and called_name(value) == _REGION
    ]


def uncached(case: Case, why: str) -> Iterator[Advice]:
    """Advise to turn the cache off at the nearest call of ``autocast`` that leaves it on.

    One that the tensors were made inside of comes first. Where no such call is here, at the line
    that made the tensors.

    Args:
        case: the finding and its program.
        why: what autocast keeps, a clause that begins a sentence.
    """
    around = regions_around(case)
    calls = list(case.calls(_REGION))
    calls.sort(key=lambda one: all(one[0] is not region for region in around))
    for call, place in calls:
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
