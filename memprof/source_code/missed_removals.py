"""Where a program takes entries out of a container under another key than it puts them in."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from memprof.source_code.program import Place, bound_names, called_name, loaded_names
from memprof.source_code.values import values_of

__all__ = ["missed_removal"]


def missed_removal(filling: Place, container: str) -> tuple[Place, str] | None:
    """The removal that misses what a statement puts into a container, and the key of that.

    ``self.waiting.pop(request.id, None)``, where ``filling`` is ``self.waiting[key] = task`` and
    ``key`` is ``(request.user, request.id)``. Both keys have to name the same variables: what drops
    the oldest entry, say, has a key of another kind. None where there is no removal, or where one
    takes out the very key, or it is not known.
    """
    keys = [_key_of(filling, target, container) for target in bound_names(filling.statement)]
    key = next((one for one in keys if one is not None), None)
    if key is None:
        return None
    texts = {ast.unparse(one): one for one in key}
    names = set().union(*map(loaded_names, texts.values()))
    removals = list(_removals(filling, container))
    if any(ast.unparse(one) in texts for _, one in removals):
        return None
    for place, one in removals:
        own = loaded_names(one)
        if isinstance(one, ast.Attribute) and own and own <= names:
            return place, list(texts)[-1]
    return None


def _key_of(place: Place, target: ast.expr, container: str) -> list[ast.expr] | None:
    """A key as it is written, and what it is bound to where it is a variable."""
    if not isinstance(target, ast.Subscript) or ast.unparse(target.value) != container:
        return None
    key = target.slice
    if not isinstance(key, ast.Name):
        return [key]
    values = list(values_of(place, key.id))
    return [key, values[0]] if len(values) == 1 and values[0] is not None else None


def _removals(filling: Place, container: str) -> Iterator[tuple[Place, ast.expr]]:
    """The calls of ``pop`` and the ``del`` of an entry in the file, with their keys."""
    for node in filling.program.nodes:
        keys: list[ast.expr] = []
        if isinstance(node, ast.Call) and called_name(node) == "pop" and node.args:
            is_own = isinstance(node.func, ast.Attribute)
            if is_own and ast.unparse(node.func.value) == container:  # type: ignore[attr-defined]
                keys = [node.args[0]]
        elif isinstance(node, ast.Delete):
            keys = [
                one.slice
                for one in node.targets
                if isinstance(one, ast.Subscript) and ast.unparse(one.value) == container
            ]
        place = filling.program.place(node) if keys else None
        if place is not None:
            yield from ((place, key) for key in keys)
