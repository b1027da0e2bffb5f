"""Calls of a loop that are given other data in each turn, and nothing of what they returned."""

from __future__ import annotations

import ast

from memprof.source_code.program import Place, bound_names, calls_in, loaded_names

__all__ = ["is_fed_anew"]

_CUTTING = ("chunk", "split", "tensor_split", "unbind")
"""Methods whose results are parts of one whole."""


def is_fed_anew(place: Place) -> bool:
    """Whether a loop's statement calls something with what the turn before had no part in.

    ``model(question, cache)`` of one question after the other; not ``model(token, cache)``, whose
    token is chosen by what the call before has returned. What is the same in each turn, as the
    cache, does not count; something must be new. Parts of one whole, each after the other, belong
    together: a long text is read in pieces.
    """
    if place.loop is None or not isinstance(place.loop, (ast.For, ast.AsyncFor)):
        return False
    calls = calls_in(place.statement)
    results = _names_bound(place.statement)
    if not calls or not results:
        return False
    given = {name for one in calls for name in loaded_names(one)}
    bindings = [
        (_names_bound(node), loaded_names(node))
        for node in ast.walk(place.loop)
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign))
    ]
    if calls_in(place.loop.iter, *_CUTTING) or any(
        isinstance(node, ast.Slice) for one in calls for node in ast.walk(one)
    ):
        return False
    turns = {node.id for node in ast.walk(place.loop.target) if isinstance(node, ast.Name)}
    while True:
        behind = {name for bound, read in bindings if bound & given for name in read} - given
        if not behind:
            break
        given |= behind
    changed = {name for bound, _ in bindings for name in bound} - results
    return not given & results and bool(given & (turns | changed))


def _names_bound(node: ast.AST) -> set[str]:
    return {one.id for one in bound_names(node) if isinstance(one, ast.Name)}
