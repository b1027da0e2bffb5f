"""kept-graph: a container takes tensors together with the graphs that made them."""

from __future__ import annotations

import ast
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from memprof.reference_chain import LinkKind, is_field
from memprof.rules.case import Case
from memprof.rules.containers import filled_container
from memprof.rules.emptied_beside import advice_on_missed
from memprof.rules.finding import Kind
from memprof.rules.graph_lines import (
    OF_ERRORS,
    calling_place,
    never_visited,
    none_meanwhile,
    of_many_steps,
    retaining,
)
from memprof.rules.rule import Advice, Cause, GrowthRule
from memprof.rules.same_holder import holder_key
from memprof.rules.source_facts import handed_over, is_number
from memprof.source_code.call_sites import Handed, hands_numbers
from memprof.source_code.carried_names import Carried, carried_on
from memprof.source_code.dataflow import flow_from
from memprof.source_code.idioms import Filling, growing, read_by_itself
from memprof.source_code.patch import diff, wrapped
from memprof.source_code.program import Place, bound_names, calls_in, loaded_names
from memprof.source_code.values import goes_backward, survives_call, used_as_tensor
from memprof.source_code.verbs import LEARNING
from memprof.units import format_percent

__all__ = ["RULE"]

_MOSTLY = 0.5
"""Share of the bytes from which cutting off the graph is not the remedy."""
_INSIDE = frozenset({LinkKind.ITEM, LinkKind.ATTRIBUTE})
"""Links from what a container holds to a tensor further inside."""
_CODE = {"item": ".item()", "detach": ".detach()"}


@dataclass(frozen=True, slots=True, eq=False)
class KeptGraphs(Cause):
    """The statement that fills the container; None where the chain of references says it alone."""

    place: Place | None = None
    filling: Filling | None = None
    of_many_steps: bool = False
    """The chain of references goes from an item of a container into a graph."""
    entry: Place | None = None
    """Where no statement of the program fills it: the one that has the key of the chain's item."""
    key: str = ""


class KeptGraph(GrowthRule[KeptGraphs]):
    """`losses.append(loss)` with a loss that has a `grad_fn`."""

    name = "kept-graph"
    summary = "a container keeps tensors with the graphs that made them"
    fixes = ("clear_container", "detach", "item", "no_grad", "no_retain_graph")
    yields_to = ("running-sum", "carried-state", "create-graph")

    def match(self, case: Case) -> KeptGraphs | None:
        """A statement that fills a container with what has a graph, or a chain that shows it."""
        if not case.graph and case.finding.kind is not Kind.HOST_GROWTH:
            return None
        if case.links & OF_ERRORS:
            return None  # what the container takes is not the tensor
        many = of_many_steps(case)
        for place in case.places:
            filling = growing(place)
            if filling is not None:
                return KeptGraphs(place, filling, many)
        if not many:
            return None
        container = filled_container(case)
        if container is not None:  # by another function than made the graphs
            return KeptGraphs(container.place, container.filling, many)
        key, entry = _entry(case) if case.kept_itself <= _MOSTLY else ("", None)
        if entry is None and not any(retaining(case)):
            return None
        return KeptGraphs(of_many_steps=True, entry=entry, key=key)

    def advice(self, cause: KeptGraphs, case: Case) -> Iterator[Advice]:
        """Keep the number, or the tensor without its graph; and let backward passes free it."""
        yield from advice_on_missed(case)
        carried = _carried(case)
        if carried is not None:
            why = (
                f"No backward pass goes through what is made here. A loop carries `{carried.name}` "
                "on with its graph, so that cutting off only what is kept frees nothing: build no "
                "graph."
            )
            place = calling_place(case) or carried.place
            yield Advice("no_grad", why, place)
            why = (
                f"Or cut off both: hand over `{carried.name}` detached to the next round, and keep "
                "what is kept detached."
            )
            yield Advice("detach", why, carried.place)
        elif cause.place is not None and cause.filling is not None:
            function = _unlearned_around(cause.place, cause.filling, case)
            if function is not None:
                value = ast.unparse(cause.filling.values[-1])
                why = (
                    f"`{cause.filling.container}` keeps `{value}` with the graph that made it, and "
                    f"line {min(_of_the_same_value(cause.place))} puts more of that elsewhere. No "
                    "backward pass goes through what this function makes: build no graph in it."
                )
                yield Advice("no_grad", why, function)
            yield from _cuts(cause.place, cause.filling, case)
        elif cause.entry is not None:
            why = (
                f"What is handed over under `{cause.key!r}` is kept with the graph that made it: "
                "hand over a number (`.item()`), or the tensor detached."
            )
            yield Advice("detach", why, cause.entry, remains=case.kept_itself)
        if cause.of_many_steps:
            yield from retaining(case)


