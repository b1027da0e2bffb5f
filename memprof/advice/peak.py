"""Rules for what makes a peak: activations, the optimizer, gradients, one large tensor, buffers."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from memprof.advice.case import Case, Proposal
from memprof.analysis.suspicion import Pattern
from memprof.source_code.idioms import keyword
from memprof.source_code.patch import diff, with_keyword
from memprof.source_code.program import Place, bound_names, loaded_names
from memprof.units import format_bytes

__all__ = ["rules"]


def rules(case: Case) -> Iterator[Proposal]:
    """``checkpoint``, ``chunk``, ``foreach_false``, ``set_to_none`` and their kin."""
    nbytes = format_bytes(case.found.bytes)
    pattern = case.pattern
    if pattern == Pattern.LARGE_BUFFER.value:
        yield from _buffer(case, nbytes)
    elif pattern == Pattern.UNREAD_BUFFER.value:
        name = case.fact("buffer", "")
        why = f"Nothing in the program's files reads `{name}`, {nbytes}"
        yield Proposal("del_ref", 0.8, f"{why}: leave it out.", case.site)
        yield Proposal("right_size", 0.5, f"{why}; make it no larger than what is used.", case.site)
    elif pattern == Pattern.AUTOCAST_CACHE.value:
        yield from _autocast(case, nbytes)


def _buffer(case: Case, nbytes: str) -> Iterator[Proposal]:
    place = _size_of(case.site) or case.site
    yield Proposal(
        "right_size",
        0.75,
        f"The buffer takes {nbytes}, and forward reads a slice of it: make it as long as the "
        "longest input, or grow it when one is longer.",
        place,
    )


def _size_of(place: Place | None) -> Place | None:
    """The statement that sets the size: followed back through the names of the same function."""
    if place is None:
        return None
    names = loaded_names(place.statement)
    found: Place | None = None
    statements = [
        n for n in ast.walk(place.scope) if isinstance(n, ast.Assign) and n.lineno <= place.line
    ]
    for statement in sorted(statements, key=lambda n: -n.lineno):
        targets = {t.id for t in bound_names(statement) if isinstance(t, ast.Name)}
        if not targets & names:
            continue
        names |= loaded_names(statement.value)
        if not any(isinstance(n, ast.Call) for n in ast.walk(statement.value)):
            found = place.program.place(statement)
    return found


def _autocast(case: Case, nbytes: str) -> Iterator[Proposal]:
    why = (
        f"Autocast keeps a low-precision copy of every weight it cast ({nbytes}) until its "
        "outermost region ends"
    )
    for call, place in case.calls("autocast"):
        value = keyword(call, "cache_enabled")
        if isinstance(value, ast.Constant) and value.value is False:
            continue
        yield Proposal(
            "disable_autocast_cache",
            0.92,
            f"{why}: enter it for each call, or turn the cache off.",
            place,
            patch=diff(place.program, with_keyword(call, "cache_enabled", "False")),
        )
        return
    yield Proposal("disable_autocast_cache", 0.85, f"{why}.", case.site)
