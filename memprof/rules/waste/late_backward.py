"""late-backward: graphs of several passes wait for one backward pass of the sum of their losses."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from memprof.rules.case import Case
from memprof.rules.forward_passes import forward_passes, one_at_a_time
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.idioms import Accumulation, added_by, filling, is_partly_cut
from memprof.source_code.learned_sums import attribute_reads, reads_are_learned_from
from memprof.source_code.program import (
    FUNCTIONS,
    Place,
    Program,
    bound_names,
    called_name,
    calls_in,
    loaded_names,
    place_of,
    root_name,
)
from memprof.source_code.scopes import parameters, reads_of, syntax_of
from memprof.source_code.summed_comprehensions import goes_backward_from_sum
from memprof.source_code.torch_modes import is_under_no_grad
from memprof.units import format_bytes
from memprof.views.window import Window

__all__ = ["RULE"]

_LEARNING = ("backward", "grad", "manual_backward")
_DEEPEST = 2
"""Calls of functions of the program between a loop and a backward pass."""


@dataclass(frozen=True, slots=True, eq=False)
class LossSum(Match):
    """Activations of several passes, and the statement that adds up their losses."""

    passes: int = 0
    filename: str = ""
    line: int = 0


class LateBackward(WasteRule[LossSum]):
    """A loop adds up losses, and `backward()` is called once, behind the loop or now and then."""

    name = "late-backward"
    summary = "losses are added up before one backward pass, which keeps all of their graphs"
    fixes = ("early_backward",)

    def matches(self, window: Window) -> Iterator[LossSum]:
        """Passes called in a loop that adds to what a later backward pass starts from."""
        passes = forward_passes(window)
        if passes is None:
            return
        places = (_sum_of_losses(call, window.programs) for call in passes.calls)
        place = next((place for place in places if place is not None), None)
        place = place or _sum_of_an_object(window, passes.row)
        place = place or _comprehension_of_losses(window, passes.row)
        if place is None:
            return
        yield LossSum(
            row=passes.row,
            rows=passes.rows,
            nbytes=int(window.lives.size[passes.rows].sum()),
            saving=one_at_a_time(window, passes.beginning),
            passes=passes.number,
            filename=place.program.filename,
            line=place.line,
        )

    def title(self, match: LossSum) -> str:
        """Say how many passes they are of."""
        return (
            f"are activations of {match.passes} passes through the same module before one backward "
            "pass"
        )

    def advice(self, match: LossSum, case: Case) -> Iterator[Advice]:
        """Go backward from each loss."""
        why = (
            f"The graphs of {match.passes} passes are alive at once "
            f"({format_bytes(match.nbytes)}): go backward from each loss right after its pass "
            "(`backward()` adds the gradients up to the same)."
        )
        place = case.place_at(match.filename, match.line)
        yield Advice("early_backward", why, place, match.line)


def _comprehension_of_losses(window: Window, row: int) -> Place | None:
    """The statement on a stack whose comprehension computes losses, for one pass from their sum."""
    for place in map(place_of, window.user_frames(window.stack(row))):
        if place is None or is_under_no_grad(place):
            continue
        if goes_backward_from_sum(place, window.programs):
            return place
    return None


def _sum_of_an_object(window: Window, row: int) -> Place | None:
    """The statement of a method on a stack that adds to what the object goes backward from.

    ``self.total += loss``, where what calls the method is in a loop. None where an attribute hands
    something of a pass on to the next one.
    """
    every = [place_of(frame) for frame in window.user_frames(window.stack(row))]
    places = [place for place in every if place is not None]
    for at, place in enumerate(places):
        if place.class_ is None or place.function is None:
            continue
        if _goes_on(place, place.function, attributes_only=True):
            return None
        outside = ((one, one.loop) for one in places[at:])
        if any(loop is not None and _goes_on(one, loop) for one, loop in outside):
            continue  # what the method is given is of the pass before
        for statement, name in _sums_of(place):
            added_at = place.program.place(statement)
            own = {id(node) for node in ast.walk(statement)}
            read = attribute_reads(place, name, window.programs)
            reads = (one for one in read if id(one[1]) not in own)
            if added_at is None or is_under_no_grad(added_at):
                continue
            if reads_are_learned_from(reads, window.programs):
                return added_at
    return None


def _sums_of(place: Place) -> Iterator[tuple[ast.stmt, str]]:
    """Statements that add a statement's result to an attribute of ``self``, and its name."""
    results = {one.id for one in bound_names(place.statement) if isinstance(one, ast.Name)}
    for node in sorted(ast.walk(place.scope), key=lambda one: getattr(one, "lineno", 0)):
        if not isinstance(node, ast.stmt) or node.lineno < place.line:
            continue
        is_of_result = node is place.statement or bool(loaded_names(node) & results)
        if not is_of_result or isinstance(node, FUNCTIONS):
            continue
        name = _collecting(node, whole=True).removeprefix("self.")
        if name.isidentifier() and _collecting(node) == "self":
            yield node, name
        if isinstance(node, ast.Assign):
            results |= {one.id for one in bound_names(node) if isinstance(one, ast.Name)}


