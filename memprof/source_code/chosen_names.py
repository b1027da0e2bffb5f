"""Which texts the conditions around a statement of a loop let through: ``if "head" in name``."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator, Mapping

from memprof.source_code.program import Place, called_name

__all__ = ["is_chosen"]

_BY_ENDS: dict[str, Callable[[str, str], bool]] = {
    "startswith": str.startswith,
    "endswith": str.endswith,
}
_LAST_WORDS = (ast.Continue, ast.Return, ast.Raise)
Texts = Callable[[ast.expr], Collection[str]]
"""The texts that are written out in what an expression may be."""


def is_chosen(
    place: Place, loop: ast.For | ast.AsyncFor, name: str, text: str, texts: Texts
) -> bool | None:
    """Whether a statement of a loop runs where the loop's variable is a text; None: unknown."""
    answers = [
        answer if answer is None else answer is wanted
        for test, wanted in _conditions(place, loop)
        for answer in [_holds(test, {name: text}, texts)]
    ]
    if False in answers:
        return False
    return None if None in answers else True


def _conditions(place: Place, loop: ast.For | ast.AsyncFor) -> Iterator[tuple[ast.expr, bool]]:
    """The conditions on the way from a loop to a statement in it, and how each must come out."""
    within = place.around[place.around.index(loop) :] if loop in place.around else ()
    for node, below in zip(within, (*within[1:], place.statement), strict=True):
        if isinstance(node, ast.If):
            yield node.test, below in node.body
    for before in loop.body:
        if before.lineno >= place.line:
            return
        if isinstance(before, ast.If) and isinstance(before.body[-1], _LAST_WORDS):
            yield before.test, False


def _holds(test: ast.expr, known: Mapping[str, str], texts: Texts) -> bool | None:
    """What a condition on known variables comes to; None where it asks for something else."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _holds(test.operand, known, texts)
        return None if inner is None else not inner
    if isinstance(test, ast.BoolOp):
        decisive = isinstance(test.op, ast.Or)
        return _combined([_holds(one, known, texts) for one in test.values], decisive=decisive)
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return _compared(test, known, texts)
    if not isinstance(test, ast.Call) or len(test.args) != 1:
        return None
    name, argument = called_name(test), test.args[0]
    if name in ("any", "all") and isinstance(argument, (ast.GeneratorExp, ast.ListComp)):
        return _of_each(argument, known, texts, decisive=name == "any")
    if name not in _BY_ENDS or not isinstance(test.func, ast.Attribute):
        return None
    text = _text(test.func.value, known)
    one = _text(argument, known)
    ends = [one] if one is not None else [*texts(argument)]
    if text is None or not ends:
        return None
    return any(_BY_ENDS[name](text, end) for end in ends)


def _combined(answers: list[bool | None], *, decisive: bool) -> bool | None:
    if decisive in answers:
        return decisive
    return None if None in answers else not decisive


def _compared(test: ast.Compare, known: Mapping[str, str], texts: Texts) -> bool | None:
    """``name == "head"``, ``"head" in name`` and ``name in ("head", "norm")``."""
    operator, right = test.ops[0], test.comparators[0]
    left, text = _text(test.left, known), _text(right, known)
    if left is None:
        return None
    if isinstance(operator, (ast.Eq, ast.NotEq)):
        return None if text is None else (left == text) is isinstance(operator, ast.Eq)
    if not isinstance(operator, (ast.In, ast.NotIn)):
        return None
    among = [*texts(right)] if text is None else []
    if text is None and not among:
        return None
    return (left in (among if text is None else text)) is isinstance(operator, ast.In)


def _of_each(
    generator: ast.GeneratorExp | ast.ListComp,
    known: Mapping[str, str],
    texts: Texts,
    *,
    decisive: bool,
) -> bool | None:
    """``any(part in name for part in ("head", "norm"))``."""
    source = generator.generators[0]
    if len(generator.generators) > 1 or source.ifs or not isinstance(source.target, ast.Name):
        return None
    variable, written = source.target.id, [*texts(source.iter)]
    answers = [_holds(generator.elt, {**known, variable: one}, texts) for one in written]
    return _combined(answers, decisive=decisive) if answers else None


def _text(expression: ast.expr, known: Mapping[str, str]) -> str | None:
    """The text that an expression is: a known variable, a constant, a part by ``split``."""
    if isinstance(expression, ast.Name):
        return known.get(expression.id)
    if isinstance(expression, ast.Constant):
        return expression.value if isinstance(expression.value, str) else None
    if isinstance(expression, ast.Subscript) and isinstance(expression.slice, ast.Constant):
        inner, at = expression.value, expression.slice.value
        if called_name(inner) != "split" or not isinstance(at, int):
            return None
        assert isinstance(inner, ast.Call)
        text = _text(inner.func.value, known) if isinstance(inner.func, ast.Attribute) else None
        by = _text(inner.args[0], known) if len(inner.args) == 1 else None
        parts = text.split(by) if text is not None and by else []
        return parts[at] if at < len(parts) else None
    return None