def _carried(case: Case) -> Carried | None:
    """What a loop that makes the tensors carries on with its graph, though nothing learns from it.

    A recurrent state, of which a replay buffer keeps the older ones: learned from is a pass that
    begins anew with one of those.
    """
    carried = next((one for _, place in case.frames if (one := _carried_at(place))), None)
    if carried is None or not never_visited(case.window, case.finding.evidence.allocs):
        return None
    return carried


def _carried_at(place: Place) -> Carried | None:
    """What a statement in a loop carries on; not through the modules that the loop goes over."""
    loop = place.loop
    name = next((name for name, _ in read_by_itself(place)), None)
    if name is None or loop is None:
        return carried_on(place)
    bound = {one.id for one in bound_names(loop) if isinstance(one, ast.Name)}
    calls = calls_in(place.statement)
    return None if any(loaded_names(one.func) & bound for one in calls) else Carried(place, name)


def _entry(case: Case) -> tuple[str, Place | None]:
    """The key of the item by which a library keeps a graph, and the only statement that has it.

    ``{"entropy": entropy}``, ``row["entropy"] = entropy`` or ``entropy=entropy``.
    """
    for holder in case.finding.holders:
        kinds = [link.kind for link in holder.links]
        at = kinds.index(LinkKind.AUTOGRAD_NODE) if LinkKind.AUTOGRAD_NODE in kinds else 0
        if not at or not is_field(holder.links[at - 1]):
            continue
        key = holder.links[at - 1].name.strip("'")
        places = {
            (program.filename, place.line): place
            for program in case.programs
            for node in program.nodes
            if _has_key(node, key) and (place := program.place(node)) is not None
        }
        if len(places) == 1:
            return key, next(iter(places.values()))
    return "", None


def _has_key(node: ast.AST, key: str) -> bool:
    """Whether an expression gives something a key that it writes out."""
    if isinstance(node, ast.Dict):
        return any(isinstance(one, ast.Constant) and one.value == key for one in node.keys)
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
        return isinstance(node.slice, ast.Constant) and node.slice.value == key
    return isinstance(node, ast.Call) and any(one.arg == key for one in node.keywords)


def _cuts(place: Place, filling: Filling, case: Case) -> Iterator[Advice]:
    """The first where the value is kept, the second where it comes from."""
    value = filling.values[-1]
    grouped = _is_grouped(case)
    learns = goes_backward(place, filling.container, case.everywhere)
    tensors = used_as_tensor(place, filling.container, case.everywhere)
    handed = handed_over(case, place, value) or (place, value)
    places: list[Handed] = [(place, value), handed]
    shown = ast.unparse(value)
    if hands_numbers(place, value, case.programs):  # of which nothing can be cut off
        places, shown = [handed, handed], ast.unparse(handed[1])
    ways = [way for way in _ways(case) if not (tensors and way.fix == "item")]
    others = _others(case, place)
    as_well = f" {_lines(others)} such graphs, too: there as well." if others else ""
    in_vain = bool(others) or _is_of_called_function(case, place)
    in_vain = in_vain and none_meanwhile(case.window, case.finding.evidence.allocs)
    for way, (where, what) in zip(ways, places, strict=False):
        number = is_number(case, where, what)
        if way.fix == "item" and number is False:
            continue
        tensor = _is_plain(what) or (where is place and _takes_tensors(case))
        sure = (
            not (grouped or learns or others) and tensor and (way.fix != "item" or number is True)
        )
        saves = way.fix != "detach" or case.scalar or case.kept_itself < 1
        sure = sure and saves  # it may have no graph, where the tensor itself is all that is kept
        if where is not place:
            as_number = way.fix == "item"
            sure = sure and survives_call(where, what, case.everywhere, number=as_number)
        yield Advice(
            way.fix,
            f"`{filling.container}` keeps `{shown}` {way.why}{as_well}",
            where,
            patch=diff(where.program, *wrapped(what, _CODE[way.fix])) if sure else "",
            remains=case.kept_itself if way.fix == "detach" else 0.0,
            otherwise=in_vain or (way.otherwise and not tensors),
        )


def _is_of_called_function(case: Case, place: Place) -> bool:
    """Whether a function that is called there calls the model, and keeps all graphs until its end.

    ``report[domain] = evaluate(model, loader)`` gets the mean of the losses of a loop.
    """
    calling = calling_place(case)
    if calling is None or calling.function is place.function:
        return False
    return any(one.function is place.function for _, one in case.frames)


