"""uncalled-release: an object has a method that takes out what is put in, and nothing calls it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from memprof.reference_chain import CYCLES, Link, LinkKind
from memprof.rules.case import Case
from memprof.rules.rule import Advice, Cause, GrowthRule
from memprof.source_code.frame_kind import FrameKind, frame_kind
from memprof.source_code.idioms import growing, last_name
from memprof.source_code.opposite_methods import (
    function_releasing,
    opposite,
    parents_of,
    releases_of,
)
from memprof.source_code.program import (
    FUNCTIONS,
    Place,
    arguments,
    bound_names,
    called_name,
    calls_in,
    own_calls,
    source_of,
)
from memprof.source_code.scopes import qualified_name
from memprof.source_code.values import values_of
from memprof.trace import Frame

__all__ = ["RULE"]

_NAMES = frozenset(
    {
        *(LinkKind.LOCAL, LinkKind.GLOBAL, LinkKind.ATTRIBUTE, LinkKind.MODULE_ATTRIBUTE),
        *(LinkKind.CLOSURE, LinkKind.FRAME, LinkKind.GENERATOR, LinkKind.COROUTINE),
    }
)
"""Links by whose names a program calls methods of what comes next."""
_LASTING = frozenset(("acquire", "begin", "connect", "enable", "open", "setup", "start"))
"""Verbs of methods that may run as long as the program: what is made within one was not put in."""
_HISTORIES = frozenset(("MetricTracker",))
"""torchmetrics' class keeps a metric of each epoch for its `best_metric`: it is not to be reset."""
_SHORTENING = frozenset(("crop", "truncate"))
"""Verbs of methods that take out a part: what was put in last."""
_SAY_MORE = CYCLES | {
    *(LinkKind.LRU_CACHE, LinkKind.TRACEBACK, LinkKind.EXCEPTION, LinkKind.LOG_RECORD),
    *(LinkKind.ITERATOR, LinkKind.NOTEBOOK),
}


_PRUNED = "PruningContainer"
"""What `torch.nn.utils.prune` keeps a layer's masks in, when it has more than one."""
_PRUNING_MODULE = "torch.nn.utils.prune."
_PRUNING = (
    *("custom_from_mask", "l1_unstructured", "ln_structured", "random_structured"),
    "random_unstructured",
)


@dataclass(frozen=True, slots=True, eq=False)
class OneWay(Cause):
    """The call that puts something in, and the method that would take it out."""

    place: Place
    line: int
    receiver: str
    """As written at the line: ``self.model``; empty where the object has no name there."""
    method: str
    """What is called; empty where the object itself is."""
    release: str
    class_name: str
    argument: str = ""
    """The first that is handed over by a name."""
    is_function: bool = False
    """A library's function puts it into what it is given; its module has another for that."""
    is_kept: bool = False
    """The program is known to keep the object, and hands it over each time."""


class UncalledRelease(GrowthRule[OneWay]):
    """`model.load_adapter(path, name)` for each tenant, and no `model.delete_adapter(name)`."""

    name = "uncalled-release"
    summary = "what is put into an object is never taken out by the method that it has for that"
    fixes = ("detach", "release")
    yields_to = (
        *("kept-graph", "running-sum", "carried-state", "unreset-metric", "unbounded-dict"),
        *("registered-callback", "class-registry", "functools-cache"),
    )
    precedes = (
        *("growing-container", "collected-models", "parameter-groups", "generation-cache"),
        "grown-by-concatenation",
    )

    def match(self, case: Case) -> OneWay | None:
        """A call on an object that holds the tensors, or on which they are made."""
        if case.links & _SAY_MORE:
            return None
        ways = (
            *_of_holders(case),
            *_of_filling_methods(case),
            *_of_made_objects(case),
            *_of_stack(case),
            *_of_called_objects(case),
            *_of_module(case),
            *_of_pruning(case),
            *_within(case),
        )
        return next((way for way in ways if not _is_called(case, way)), None)

    def advice(self, cause: OneWay, case: Case) -> Iterator[Advice]:
        """Hand over no graph, where that is what is kept; call the method."""
        if cause.argument and cause.receiver and LinkKind.AUTOGRAD_NODE in case.links:
            yield Advice(
                "detach",
                f"`{cause.receiver}` keeps the graph of what `{cause.method}()` is given: hand "
                f"over `{cause.argument}.detach()`, or `.item()` of a number.",
                cause.place,
                cause.line,
            )
        if cause.is_function:
            prefix = f"{cause.receiver}." if cause.receiver else ""
            yield Advice(
                "release",
                f"`{prefix}{cause.method}()` puts a `{cause.class_name}` into what it is given, "
                "each time one more: take the last one out, or make it final, before the next "
                f"(`{prefix}{cause.release}()` of the same module).",
                cause.place,
                cause.line,
            )
            return
        if cause.is_kept:
            yield Advice("release", _of_kept(cause), cause.place, cause.line)
            return
        if not cause.receiver:
            yield Advice(
                "release",
                f"At every such call `{cause.class_name}.{cause.method}` takes in more: hand over "
                f"a new one each time, or have it let go (`{cause.class_name}.{cause.release}()`).",
                cause.place,
                cause.line,
            )
            return
        call_text = f"{cause.receiver}.{cause.method}" if cause.method else cause.receiver
        yield Advice(
            "release",
            f"`{call_text}()` puts in what nothing takes out again: call "
            f"`{cause.receiver}.{cause.release}()` when it is done with (`{cause.class_name}` has "
            "it).",
            cause.place,
            cause.line,
        )


