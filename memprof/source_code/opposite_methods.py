"""Which method of a class takes out what another puts in, by the verbs of their names."""

from __future__ import annotations

import ast
from collections.abc import Collection

from memprof.source_code.program import FUNCTIONS, Program
from memprof.source_code.verbs import OPPOSITES, RELEASING

__all__ = ["function_releasing", "opposite", "parents_of", "releases_of"]

_CALL_VERB = "update"
"""What calling an object itself counts as: a metric that is called collects."""
_EVERYTHING = frozenset(("all", "cache", "caches", "everything", "memory", "state", "states"))
"""Nouns of methods that let go of whatever there is: ``free_memory``."""
_OF_ALL_OR_OF_ONE = frozenset(("clear", "flush", "reset"))
"""Methods without a noun that let go of everything, unless there is another one for that."""


def opposite(method: str, methods: Collection[str]) -> str:
    """The one of the ``methods`` methods that takes out what ``method`` puts in; empty: none.

    Of ``load_adapter`` it is ``delete_adapter``, and not ``delete_tokens``. Where a class has
    ``reset_all`` beside ``reset``, the shorter one is for the newest of what was put in.
    """
    verb, noun = _parts(_CALL_VERB if method == "__call__" else method)
    verbs = OPPOSITES.get(verb, ())
    by_merit = sorted(
        (rank, verbs.index(own_verb), name)
        for name in methods
        for own_verb, own_noun in [_parts(name)]
        if own_verb in verbs and (rank := _likeness(noun, own_noun)) is not None
    )
    best = by_merit[0][2] if by_merit else ""
    if best in _OF_ALL_OR_OF_ONE and f"{best}_all" in methods:
        return f"{best}_all"
    return best


def releases_of(program: Program, class_name: str) -> list[str]:
    """Methods of a class, and of its parents in the same file, that let go of something."""
    names = [
        node.name
        for class_ in parents_of(program, class_name).values()
        for node in class_.body
        if isinstance(node, FUNCTIONS)
    ]
    return [name for name in names if _parts(name)[0] in RELEASING]


def parents_of(program: Program, class_name: str) -> dict[str, ast.ClassDef]:
    """A class and its parents, as far as the same file defines them, by their names."""
    classes = {one.name: one for one in program.classes()}
    waiting, parents = [class_name], {}
    while waiting:
        class_ = classes.pop(waiting.pop(), None)
        if class_ is not None:
            parents[class_.name] = class_
            waiting += [base.id for base in class_.bases if isinstance(base, ast.Name)]
    return parents


def function_releasing(program: Program, function: str) -> str:
    """The public function of a file that takes out what another one of it puts in; empty: none.

    Of ``weight_norm`` it is ``remove_weight_norm``; ``remove`` alone is for all that a file has.
    """
    names = [node.name for node in program.tree.body if isinstance(node, FUNCTIONS)]
    candidates = [(*_parts(name), name) for name in names if _parts(name)[0] in RELEASING]
    own = [name for _, noun, name in candidates if noun and noun in function]
    return (own or [name for _, noun, name in candidates if not noun] or [""])[0]


def _parts(method: str) -> tuple[str, str]:
    """``load`` and ``adapter`` of ``load_adapter``."""
    verb, _, noun = method.partition("_")
    return verb, noun


def _likeness(noun: str, own: str) -> int | None:
    """How well two methods are about the same things, 0 the best; None: about different ones."""
    if noun and _singular(noun) == _singular(own):
        return 0
    if not own:
        return 1
    if own in _EVERYTHING:
        return 2
    return 3 if noun and _singular(own) in map(_singular, noun.split("_")) else None


def _singular(noun: str) -> str:
    return noun.removesuffix("s")
