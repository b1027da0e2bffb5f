"""exit-callback: `atexit` keeps the objects whose methods it is to call when the process ends."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from memprof.records import Holder
from memprof.reference_chain import LinkKind
from memprof.rules.case import Case
from memprof.rules.rule import Advice, Cause, GrowthRule
from memprof.source_code.idioms import last_name
from memprof.source_code.program import Place, called_name

__all__ = ["RULE"]


@dataclass(frozen=True, slots=True, eq=False)
class ExitFunction(Cause):
    """What is called at the end, and the statement that registers it."""

    place: Place | None
    function: str
    """As the statement writes it: ``self.close``; else the function's name."""
    is_method: bool
    is_nameless: bool = False
    """The statement makes what it registers: a partial, or a lambda."""
    line: int = 0
    """The line of the decorator that registers it."""


class ExitCallback(GrowthRule[ExitFunction]):
    """`atexit.register(self.close)` in the constructor of what is made again and again."""

    name = "exit-callback"
    summary = "`atexit` keeps what it is to call at the end"
    fixes = ("release",)
    precedes = (
        *("kept-graph", "small-view", "growing-container", "unbounded-dict", "assigned-history"),
        *("uncalled-release", "collected-models", "registered-callback", "collecting-object"),
        *("linked-objects", "hook", "carried-state"),
    )

    def match(self, case: Case) -> ExitFunction | None:
        """A chain of references that begins at `atexit`."""
        for holder in case.finding.holders:
            for link in holder.links:
                if link.kind == LinkKind.ATEXIT:
                    return _registration(case, holder, link.type_name)
        return None

    def advice(self, cause: ExitFunction, case: Case) -> Iterator[Advice]:  # noqa: ARG002 - the link says all
        """Take it out again."""
        what = "its object" if cause.is_method else "all that it knows and is given"
        way = f"take it out when that is done with (`atexit.unregister({cause.function})`)"
        if cause.is_nameless:
            way = (
                "give what is registered a name, and take it out by that when it is done with "
                "(`atexit.unregister`: no other is equal to it)"
            )
        yield Advice(
            "release",
            f"`atexit` keeps `{cause.function}` to the end of the process, and with it {what}: "
            f"{way}, or register one function for all.",
            cause.place,
            cause.line,
        )


def _registration(case: Case, holder: Holder, function: str) -> ExitFunction:
    *around, name = function.split(".")
    is_method = any(link.kind == LinkKind.BOUND_METHOD for link in holder.links)
    candidates = [
        (place, argument)
        for call, place in case.calls("register")
        if call.args and _is_of_atexit(call.func, place)
        for argument in [call.args[0]]
    ]
    is_partial = any(link.kind == LinkKind.PARTIAL for link in holder.links)
    candidates.sort(
        key=lambda one: (
            _argument_name(one[1]) != name,
            isinstance(one[1], ast.Call) is not is_partial,
            _name_around(one[0]) not in around,
        )
    )
    decorated = [one for one in _decorated(case, name) if _name_around(one[0]) in ("", *around)]
    if decorated and not (candidates and _argument_name(candidates[0][1]) == name):
        place, decorator = decorated[0]
        return ExitFunction(place, name, is_method, line=decorator.lineno)
    if not candidates:
        return ExitFunction(case.place_of(holder), function, is_method)
    place, argument = candidates[0]
    if isinstance(argument, (ast.Name, ast.Attribute)):
        return ExitFunction(place, ast.unparse(argument), is_method)
    return ExitFunction(place, name, is_method, is_nameless=True)


def _decorated(case: Case, name: str) -> Iterator[tuple[Place, ast.expr]]:
    """Functions of a name that a decorator registers, each with that: ``@atexit.register``."""
    for program in case.programs:
        for function in program.functions(name):
            place = program.place(function)
            for decorator in function.decorator_list if place is not None else ():
                is_named = last_name(ast.unparse(decorator)) == "register"
                if place is not None and is_named and _is_of_atexit(decorator, place):
                    yield place, decorator


def _argument_name(argument: ast.expr) -> str:
    if isinstance(argument, ast.Call) and called_name(argument) == "partial" and argument.args:
        argument = argument.args[0]
    return "<lambda>" if isinstance(argument, ast.Lambda) else last_name(ast.unparse(argument))


def _name_around(place: Place) -> str:
    return place.function.name if place.function is not None else ""


def _is_of_atexit(function: ast.expr, place: Place) -> bool:
    """Whether a function is ``atexit.register``, by whatever name that was imported."""
    imported = [node for node in place.program.nodes if isinstance(node, _IMPORTS)]
    if isinstance(function, ast.Attribute):
        modules = {
            one.asname or one.name
            for node in imported
            if isinstance(node, ast.Import)
            for one in node.names
            if one.name == "atexit"
        }
        return ast.unparse(function.value) in modules
    return any(isinstance(node, ast.ImportFrom) and node.module == "atexit" for node in imported)


_IMPORTS = (ast.Import, ast.ImportFrom)


RULE = ExitCallback()