def _sum_of_losses(place: Place, programs: Sequence[Program]) -> Place | None:
    """The statement in the loop that adds to what one ``backward`` starts from.

    That stands after the loop, or in the loop under a condition.
    """
    loop = place.loop
    if loop is None or _goes_on(place, loop):
        return None
    sums = [
        (statement, name)
        for statement in ast.walk(loop)
        if isinstance(statement, ast.stmt)
        and (name := _collecting(statement) or _keyed_by(loop, statement))
    ]
    if not sums:
        return None
    learning = _calls_that_learn(place.scope, programs)
    names_in_backward = _flows_into_backward(place.scope, loop.end_lineno or 0, learning)
    names_in_backward |= _flows_into_backward_now_and_then(loop, learning)
    for statement, name in sums:
        added_at = place.program.place(statement) if name in names_in_backward else None
        if added_at is not None and not is_under_no_grad(added_at):
            return added_at
    return _sum_for_another_function(place, loop, sums, programs)


def _sum_for_another_function(
    place: Place,
    loop: ast.For | ast.AsyncFor | ast.While,
    sums: Sequence[tuple[ast.stmt, str]],
    programs: Sequence[Program],
) -> Place | None:
    """The statement in a loop that adds to what other functions of the program go backward from.

    The function of the loop returns it, or hands it to one of them.
    """
    own = {id(node) for statement, _ in sums for node in ast.walk(statement)}
    for statement, name in sums:
        reads = (
            (place.program.place(read) or place, read, around)
            for read, around in reads_of(place.scope, name)
            if read.lineno >= loop.lineno and id(read) not in own
        )
        added_at = place.program.place(statement)
        if added_at is None or name == "self" or is_under_no_grad(added_at):
            continue
        if reads_are_learned_from(reads, programs):
            return added_at
    return None


def _calls_that_learn(
    scope: ast.AST, programs: Sequence[Program], depth: int = _DEEPEST
) -> list[tuple[int, set[str]]]:
    """Lines of a function from which a backward pass starts, and the names that it starts from.

    A function of the program that is given the loss may have the pass: ``self.update(total)``.
    """
    learning = [(call.lineno, _started_from(call)) for call in calls_in(scope, *_LEARNING)]
    functions = syntax_of(tuple(sorted(programs, key=lambda one: one.filename))).functions
    for call in calls_in(scope) if depth else ():
        for function in functions.get(called_name(call), ()):
            into = [one for one in parameters(function) if one not in ("self", "cls")]
            given = dict(zip(into, call.args, strict=False))
            given |= {one.arg: one.value for one in call.keywords if one.arg}
            losses = _losses_given(function, programs, depth - 1)
            names = [loaded_names(value) for name, value in given.items() if name in losses]
            learning += [(call.lineno, one) for one in names]
    return learning


def _started_from(call: ast.Call) -> set[str]:
    """The names in what a call goes backward from: of ``autograd.grad(loss, weights)`` the loss."""
    if called_name(call) != "grad":
        return loaded_names(call)
    return {name for one in call.args[:1] for name in loaded_names(one)}


def _losses_given(
    function: ast.FunctionDef | ast.AsyncFunctionDef, programs: Sequence[Program], depth: int
) -> set[str]:
    """The parameters of a function from which it starts a backward pass, scaled perhaps.

    Not what it computes a loss from: the results of several passes may be compared there.
    """
    names = {
        name for _, each in _calls_that_learn(function, programs, depth=depth) for name in each
    }
    scalings = [
        (bound_names(node), node.value)
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp)
    ]
    for targets, value in scalings:
        if any(isinstance(one, ast.Name) and one.id in names for one in targets):
            sides = (value.left, value.right)
            names |= {side.id for side in sides if isinstance(side, ast.Name)}
    return names & set(parameters(function))


def _flows_into_backward_now_and_then(
    loop: ast.For | ast.AsyncFor | ast.While, learning: Sequence[tuple[int, set[str]]]
) -> set[str]:
    """Names that a round of the loop hands to the next, and a condition to a backward pass."""
    names: set[str] = set()
    for at, condition in enumerate(loop.body):
        if isinstance(condition, ast.If) and not condition.orelse:
            others = [*loop.body[:at], *loop.body[at + 1 :]]
            anew = {name for one in others for name in _bound_anew(one)}
            names |= _flows_into_backward(condition, 0, learning) - anew
    return names


def _bound_anew(statement: ast.stmt) -> Iterator[str]:
    """The variables to which a statement, or one in it, gives a value, and adds nothing."""
    for node in ast.walk(statement):
        if isinstance(node, ast.stmt) and not _collecting(node):
            yield from (one.id for one in bound_names(node) if isinstance(one, ast.Name))