def _of_kept(cause: OneWay) -> str:
    """What to do about an object that every call adds to, and that is handed over again."""
    what = f"`{cause.argument}`" if cause.argument else f"the `{cause.class_name}` it is given"
    copied = f"copy.deepcopy({cause.argument})" if cause.argument else "copy.deepcopy"
    owner = cause.argument or cause.class_name
    way_out = (
        "take out again what the call added"
        if cause.release.split("_")[0] in _SHORTENING
        else "have it let go"
    )
    return (
        f"Every such call adds to {what}, which is kept for the next one: hand over a copy "
        f"(`{copied}`), or {way_out} (`{owner}.{cause.release}()`)."
    )


def _of_holders(case: Case) -> Iterator[OneWay]:
    """Calls by the name that a chain has for an object, the deepest object first."""
    for holder in case.finding.holders:
        links = holder.links
        for at in range(len(links) - 1, 0, -1):
            above, link = links[at - 1], links[at]
            if not link.releases or above.kind not in _NAMES or link.type_name in _HISTORIES:
                continue
            name = above.name.rpartition(".")[2]
            for place, call in _calls_on(case, name):
                way = _way(place, call, list(link.releases), link.type_name)
                if way is not None:
                    yield way


def _of_made_objects(case: Case) -> Iterator[OneWay]:
    """Calls on an object that a chain has as an item, by the name that the program made it under.

    ``self.score = exporter.gauge("score", CosineSimilarity())``, and ``exporter.gauges["score"]``.
    """
    for holder in case.finding.holders:
        for above, link in pairwise(holder.links):
            if not link.releases or above.kind in _NAMES or not link.type_name:
                continue
            for _, made in case.calls(link.type_name.rpartition(".")[2]):
                bound = [one for one in bound_names(made.statement) if _is_plain(one)]
                if len(bound) != 1 or not _is_own(case, made.program.filename):
                    continue
                for place, call in _calls_on(case, last_name(ast.unparse(bound[0]))):
                    way = _way(place, call, list(link.releases), link.type_name)
                    if way is not None:
                        yield way


def _is_plain(target: ast.expr) -> bool:
    return isinstance(target, (ast.Attribute, ast.Name))


def _of_filling_methods(case: Case) -> Iterator[OneWay]:
    """Calls of the library's method whose line fills the container, by whatever name it is called.

    A chain may call the object ``trainer``, and the function that puts something in ``engine``.
    """
    for holder in case.finding.holders:
        if not holder.line or frame_kind(holder.filename) is FrameKind.USER:
            continue
        program = source_of(holder.filename)
        filling = program.at(holder.line) if program is not None else None
        if program is None or filling is None or growing(filling) is None:
            continue
        if filling.function is None or filling.class_ is None:
            continue
        method, class_name = filling.function.name, filling.class_.name
        for call, place in case.calls(method):
            if _is_own(case, place.program.filename) and isinstance(call.func, ast.Attribute):
                way = _way(place, call, releases_of(program, class_name), class_name)
                if way is not None:
                    yield way


def _calls_on(case: Case, name: str) -> Iterator[tuple[Place, ast.Call]]:
    """Calls of methods of what is called ``name``, or of itself; those that ran come first."""
    for _, place in case.frames:
        calls = own_calls(place.statement)
        yield from ((place, call) for call in calls if _is_on(call, name, place))
    for program in case.programs:
        for call in calls_in(program.tree) if _is_own(case, program.filename) else ():
            where = program.place(call)
            if where is not None and _is_on(call, name, where):
                yield where, call


def _is_on(call: ast.Call, name: str, place: Place) -> bool:
    """Whether a call is of what has a name, or of a variable that is bound to that alone."""
    function = call.func
    inner = function.value if isinstance(function, ast.Attribute) else function
    if not isinstance(inner, (ast.Name, ast.Attribute)):
        return False
    if last_name(ast.unparse(inner)) == name:
        return True
    values = list(values_of(place, inner.id)) if isinstance(inner, ast.Name) else []
    return len(values) == 1 and isinstance(values[0], ast.Attribute) and values[0].attr == name


