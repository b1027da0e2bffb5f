"""functools-cache: a function's cache without a largest size keeps every result."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from memprof.records import Holder
from memprof.reference_chain import Link, LinkKind
from memprof.rules.case import Case, says
from memprof.rules.containers import is_of_key
from memprof.rules.rule import Advice, Cause, GrowthRule
from memprof.source_code.idioms import last_name, memoizer
from memprof.source_code.patch import diff, replaced
from memprof.source_code.program import FUNCTIONS, Place, bound_names, calls_in
from memprof.source_code.scopes import qualified_name

__all__ = ["RULE"]

_MEMOIZING = frozenset(("functools.cache", "functools.lru_cache"))
_KEEPERS = (LinkKind.CLASS_ATTRIBUTE, LinkKind.LOG_RECORD)
_LARGEST, _SMALLEST = 128, 8
"""Entries: the default of ``functools.lru_cache``; and those of a cache that is one still."""
_OF_GROWTH = 8
"""One in so many of the entries that came may stay, where that is fewer than the default."""


@dataclass(frozen=True, slots=True, eq=False)
class FunctionCache(Cause):
    """The function, and what makes its cache."""

    holder: Holder
    place: Place | None
    """Where the function is defined, or wrapped by a call; None where its file is not here."""
    decorator: ast.expr | None
    """Or what is called with the function: ``functools.cache`` of ``table = cache(_table)``."""

    @property
    def is_method(self) -> bool:
        """Its keys hold the object, too."""
        function = self.place.statement if self.place is not None else None
        class_ = self.place.class_ if self.place is not None else None
        if not isinstance(function, FUNCTIONS) or class_ is None or function not in class_.body:
            return False
        decorators = {last_name(ast.unparse(one)) for one in function.decorator_list}
        return not decorators & {"classmethod", "staticmethod"}


class FunctoolsCache(GrowthRule[FunctionCache]):
    """`@functools.cache` above a function, or worse a method, that returns tensors."""

    name = "functools-cache"
    summary = "a memoized function's cache has no largest size"
    fixes = ("bound_cache", "clear_container")
    precedes = ("kept-graph",)

    def match(self, case: Case) -> FunctionCache | None:
        """An ``lru_cache`` in a chain of references."""
        holder = case.holder(LinkKind.LRU_CACHE)
        if holder is None or _has_other_keeper(holder.links):
            return None
        place = case.link_place(LinkKind.LRU_CACHE) or case.place_of(holder)
        decorator = memoizer(place)
        wrapping = _wrapping(case, holder, place) if decorator is None else None
        if wrapping is not None:
            return FunctionCache(holder, *wrapping)
        return FunctionCache(holder, place, decorator)

    def advice(self, cause: FunctionCache, case: Case) -> Iterator[Advice]:
        """Give it a largest size, or empty it."""
        keys = ", and its keys hold `self`" if cause.is_method else ""
        line = cause.decorator.lineno if cause.decorator is not None else 0
        if cause.is_method and (case.of_model or is_of_key(cause.holder.links)):
            yield Advice(
                "clear_container",
                "The cache's keys hold `self`, so it keeps every object that the method was called "
                "on, with all that it has: cache in a function without `self` or on the object "
                "itself, or call `cache_clear()` when an object is done with.",
                cause.place,
                line,
            )
            return
        if any(link.was_never_hit for link in cause.holder.links):
            yield Advice(
                "bound_cache",
                "The cache is asked with tensors, which equal themselves alone, and has never had "
                "an answer: key it by what tells them apart (a text, a number, "
                "`tuple(ids.tolist())`), with a largest size, or do without it.",
                cause.place,
                line,
            )
        size, entries = _size(case), case.finding.growth.times
        yield Advice(
            "bound_cache",
            f"The cache has no largest size{keys}: {says(cause.holder)}.",
            cause.place,
            line,
            _bound_text(cause, size),
            stays=min(1.0, size / entries) if entries else 0.0,
        )
        yield Advice(
            "clear_container",
            f"Or empty it when its results are stale, with `cache_clear()`{keys}.",
            cause.place,
            line,
            otherwise=True,
        )


def _has_other_keeper(links: list[Link]) -> bool:
    """Whether a cache only leads to what keeps the tensors: a class, or a handler of log records.

    Annotations and classes lie in caches of `typing` and of many a framework.
    """
    last = max(n for n, link in enumerate(links) if link.kind is LinkKind.LRU_CACHE)
    return any(link.kind in _KEEPERS for link in links[last + 1 :])


def _wrapping(case: Case, holder: Holder, place: Place | None) -> tuple[Place, ast.expr] | None:
    """The only statement that makes a cache by a call with the function, and what it calls.

    ``table = functools.cache(_table)``. A bound method has no name in the chain, but what holds the
    cache has.
    """
    at = next(n for n, link in enumerate(holder.links) if link.kind is LinkKind.LRU_CACHE)
    function = holder.links[at].name.rpartition(".")[2]
    attribute = last_name(holder.links[at - 1].name) if at else ""
    own = [place.program] if place is not None else []
    wraps = {
        id(call): (where, call.func)
        for program in (*own, *case.programs)
        for call in calls_in(program.tree)
        if len(call.args) == 1 and isinstance(call.args[0], (ast.Attribute, ast.Name))
        if (where := program.place(call)) is not None and _makes_cache(where, call.func)
        if last_name(ast.unparse(call.args[0])) == function
        or (not function and attribute in _names_bound(where))
    }
    return next(iter(wraps.values())) if len(wraps) == 1 else None


def _names_bound(place: Place) -> set[str]:
    return {last_name(ast.unparse(target)) for target in bound_names(place.statement)}


def _makes_cache(place: Place, function: ast.expr) -> bool:
    """Whether what is called is ``functools.cache``, or what ``lru_cache(maxsize=…)`` returns."""
    made_by = function.func if isinstance(function, ast.Call) else function
    return qualified_name(place, made_by) in _MEMOIZING


def _size(case: Case) -> int:
    """A power of two: the default, or an eighth of the entries that came while it was recorded."""
    entries = case.finding.growth.times or _OF_GROWTH * _LARGEST  # where nobody counted
    share = max(_SMALLEST, entries // _OF_GROWTH)
    return min(_LARGEST, 1 << (share.bit_length() - 1))


def _bound_text(cause: FunctionCache, size: int) -> str:
    """``lru_cache(maxsize=None)`` and ``cache`` become ``lru_cache(maxsize=128)``."""
    place, decorator = cause.place, cause.decorator
    if place is None or decorator is None:
        return ""
    if isinstance(decorator, ast.Call):
        sizes = [k.value for k in decorator.keywords if k.arg == "maxsize"] or decorator.args[:1]
        if sizes:
            return diff(place.program, replaced(sizes[0], str(size)))
        return ""
    if isinstance(decorator, ast.Attribute) and decorator.attr == "cache":
        text = f"{ast.unparse(decorator.value)}.lru_cache(maxsize={size})"
        return diff(place.program, replaced(decorator, text))
    return ""


RULE = FunctoolsCache()