def _goes_on(place: Place, loop: ast.AST, *, attributes_only: bool = False) -> bool:
    """Whether a statement uses what the loop's round before has bound, as ``h = cell(x, h)`` does.

    The passes are then one graph, and no backward pass can begin before the last of them. Of a
    function that is called again and again, attributes alone stay from call to call.
    """
    line = place.statement.lineno
    bindings = [
        (statement.lineno, ast.unparse(target), id(statement))
        for statement in ast.walk(loop)
        if isinstance(statement, ast.stmt)
        for target in bound_names(statement)
        if isinstance(target, ast.Attribute if attributes_only else (ast.Attribute, ast.Name))
    ]
    # What a condition binds anew now and then has the last round's value in the others.
    now_and_then = {
        id(statement)
        for node in ast.walk(loop)
        if isinstance(node, ast.If)
        for statement in ast.walk(node)
    }
    before = {name for at, name, number in bindings if at < line and number not in now_and_then}
    later = {name for at, name, _ in bindings if at >= line}
    used = {
        ast.unparse(node)
        for node in ast.walk(_added_part(place.statement))
        if isinstance(node, (ast.Attribute, ast.Name)) and isinstance(node.ctx, ast.Load)
    }
    return bool(used & (later - before))


def _added_part(statement: ast.stmt) -> ast.AST:
    """``loss(x)`` of ``total = total + loss(x)``, what a loop goes over; else the statement."""
    if isinstance(statement, (ast.For, ast.AsyncFor)):
        return statement.iter  # its body runs after what it calls there
    is_assignment = isinstance(statement, ast.Assign)
    added = (added_by(statement) or _added_by_torch(statement)) if is_assignment else None
    if added is None or not _collecting(statement):
        return statement
    return ast.Tuple([added.value, *added.others], ast.Load())


def _flows_into_backward(
    scope: ast.AST, line: int, learning: Sequence[tuple[int, set[str]]]
) -> set[str]:
    """Names below ``line`` from which a backward pass starts, with what they are computed from."""
    names: set[str] = set()
    first, last = getattr(scope, "lineno", 0), getattr(scope, "end_lineno", None)
    for at, started_from in learning:
        if at > line and first <= at and (last is None or at <= last):
            names |= started_from
    for node in sorted(ast.walk(scope), key=lambda n: -getattr(n, "lineno", 0)):
        if not isinstance(node, (ast.Assign, ast.For)) or node.lineno <= line:
            continue
        if any(isinstance(t, ast.Name) and t.id in names for t in bound_names(node)):
            # of a loop: each of a list has a backward pass of its own
            names |= loaded_names(node.value if isinstance(node, ast.Assign) else node.iter)
    return names


def _keyed_by(loop: ast.AST, statement: ast.stmt) -> str:
    """``parts`` of ``parts[task] = loss``, in a loop that goes over the tasks; else empty."""
    if not isinstance(loop, (ast.For, ast.AsyncFor)) or not isinstance(statement, ast.Assign):
        return ""
    turns = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
    for target in bound_names(statement):
        is_entry = isinstance(target, ast.Subscript) and bool(loaded_names(target.slice) & turns)
        if is_entry and not is_partly_cut(statement.value):
            return root_name(target)
    return ""


def _collecting(statement: ast.stmt, *, whole: bool = False) -> str:
    """``total`` of ``total += loss``, ``losses`` of ``losses.append(loss)``; else empty.

    Empty as well where numbers without a graph are added. Of ``self.total`` it is ``self``, unless
    it is to be the whole name.
    """
    if isinstance(statement, (ast.For, ast.AsyncFor, ast.While, ast.If, ast.With, ast.Try)):
        return ""  # what stands in its body is looked at by itself
    addition, growth = added_by(statement) or _added_by_torch(statement), filling(statement)
    if addition is not None:
        parts = (addition.value, *addition.others)
        plain = all(isinstance(one, ast.Constant) or is_partly_cut(one) for one in parts)
        name = ast.unparse(addition.total) if whole else root_name(addition.total)
        return "" if plain else name
    if growth is None or growth.keyed or any(map(is_partly_cut, growth.values)):
        return ""
    return growth.container if whole else growth.container.partition(".")[0].partition("[")[0]


def _added_by_torch(statement: ast.stmt) -> Accumulation | None:
    """The sum of ``total = torch.add(total, loss)`` and of ``total = total.add(loss)``."""
    call = statement.value if isinstance(statement, ast.Assign) else None
    if not isinstance(statement, ast.Assign) or not isinstance(call, ast.Call):
        return None
    if called_name(call) != "add" or not isinstance(call.func, ast.Attribute):
        return None
    names = [ast.unparse(one) for one in statement.targets]
    given = [call.func.value, *call.args]
    totals = [one for one in given if ast.unparse(one) in names]
    others = [one for one in call.args if one not in totals]
    return Accumulation(totals[0], others[0], tuple(others[1:])) if totals and others else None


RULE = LateBackward()