def _of_stack(case: Case) -> Iterator[OneWay]:
    """The program's call within which the tensors are made, where its class is in sight."""
    for inner, outer in pairwise(case.finding.stack):
        class_name, _, method = inner.name.rpartition(".")
        own = _is_own(case, outer.filename)
        place = case.place_at(outer.filename, outer.line) if own else None
        if place is None or not class_name or method.split("_")[0] in _LASTING:
            continue
        program = source_of(inner.filename)
        for call in own_calls(place.statement, method) if program is not None else ():
            if isinstance(call.func, ast.Attribute) and program is not None:
                way = _way(place, call, releases_of(program, class_name), class_name)
                if way is not None:
                    yield way


def _of_called_objects(case: Case) -> Iterator[OneWay]:
    """Calls of modules that collect, which the program has by a variable or an item alone.

    ``metric(scores, target)`` in a loop over ``self.metrics.values()``.
    """
    links = [link for one in case.finding.holders for link in one.links if link.releases]
    frames = [one for one in case.finding.stack if frame_kind(one.filename) is not FrameKind.TORCH]
    for inner, outer in pairwise(frames):
        class_name, _, method = inner.name.rpartition(".")
        if method != "forward" or not _is_own(case, outer.filename):
            continue
        place, program = case.place_at(outer.filename, outer.line), source_of(inner.filename)
        if place is None or program is None or _is_own(case, inner.filename):
            continue
        releases = releases_of(program, class_name)
        own = [link for link in links if not set(releases).isdisjoint(link.releases)]
        for call in own_calls(place.statement) if own else ():
            if isinstance(call.func, (ast.Name, ast.Subscript)):
                way = _way(place, call, releases, own[0].type_name)
                if way is not None:
                    yield way


def _of_module(case: Case) -> Iterator[OneWay]:
    """A library's function that puts objects of its module into what it is given.

    Its module has another function that takes them out: ``prune.remove(module, name)``.
    """
    holder_types = {link.type_name for one in case.finding.holders for link in one.links}
    for inner, outer in pairwise(case.finding.stack):
        place = case.place_at(outer.filename, outer.line) if _is_own(case, outer.filename) else None
        program = source_of(inner.filename) if place is not None else None
        if program is None or place is None or frame_kind(inner.filename) is FrameKind.USER:
            continue
        calls = own_calls(place.statement, inner.name)
        own_types = sorted(holder_types & {one.name for one in program.classes()})
        release = function_releasing(program, inner.name) if calls and own_types else ""
        if release:
            function = calls[0].func
            receiver = ast.unparse(function.value) if isinstance(function, ast.Attribute) else ""
            line = calls[0].lineno
            yield OneWay(place, line, receiver, inner.name, release, own_types[0], is_function=True)


def _within(case: Case) -> Iterator[OneWay]:
    """The program's call in which a library's object takes something in, by no known name.

    Where the holders are known, the object is one of theirs: the first that they lead to.
    """
    if not case.finding.growth.is_replaced:
        return
    named = [one for one in case.finding.holders if one.is_named]
    if named:
        yield from _within_kept(case, [link for link in named[0].links if link.releases])
        return
    own = next((one for one in case.finding.stack if _is_own(case, one.filename)), None)
    place = case.place_at(own.filename, own.line) if own is not None else None
    if own is None or place is None:
        return
    for frame in case.finding.stack:
        if frame is own:
            return
        class_name, _, method = frame.name.rpartition(".")
        program = source_of(frame.filename) if class_name else None
        methods = releases_of(program, class_name) if program is not None else []
        release = opposite(method, methods)
        if release:
            yield OneWay(place, own.line, "", method, release, class_name)


def _of_pruning(case: Case) -> Iterator[OneWay]:
    """Calls of `torch.nn.utils.prune` that give a layer one more mask, wherever that was made."""
    kinds = {link.type_name for holder in case.finding.holders for link in holder.links}
    if _PRUNED not in kinds:
        return
    for call, place in case.calls(*_PRUNING):
        if qualified_name(place, call.func).startswith(_PRUNING_MODULE):
            method = called_name(call)
            receiver = ast.unparse(call.func).rpartition(".")[0]
            yield OneWay(place, call.lineno, receiver, method, "remove", _PRUNED, is_function=True)


