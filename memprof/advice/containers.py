"""Rules for names and containers that keep tensors: lists, caches, registries, old values."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from memprof.records import Holder
from memprof.reference_chain import Link, LinkKind, breadth
from memprof.rules.case import NO_FIGURE, Case, Proposal, says
from memprof.rules.source_facts import handed_over
from memprof.source_code.idioms import (
    Filling,
    checks_for_key,
    emptied_by,
    growing,
    grown_by_concatenation,
    last_name,
    memoizer,
)
from memprof.source_code.patch import after, diff, replaced
from memprof.source_code.program import FUNCTIONS, Place, bound_names

__all__ = ["rules"]

_CYCLES = frozenset({LinkKind.CYCLE, LinkKind.CPP_CYCLE})
_OF_OTHER_RULES = frozenset(
    {LinkKind.LRU_CACHE, LinkKind.CLASS_ATTRIBUTE, LinkKind.LOG_RECORD, LinkKind.TRACEBACK}
)
"""Links that say more than the attribute or variable that they begin with."""
_LARGEST = 128
"""Entries: the default of ``functools.lru_cache``."""


def rules(case: Case) -> Iterator[Proposal]:
    """``del_ref``, ``clear_container``, ``bound_cache``, ``weakref``, ``reset_metric``."""
    if case.grows:
        yield from _registry(case)
        yield from _memoized(case)
        yield from _notebook(case)
        yield from _container(case)
        yield from _concatenation(case)
        yield from _parametrizations(case)
        yield from _parameter_groups(case)
        yield from _attribute(case)


def _registry(case: Case) -> Iterator[Proposal]:
    holder = case.holder(LinkKind.CLASS_ATTRIBUTE)
    if holder is None or LinkKind.LRU_CACHE in case.links:
        return
    place = case.place_of(holder)
    filled = _filled_attribute(case, holder)
    cached = filled is not None and list(_cache_of(filled, says(holder)))
    yield from cached or ()
    if _below(holder) and not cached:  # else the tensors themselves, which nothing else may hold
        yield Proposal(
            "weakref",
            0.9,
            f"Every object that was registered lives as long as the class: {says(holder)}.",
            place,
            patch=_weak(place),
        )
    yield Proposal(
        "clear_container", 0.5, f"Or take things out again: {says(holder)}.", filled or place
    )


def _filled_attribute(case: Case, holder: Holder) -> Place | None:
    """The statement that puts something into a class attribute: ``cls._made[key] = made``."""
    names = {link.name for link in holder.links if link.kind == LinkKind.CLASS_ATTRIBUTE}
    for program in case.programs:
        for node in ast.walk(program.tree):
            if isinstance(node, (ast.Expr, ast.Assign)):
                place = program.place(node)
                grown = growing(place)
                if grown is not None and last_name(grown.container) in names:
                    return place
    return None


def _cache_of(place: Place, what: str) -> Iterator[Proposal]:
    grown = growing(place)
    if grown is not None:
        yield from _cache(place, grown.container, what, keyed=grown.keyed)


def _weak(place: Place | None) -> str:
    """``_all = set()`` becomes ``_all = weakref.WeakSet()``."""
    statement = place.statement if place is not None else None
    if place is None or not isinstance(statement, (ast.Assign, ast.AnnAssign)):
        return ""
    if statement.value is None or ast.unparse(statement.value) != "set()":
        return ""
    tree = place.program.tree
    imports = [n for n in tree.body if isinstance(n, (ast.Import, ast.ImportFrom))]
    known = any(a.name == "weakref" for n in imports if isinstance(n, ast.Import) for a in n.names)
    edit = replaced(statement.value, "weakref.WeakSet()")
    if known:
        return diff(place.program, edit)
    plain = [n for n in imports if not (isinstance(n, ast.ImportFrom) and n.module == "__future__")]
    if not plain:
        return ""
    return diff(place.program, after(place.program, plain[0], "import weakref"), edit)


def _memoized(case: Case) -> Iterator[Proposal]:
    holder = case.holder(LinkKind.LRU_CACHE)
    if holder is None:
        return
    place = case.link_place(LinkKind.LRU_CACHE) or case.place_of(holder)
    decorator = memoizer(place)
    method = place is not None and place.class_ is not None
    keys = ", and its keys hold `self`" if method else ""
    line = decorator.lineno if decorator is not None else 0
    yield Proposal(
        "bound_cache",
        0.9,
        f"The cache has no largest size{keys}: {says(holder)}.",
        place,
        line,
        _bounded(place, decorator),
    )
    yield Proposal(
        "clear_container",
        0.7,
        f"Or empty it when its results are stale, with `cache_clear()`{keys}.",
        place,
        line,
    )


def _bounded(place: Place | None, decorator: ast.expr | None) -> str:
    """``lru_cache(maxsize=None)`` and ``cache`` become ``lru_cache(maxsize=128)``."""
    if place is None or decorator is None:
        return ""
    if isinstance(decorator, ast.Call):
        sizes = [k.value for k in decorator.keywords if k.arg == "maxsize"] or decorator.args[:1]
        if sizes:
            return diff(place.program, replaced(sizes[0], str(_LARGEST)))
        return ""
    if isinstance(decorator, ast.Attribute) and decorator.attr == "cache":
        text = f"{ast.unparse(decorator.value)}.lru_cache(maxsize={_LARGEST})"
        return diff(place.program, replaced(decorator, text))
    return ""


def _notebook(case: Case) -> Iterator[Proposal]:
    holder = case.holder(LinkKind.NOTEBOOK)
    if holder is not None:
        yield Proposal(
            "clear_container",
            0.9,
            f"The notebook keeps the result of every cell ({says(holder)}): end the cell with `;`, "
            "or `%reset out`.",
            case.place_of(holder) or case.site,
        )


def _container(case: Case) -> Iterator[Proposal]:
    if case.links & _CYCLES or LinkKind.LRU_CACHE in case.links:
        return
    for holder, place, grown in _grown(case):
        name = last_name(grown.container)
        length = max(holder.links, key=breadth).length if holder.links else -1
        size = f" ({length} items)" if length > 0 else ""
        why = f"`{grown.container}`{size} only grows"
        yield from _cache(place, grown.container, why, keyed=grown.keyed)
        reset = emptied_by(place, name)
        if reset is not None:
            yield Proposal(
                "reset_metric",
                0.84,
                f"{why}: `{reset.name}()` would empty it; call it when an epoch has been computed.",
                place,
            )
        yield Proposal("clear_container", 0.72, f"{why}: empty it when it has been used.", place)
        source = handed_over(case, place, grown.values[-1])
        yield from _items(case, holder, source[0] if source is not None else place, why)
        return


def _items(case: Case, holder: Holder, place: Place, why: str) -> Iterator[Proposal]:
    """What can be done with the things that a container keeps."""
    if _of_methods(holder):
        yield Proposal(
            "weakref",
            0.86,
            f"{why}, and a bound method keeps its object: register it weakly "
            "(`weakref.WeakMethod`), or take it out when the object is done with.",
            place,
        )
    if case.of_model:
        yield Proposal(
            "del_ref",
            0.8,
            f"{why}, and keeps whole models: keep their scores or files.",
            _of_models(case, holder) or place,
        )
        return
    how = "`.detach().cpu()`" if case.graph else "`.cpu()`"
    certainty = 0.8 if case.graph and case.direct and not case.scalar else 0.6
    yield Proposal(
        "cpu_offload",
        certainty,
        f"{why}: keep its items in host memory ({how}), or the numbers needed of them.",
        place,
    )


def _below(holder: Holder) -> Sequence[Link]:
    """The links below the item of the largest container."""
    items = [at for at, link in enumerate(holder.links) if link.kind == LinkKind.ITEM]
    top = max(items, key=lambda at: breadth(holder.links[at]), default=len(holder.links))
    return holder.links[top + 1 :]


def _of_methods(holder: Holder) -> bool:
    """Whether the container's items are methods of objects: callbacks, listeners."""
    return any(link.kind == LinkKind.BOUND_METHOD for link in _below(holder)[:1])