def _lines(numbers: Sequence[int]) -> str:
    """``Line 86 keeps``, ``Lines 86 and 87 keep``."""
    if len(numbers) == 1:
        return f"Line {numbers[0]} keeps"
    return f"Lines {' and '.join(map(str, numbers))} keep"


def _others(case: Case, place: Place) -> list[int]:
    """Lines at which further containers take such graphs: means and variances of one prediction.

    Cut off one of them, and nothing of what they have in common is freed.
    """
    first: dict[Hashable, int] = {}
    for holder in case.finding.holders:
        other = case.place_of(holder) if holder.through_graph else None
        if other is not None and growing(other) is not None:
            first.setdefault(holder_key(holder), other.line)
    return sorted({*first.values(), *_of_the_same_value(place)} - {place.line})


def _unlearned_around(place: Place, filling: Filling, case: Case) -> Place | None:
    """The function that keeps a value and hands on what it computes of it, where nobody learns.

    To cut off what it keeps leaves the graph of the rest. None where a backward pass may start from
    what it returns or keeps, or where it runs one.
    """
    function = place.function
    if function is None or not any(_of_the_same_value(place)) or calls_in(function, *LEARNING):
        return None
    programs = [place.program, *case.everywhere]
    value = ast.unparse(filling.values[-1])
    if goes_backward(place, filling.container, programs) or goes_backward(place, value, programs):
        return None
    return None if flow_from(programs, function.name).learned else place.program.place(function)


def _of_the_same_value(place: Place) -> Iterator[int]:
    """Lines of the same loop that put what is computed of the same variable into others.

    ``self.m[name] += g`` and ``self.v[name] += g ** 2``: whose variable the loop, or a statement of
    it, binds.
    """
    own, loop = growing(place), place.loop
    if own is None or not isinstance(loop, (ast.For, ast.AsyncFor)):
        return
    targets = (loop.target, *(one for node in loop.body for one in bound_names(node)))
    bound = {n.id for one in targets for n in ast.walk(one) if isinstance(n, ast.Name)}
    values = bound & {name for one in own.values for name in _read(one)}
    for statement in loop.body:
        other = place.program.place(statement) if statement is not place.statement else None
        filling = growing(other) if other is not None else None
        is_other = filling is not None and filling.container != own.container
        read = {name for one in filling.values for name in _read(one)} if filling else set()
        if is_other and values & read:
            yield statement.lineno


def _read(value: ast.expr) -> set[str]:
    """The variables that an expression computes with: keys of what is in a container are none."""
    keys = [one.slice for one in ast.walk(value) if isinstance(one, ast.Subscript)]
    of_keys = {name for key in keys for name in loaded_names(key)}
    return loaded_names(value) - of_keys


@dataclass(frozen=True, slots=True)
class _Way:
    """A fix for a tensor with a ``grad_fn`` that a container takes, and why it helps."""

    fix: str
    why: str
    otherwise: bool = False


def _ways(case: Case) -> Iterator[_Way]:
    if case.scalar and case.direct:
        yield _Way("item", "as a tensor of one number: keep the number.")
    if case.direct and case.backward:
        why = (
            "after its backward pass: detaching drops the graph's nodes (host memory), while the "
            "tensor itself stays as long as it is kept."
        )
        yield _Way("detach", why, otherwise=True)
        return
    if case.kept_itself > _MOSTLY:
        share = format_percent(case.kept_itself, 1)
        consequence = f"cutting that off leaves the tensors, {share} of the bytes."
        yield _Way("detach", f"with the graph that made it; {consequence}", otherwise=True)
        return
    why = "with the graph that made it, and all that graph saved: keep it detached (`.detach()`)."
    yield _Way("detach", why)
    if not case.scalar:
        why = (
            "with its graph: if it is a single number, keep that (`.item()` waits for the device)."
        )
        yield _Way("item", why, otherwise=True)


def _is_plain(value: ast.expr) -> bool:
    return isinstance(value, (ast.Name, ast.Attribute, ast.Subscript))


def _takes_tensors(case: Case) -> bool:
    """Whether what the container takes was seen to be tensors: such as what a module returned."""
    for holder in case.finding.holders:
        kinds = [link.kind for link in holder.links]
        if LinkKind.ITEM in kinds:
            after = kinds[len(kinds) - kinds[::-1].index(LinkKind.ITEM) :]
            return not after or after[0] == LinkKind.AUTOGRAD_NODE
    return False


def _is_grouped(case: Case) -> bool:
    """Whether the tensors sit deeper than the container's own items: in dicts or tuples."""
    for holder in case.finding.holders:
        kinds = [link.kind for link in holder.links]
        if LinkKind.ITEM in kinds and _INSIDE & set(kinds[kinds.index(LinkKind.ITEM) + 1 :]):
            return True
    return False


RULE = KeptGraph()