def _within_kept(case: Case, links: Sequence[Link]) -> Iterator[OneWay]:
    """The same of an object that is held, whose method a library calls on what it was given."""
    own = next((one for one in case.finding.stack if _is_own(case, one.filename)), None)
    place = case.place_at(own.filename, own.line) if own is not None else None
    if own is None or place is None:
        return
    stack = case.finding.stack[: case.finding.stack.index(own)]
    for link in links:
        for frame, caller in pairwise(stack):
            class_name, _, method = frame.name.rpartition(".")
            program = source_of(frame.filename) if class_name else None
            if program is None or class_name not in parents_of(program, link.type_name):
                continue
            shortening = [one for one in link.releases if one.split("_")[0] in _SHORTENING]
            release = opposite(method, shortening) or opposite(method, link.releases)
            if release:
                callers = [one for _, one in case.frames if one.program is place.program]
                places = [place, *callers]
                taken = next(filter(None, (_taken(case, one) for one in places)), None)
                handed = _handed_over(place, caller, method) or _known_by(case, place)
                argument = taken[1] if taken else handed
                at = taken[0] if taken else place
                line = at.line if taken else own.line
                names = (method, release, link.type_name, argument)
                yield OneWay(at, line, "", *names, is_kept=True)


def _taken(case: Case, place: Place) -> tuple[Place, str] | None:
    """Where the function takes what it hands over from where it is kept: `cache = self.prefix`."""
    link_names = {
        link.name.rpartition(".")[2] for one in case.finding.holders for link in one.links
    }
    argument_names = {
        value.id
        for call in own_calls(place.statement)
        for value in (*call.args, *(keyword.value for keyword in call.keywords))
        if isinstance(value, ast.Name)
    }
    for node in ast.walk(place.scope):
        if not isinstance(node, ast.Assign):
            continue
        names = {one.id for one in bound_names(node) if isinstance(one, ast.Name)}
        is_of_link = not link_names.isdisjoint(_attributes(case, node.value))
        at = place.program.place(node) if names & argument_names and is_of_link else None
        if at is not None:
            return at, ast.unparse(node.value)
    return None


def _attributes(case: Case, value: ast.expr) -> set[str]:
    """The attribute that a value is, or what a method of the program returns that it calls."""
    if isinstance(value, ast.Attribute):
        return {value.attr}
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute):
        return set()
    functions = [one for program in case.programs for one in program.functions(value.func.attr)]
    if len(functions) != 1:
        return set()
    returned = [node.value for node in ast.walk(functions[0]) if isinstance(node, ast.Return)]
    names = {one.attr if isinstance(one, ast.Attribute) else "" for one in returned}
    return names if "" not in names else set()


def _handed_over(place: Place, caller: Frame, method: str) -> str:
    """What a statement hands over under the name by which a library calls the method of it."""
    program = source_of(caller.filename)
    calling = program.at(caller.line) if program is not None else None
    for call in own_calls(calling.statement, method) if calling is not None else ():
        if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name):
            for own_call in own_calls(place.statement):
                for keyword in own_call.keywords:
                    if keyword.arg == call.func.value.id:
                        return ast.unparse(keyword.value)
    return ""


def _known_by(case: Case, place: Place) -> str:
    """The one attribute that a statement hands over and by which a chain leads to what grows."""
    link_names = {
        link.name.rpartition(".")[2] for one in case.finding.holders for link in one.links
    }
    handed = {
        ast.unparse(value)
        for call in own_calls(place.statement)
        for value in arguments(call)
        if isinstance(value, ast.Attribute) and value.attr in link_names
    }
    return handed.pop() if len(handed) == 1 else ""


def _is_own(case: Case, filename: str) -> bool:
    """Whether a file lies beside, or below, that of the outermost function: it is no library's."""
    if not case.frames:
        return frame_kind(filename) is FrameKind.USER
    folder = Path(case.frames[-1][0].filename).parent
    return folder in Path(filename).parents


def _way(place: Place, call: ast.Call, methods: list[str], class_name: str) -> OneWay | None:
    """The call as a way in, where one of the methods is its way out."""
    function = call.func
    method = function.attr if isinstance(function, ast.Attribute) else ""
    inner = function.value if isinstance(function, ast.Attribute) else function
    release = opposite(method or "__call__", methods)
    if not release or ast.unparse(inner) in ("self", "cls"):
        return None
    argument_names = (one.id for one in call.args if isinstance(one, ast.Name))
    argument = next(argument_names, "") if method else ""
    return OneWay(place, call.lineno, ast.unparse(inner), method, release, class_name, argument)


def _is_called(case: Case, way: OneWay) -> bool:
    """Whether the program calls the method: then it is not what is missing.

    What a library calls of its own, where it lies elsewhere, is none of the program's calls.
    """
    folder = Path(way.place.program.filename).parent
    return any(
        folder in Path(place.program.filename).parents and not _defines(place, way.release)
        for call, place in case.calls(way.release)
        if isinstance(call.func, ast.Attribute) or way.is_function
    )


def _defines(place: Place, method: str) -> bool:
    """Whether a statement stands in a class that has a method of that name itself."""
    body = place.class_.body if place.class_ is not None else ()
    return any(isinstance(node, FUNCTIONS) and node.name == method for node in body)


RULE = UncalledRelease()