def _of_models(case: Case, holder: Holder) -> Place | None:
    """The statement that gives a model to what the container keeps: ``trial.model = model``."""
    for link in _below(holder):
        place = case.place_at(link.filename, link.line) if link.kind == LinkKind.ATTRIBUTE else None
        if place is None:
            continue
        value = getattr(place.statement, "value", None)
        source = handed_over(case, place, value)
        return source[0] if source is not None else place
    return None


def _grown(case: Case) -> Iterator[tuple[Holder, Place, Filling]]:
    """Holders with the statement that fills their container."""
    for holder in case.found.holders:
        place = case.place_of(holder)
        if place is None:
            continue
        grown = growing(place)
        if grown is None or isinstance(place.statement, FUNCTIONS):
            place = _filling(place)
            grown = growing(place)
        if place is not None and grown is not None:
            yield holder, place, grown


def _filling(place: Place) -> Place | None:
    """The statement that fills what a line makes: ``kept = []`` or ``def f(x, kept=[])``."""
    statement = place.statement
    scope: ast.AST = place.scope
    names = {ast.unparse(target) for target in bound_names(statement)}
    if isinstance(statement, FUNCTIONS):
        scope = statement
        arguments = statement.args
        names = {a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    for node in ast.walk(scope):
        if isinstance(node, (ast.Expr, ast.Assign)):
            where = place.program.place(node)
            grown = growing(where)
            if grown is not None and grown.container in names:
                return where
    return None


def _cache(place: Place, container: str, why: str, *, keyed: bool) -> Iterator[Proposal]:
    if keyed and checks_for_key(place, container):
        yield Proposal(
            "bound_cache",
            0.88,
            f"{why}: it is a cache without a largest size, with an entry for every new key.",
            place,
        )


def _concatenation(case: Case) -> Iterator[Proposal]:
    near = [*case.places, *(place for _, place in case.frames)]
    for place in near:
        name = grown_by_concatenation(place)
        if not name:
            continue
        why = f"`{name}` is replaced by a larger copy of itself, and both are there meanwhile"
        yield Proposal("cpu_offload", 0.85, f"{why}: collect the parts in host memory.", place)
        yield Proposal("preallocate", 0.7, f"{why}: allocate the final size once.", place)
        return


def _parametrizations(case: Case) -> Iterator[Proposal]:
    names = [link.name for holder in case.found.holders for link in holder.links]
    if not any("parametrizations" in name.split(".") for name in names):
        return
    for _, place in case.calls("register_parametrization"):
        yield Proposal(
            "del_ref",
            0.9,
            "Every call puts one more parametrization on top of those that the module has: "
            "register it once, or take it off with `remove_parametrizations`.",
            place,
        )
        return


def _parameter_groups(case: Case) -> Iterator[Proposal]:
    if LinkKind.OPTIMIZER_STATE not in case.links:
        return
    for _, place in case.calls("add_param_group"):
        yield Proposal(
            "del_ref",
            0.85,
            "An optimizer keeps every parameter it was ever given, and its state: take old groups "
            "out of `param_groups` and `state`, or make a new optimizer.",
            place,
        )
        return


def _attribute(case: Case) -> Iterator[Proposal]:
    """Something that an attribute or a variable of many objects keeps."""
    if case.links & (_CYCLES | _OF_OTHER_RULES):
        return
    for holder in case.found.holders:
        place = case.place_of(holder)
        if place is None:
            continue
        names = bound_names(place.statement)
        target = ast.unparse(names[0]) if names else ""
        name = f"`{target}`" if target else "what holds it"
        certainty = 0.78 if target and "." in target else 0.45
        if not case.direct:
            certainty = 0.3  # the graph is what is too much, not the name
        yield Proposal(
            "del_ref",
            certainty,
            f"Let go of {name} when it is done with: {says(holder)}.",
            place,
            saving=None if case.direct else NO_FIGURE,
        )
        return
    if case.found.site.filename:
        yield Proposal(
            "del_ref", 0.2, "It outlives its step; drop the last reference to it.", case.site
        )
