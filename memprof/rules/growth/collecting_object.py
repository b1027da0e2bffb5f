"""collecting-object: an object of a library collects what it is called with or given."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from memprof.records import Holder
from memprof.reference_chain import LinkKind, is_field, largest_container
from memprof.rules.case import Case
from memprof.rules.emptied_beside import advice_on_left
from memprof.rules.rule import EVERY_OTHER, Advice, Cause, GrowthRule
from memprof.source_code.frame_kind import FrameKind, frame_kind
from memprof.source_code.idioms import growing, keyword, last_name
from memprof.source_code.program import (
    Place,
    arguments,
    assigned,
    bound_names,
    called_name,
    calls_in,
)
from memprof.source_code.scopes import qualified_name
from memprof.source_code.verbs import RELEASING

__all__ = ["RULE", "curve_of"]

_ATTRIBUTES = frozenset({LinkKind.ATTRIBUTE, LinkKind.MODULE_ATTRIBUTE})
"""Links from an object to what it has."""


_MOSTLY = 0.5
"""Share of the bytes from which cutting off the graph is not the remedy."""
_OF_CURVES = frozenset(("preds", "target"))
"""Lists in which a curve of torchmetrics' keeps all that it is given."""
_CURVES = (
    *("AUROC", "AveragePrecision", "LogAUC", "PrecisionAtFixedRecall", "PrecisionRecallCurve"),
    *("ROC", "RecallAtFixedPrecision", "SensitivityAtSpecificity", "SpecificityAtSensitivity"),
)
"""Ends of the names of torchmetrics' classes that take ``thresholds`` (torchmetrics 1.x)."""
_NO_CURVES = ("Mean", "Retrieval")
"""Beginnings of the names of those that end so and take none: they rank, or look for objects."""
_OTHERS = (
    *("AverageSpectralError", "CompletenessScore", "CorrCoef", "CosineSimilarity"),
    *("DistortionIndex", "FowlkesMallowsIndex", "HomogeneityScore", "ImageQualityIndex"),
    *("MutualInfoScore", "QualityWithNoReference", "RandScore", "SpectralAngleMapper"),
    *("RelativeGlobalDimensionlessSynthesis", "SimilarityIndexMeasure", "VMeasureScore"),
)
"""Ends of the names of others of torchmetrics' that have such lists."""
_THRESHOLDS = 200
_COMPUTE = "compute"
"""The method by which a metric of torchmetrics is asked what comes of all that it has."""
_LEAST_PARTS = 2
_OF_ANY_MODULE = frozenset(
    ("cpu", "cuda", "double", "eval", "float", "half", "share_memory", "train", "zero_grad")
)
"""Methods without an argument that every module has; they add nothing."""
_MOST_RELEASES = 2
"""Of more methods it is not known which of them empties the container."""


@dataclass(frozen=True, slots=True, eq=False)
class Collector(Cause):
    """The object, and the program's own statement that fills it."""

    place: Place | None
    call: str = ""
    """What the statement calls, as written."""
    owner: str = ""
    container: str = ""
    length: int = -1
    """Items in the container."""
    is_in_stack: bool = False
    """The tensors are made within the call."""
    is_named: bool = False
    """The call says under which key it is kept."""
    releases: tuple[str, ...] = ()
    """Methods of its class that, by their verbs, empty it."""
    made_class: str = ""
    """The object's class, where only the statement that makes the object is in sight."""
    is_longer: bool = False
    """Looks saw the container become longer, and nothing says how the program gets there."""
    receiver: str = ""
    """The object as the statement writes it."""
    parts: int = 0
    """Parts of the object that have such a container each, one more after each call."""


class CollectingObject(GrowthRule[Collector]):
    """`metric.update(preds)` of a library's metric, `loop.call_later(…)`."""

    name = "collecting-object"
    summary = "a library's object collects what it is called with"
    fixes = ("detach", "thresholds", "clear_container", "del_ref")
    yields_to = EVERY_OTHER

    def match(self, case: Case) -> Collector | None:
        """What calls the object on the way to the tensors; else what hands it things, or makes it.

        Not where the program's own source fills the container: that is the line to mend.
        """
        if any(growing(place) for place in case.places):
            return None
        of_parts = _by_parts(case)
        if of_parts is not None:
            return of_parts
        if case.of_model:
            return _by_name(case) or _by_length(case)
        return (
            _by_name(case)
            or _by_call(case)
            or _by_result(case)
            or _by_release(case)
            or _by_argument(case)
            or _by_construction(case)
            or _by_length(case)
        )

    def advice(self, cause: Collector, case: Case) -> Iterator[Advice]:
        """Give it tensors without their graphs, where those are most of it; empty it."""
        if cause.parts:
            yield Advice(
                "clear_container",
                f"`{cause.call}()` gives `{cause.receiver}` one part more ({cause.parts}), "
                f"and each keeps what it has collected in `{cause.container}`: do without it, and "
                "keep the numbers that were computed.",
                cause.place,
            )
            return
        if cause.receiver and case.graph and case.kept_itself <= _MOSTLY:
            yield Advice(
                "detach",
                f"`{cause.receiver}` keeps the graph of what it is given, {cause.length} times in "
                f"its `{cause.container}`: hand it over detached (`.detach()`), or a number "
                "(`.item()`).",
                cause.place,
                remains=case.kept_itself,
            )
        lasting = _kept_by_reset(cause, case)
        if lasting is not None:
            argument, place = lasting
            yield Advice(
                "clear_container",
                f"`{argument}` has `reset()` leave `{cause.container}` ({cause.length} items) "
                "as it is: leave the argument out, or hand over only once what goes there.",
                place,
            )
        yield from advice_on_left(case, cause.container, cause.length)
        if cause.is_named:
            yield Advice(
                "del_ref",
                f"`{cause.call}` hands over what is kept in `{cause.container}` for good: hand "
                "over a number or the name of a file, or only what is read again.",
                cause.place,
            )
        elif cause.releases and not cause.is_in_stack:
            asking = _asking(cause, case)
            goes_on = _goes_on_collecting(asking, case)
            when = "once this line has computed it" if goes_on else "now and then"
            emptied = Advice(
                "clear_container",
                f"`{cause.receiver or cause.owner}` collects in its `{cause.container}` "
                f"({cause.length} items): call {_releases(cause)} {when}, or do without it.",
                asking[0] if goes_on else cause.place,
            )
            # What is never computed of all that was collected need not be collected.
            binned = list(_binned(cause, case))
            is_first = not asking or goes_on
            yield from (emptied, *binned) if is_first else (*binned, emptied)
        elif cause.is_longer:
            yield Advice(
                "clear_container",
                f"`{cause.owner}.{cause.container}` ({cause.length} items) becomes longer as "
                f"line {cause.place.line if cause.place else 0} runs: take out of it what is done "
                "with, or have nothing new put in each time.",
                cause.place,
            )
        elif cause.made_class:
            yield Advice(
                "del_ref",
                f"`{cause.made_class}` keeps what it is given here as long as it lives: hand it no "
                "more than it needs, or end it.",
                cause.place,
                otherwise=True,
            )
        elif cause.is_in_stack:
            yield Advice(
                "clear_container",
                f"At every call of `{cause.call}` its `{cause.container}` ({cause.length} items) "
                f"becomes longer: {_emptying(cause)}.",
                cause.place,
            )
        else:
            yield Advice(
                "clear_container",
                f"`{cause.call}` is handed what `{cause.owner}` keeps in its `{cause.container}` "
                f"({cause.length} items): have it taken out when it is done with.",
                cause.place,
                otherwise=True,
            )


def _kept_by_reset(cause: Collector, case: Case) -> tuple[str, Place] | None:
    """The argument by which the program has the object's ``reset`` keep what grows, and its call.

    torchmetrics' FID, KID and MiFID have it: ``reset_real_features=False``.
    """
    name = f"reset_{cause.container}"
    for program in case.programs:
        for call in calls_in(program.tree) if cause.container else ():
            argument = next((one for one in call.keywords if one.arg == name), None)
            place = program.place(call)
            if argument is None or place is None or not isinstance(argument.value, ast.Constant):
                continue
            if argument.value.value is False:
                return ast.unparse(argument), place
    return None


def _asking(cause: Collector, case: Case) -> list[Place]:
    """The statements that have the object compute something of all that it has.

    By its name or one that has it, or by a variable, which may stand for it.
    """
    links = case.finding.holders[0].links if case.finding.holders else ()
    names = {part for link in links for part in link.name.split(".")} | {cause.owner}
    return [
        place
        for program in case.programs
        for call in calls_in(program.tree, _COMPUTE)
        if isinstance(call.func, ast.Attribute)
        if isinstance(call.func.value, ast.Name) or last_name(ast.unparse(call.func.value)) in names
        if (place := program.place(call)) is not None
    ]


def _goes_on_collecting(asking: Sequence[Place], case: Case) -> bool:
    """Whether such statements ran in several steps, and what was there before is there after it.

    As in a hook of each epoch that computes a metric and never resets it.
    """
    window = case.window
    if window is None:
        return False
    frames = window.trace.tables.frames
    lines = {
        at
        for at, one in enumerate(frames)
        if any(
            one.filename == place.program.filename and one.line in place.lines for place in asking
        )
    }
    stacks = [not lines.isdisjoint(one) for one in window.trace.tables.stacks]
    lives = window.lives
    computed = np.array(stacks)[lives.stack] & (lives.alloc >= 0)
    steps = np.unique(window.made_in[computed])
    if len(steps) <= 1:
        return False
    collected = window.made_in[np.isin(lives.alloc, case.finding.evidence.allocs)]
    return bool((collected < steps[len(steps) // 2]).any())


def _binned(cause: Collector, case: Case) -> Iterator[Advice]:
    """A curve of torchmetrics' keeps all that it is given, unless it counts between thresholds."""
    made = curve_of(cause, case) if cause.container in _OF_CURVES else None
    if made is None:
        return
    call, place = made
    yield Advice(
        "thresholds",
        f"`{called_name(call)}` keeps every value that it is given, {cause.length} batches by now: "
        f"with `thresholds={_THRESHOLDS}` it counts between so many, and keeps none.",
        place,
        call.lineno,
        typed=f"{called_name(call)}(…, thresholds={_THRESHOLDS})",
    )


def curve_of(cause: Collector, case: Case) -> tuple[ast.Call, Place] | None:
    """The call that makes the curve that grows: by its class, its name, or as the only one."""
    made = [
        (call, place)
        for program in case.programs
        for call in calls_in(program.tree)
        if (place := program.place(call)) is not None and _makes_lists(call, place)
    ]
    class_name = _class_having(cause, case)
    if class_name:
        made = [one for one in made if _is_of_class(called_name(one[0]), class_name)]
    bound = [one for one in made if _is_bound_to(*one, cause.owner)]
    fits = bound or made
    is_sure = bool(class_name or bound) or len(fits) == 1
    return fits[0] if fits and is_sure and all(_is_curve(one) for one, _ in fits) else None


def _makes_lists(call: ast.Call, place: Place) -> bool:
    """Whether it makes a metric of torchmetrics' that has lists of what it is given."""
    name = called_name(call)
    has_lists = name.endswith((*_CURVES, *_OTHERS)) or name.startswith("Retrieval")
    if not has_lists or not qualified_name(place, call.func).startswith("torchmetrics."):
        return False
    return keyword(call, "thresholds") is None


def _is_curve(call: ast.Call) -> bool:
    name = called_name(call)
    return name.endswith(_CURVES) and not name.startswith(_NO_CURVES)


def _class_having(cause: Collector, case: Case) -> str:
    """The class of the object that has the container; empty where only one further out is known."""
    for holder in case.finding.holders:
        if _collected_in(holder) == (cause.owner, cause.container, cause.length):
            at = next(at for at, link in enumerate(holder.links) if link.kind == LinkKind.ITEM)
            having = holder.links[at - 1]
            return "" if "." in having.name else having.type_name.rpartition(".")[2]
    return ""


def _is_of_class(name: str, class_name: str) -> bool:
    """Also ``AUROC(task="binary")``, which makes a `BinaryAUROC`."""
    return name.endswith(class_name) or class_name.endswith(name)


def _is_bound_to(call: ast.Call, place: Place, name: str) -> bool:
    """``self.ap = AUROC()``, ``{"ap": AUROC()}``, ``f(ap=AUROC())``; in a list by its class."""
    if called_name(call) == name:
        return True
    for node in ast.walk(place.statement):
        if isinstance(node, ast.Dict):
            keys = [key for key, value in zip(node.keys, node.values, strict=True) if value is call]
            if any(isinstance(key, ast.Constant) and key.value == name for key in keys):
                return True
        elif isinstance(node, ast.keyword):
            if node.value is call and node.arg == name:
                return True
        elif any(value is call and _key_of(one) == name for one, value in assigned(node)):
            return True
    return False


def _key_of(target: ast.expr) -> str:
    """The name that a target gives: of ``metrics["ap"]`` the key."""
    if isinstance(target, ast.Subscript):
        return str(target.slice.value) if isinstance(target.slice, ast.Constant) else ""
    return last_name(ast.unparse(target))


def _releases(cause: Collector) -> str:
    receiver = cause.receiver or cause.owner
    return " or ".join(f"`{receiver}.{name}()`" for name in cause.releases)


def _emptying(cause: Collector) -> str:
    if not cause.releases:
        return "empty it when its result is done with (`reset()`, `clear()`)"
    return f"call {_releases(cause)} when its result is done with"


def _by_parts(case: Case) -> Collector | None:
    """The call that gives an object one part more, where parts by number hold what grows.

    ``self.tracker.increment()``: it is given nothing, nothing is read of it, it empties nothing.
    """
    numbers: dict[tuple[str, str], set[int]] = defaultdict(set)
    for holder in case.finding.holders:
        owner, container, _ = _collected_in(holder)
        at = next((at for at, one in enumerate(holder.links) if one.kind == LinkKind.ITEM), 0)
        names = ".".join(link.name for link in holder.links[:at]).split(".") if owner else []
        place = next((at for at, name in enumerate(names) if name.isdigit()), 0)
        if place:
            numbers[names[place - 1], container].add(int(names[place]))
    for (owner, container), different in numbers.items():
        if len(different) < _LEAST_PARTS:
            continue
        for program in case.programs:
            for node in program.nodes:
                call = node.value if isinstance(node, ast.Expr) else None
                adds = isinstance(call, ast.Call) and not list(arguments(call))
                function = call.func if adds and isinstance(call, ast.Call) else None
                if not isinstance(function, ast.Attribute) or _adds_nothing(function.attr):
                    continue
                receiver = ast.unparse(function.value)
                if last_name(receiver) == owner:
                    return Collector(
                        program.place(node),
                        ast.unparse(function),
                        owner,
                        container,
                        receiver=receiver,
                        parts=max(different) + 1,
                    )
    return None


def _adds_nothing(method: str) -> bool:
    return method in _OF_ANY_MODULE or method.partition("_")[0] in RELEASING


def _by_call(case: Case) -> Collector | None:
    """The object's call in the stack that made the tensors."""
    for holder in case.finding.holders:
        owner, *_ = _collected_in(holder)
        for _, place in case.frames if owner else ():
            call = next((c for c in calls_in(place.statement) if owner in _receivers(c)), None)
            if call is not None and growing(place) is None:
                return _called(holder, place, call)
    return None


def _by_result(case: Case) -> Collector | None:
    """A call of the object, beside the statement that made the tensors, that is handed them."""
    site = case.site
    if site is None:
        return None
    names_made = {name for one in bound_names(site.statement) for name in _names(one)}
    for holder in case.finding.holders:
        owner, *_ = _collected_in(holder)
        for call in calls_in(site.scope) if owner else ():
            names_given = {name for one in call.args for name in _names(one)}
            place = site.program.place(call)
            if place is not None and names_given & names_made and _hands(call, owner):
                return _called(holder, place, call)
    return None


def _called(holder: Holder, place: Place, call: ast.Call) -> Collector:
    """The object by a call of it, with the ways out that its class has."""
    owner, container, length = _collected_in(holder)
    function = receiver = call.func
    if isinstance(function, ast.Attribute) and last_name(ast.unparse(function.value)) == owner:
        receiver = function.value
    return Collector(
        place,
        ast.unparse(function),
        owner,
        container,
        length,
        is_in_stack=True,
        releases=_ways_out(holder),
        receiver=ast.unparse(receiver),
    )


def _names(node: ast.expr) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def _by_argument(case: Case) -> Collector | None:
    """What a function gives to a library's object that it has in a name: ``loop.call_later(…)``."""
    for holder in case.finding.holders:
        owner, container, length = _collected_in(holder)
        place = case.place_of(holder)
        if not owner or place is None or growing(place) is not None:
            continue
        calls = [call for call in calls_in(place.scope) if _hands(call, owner)]
        if calls:
            call = max(calls, key=lambda one: len(one.args))
            text = ast.unparse(call.func)
            return Collector(place.program.place(call), text, owner, container, length)
    return None


def _by_name(case: Case) -> Collector | None:
    """What gives a library's object something by a key that a chain names, if that is one call.

    ``trial.set_user_attr("model", model)``.
    """
    for holder in case.finding.holders:
        if largest_container(holder.links) is None:
            continue
        keys = {one.name.strip("'"): at for at, one in enumerate(holder.links) if is_field(one)}
        lookups = [
            (call, place, key)
            for program in case.programs
            for call in calls_in(program.tree)
            if (key := _key_given(call)) in keys and (place := program.place(call)) is not None
        ]
        if len({place.line for _, place, _ in lookups}) == 1:
            call, place, key = lookups[0]
            at = keys[key]
            container = next(
                (one.name for one in holder.links[:at][::-1] if one.kind in _ATTRIBUTES), ""
            )
            return Collector(place, ast.unparse(call.func), container=container, is_named=True)
    return None


def _key_given(call: ast.Call) -> str:
    """The key, written out, under which a method is handed what has a name; else empty."""
    given = list(arguments(call))
    if not isinstance(call.func, ast.Attribute) or len(given) < 2:
        return ""
    key, value = given[:2]
    if not isinstance(key, ast.Constant) or not isinstance(value, (ast.Name, ast.Attribute)):
        return ""
    return key.value if isinstance(key.value, str) else ""


def _hands(call: ast.Call, owner: str) -> bool:
    function = call.func
    if not isinstance(function, ast.Attribute) or last_name(ast.unparse(function.value)) != owner:
        return False
    return any(isinstance(argument, (ast.Name, ast.Attribute)) for argument in call.args)


def _by_release(case: Case) -> Collector | None:
    """A library's object that holds the container and has methods to empty it."""
    for holder in case.finding.holders:
        owner, container, length = _collected_in(holder)
        releases = _ways_out(holder)
        if owner and releases:
            place, receiver = _filling_call(case, owner, releases)
            return Collector(
                place or case.place_of(holder),
                owner=owner,
                receiver=receiver,
                container=container,
                length=length,
                releases=releases,
            )
    return None


def _ways_out(holder: Holder) -> tuple[str, ...]:
    """The methods that empty the container, of a library's class that has few enough of them."""
    links = holder.links
    at = next((at for at, link in enumerate(links) if link.kind == LinkKind.ITEM), 0)
    having = links[at - 1] if at else None
    if having is None or having.filename or len(having.releases) > _MOST_RELEASES:
        return ()
    return having.releases


def _filling_call(case: Case, owner: str, releases: Sequence[str]) -> tuple[Place | None, str]:
    """The program's first statement that hands something to the object, and how it names that."""
    for program in case.programs:
        for call in calls_in(program.tree):
            name = last_name(ast.unparse(call.func))  # ``metric(x)``, else ``metric.update(x)``
            calls_it = name == owner and bool(call.args)
            if calls_it:
                return program.place(call), ast.unparse(call.func)
            if name not in releases and _hands(call, owner):
                assert isinstance(call.func, ast.Attribute)
                return program.place(call), ast.unparse(call.func.value)
    return None, ""


def _by_construction(case: Case) -> Collector | None:
    """Where the program makes the library's object that keeps it, if that is one place only."""
    for holder in case.finding.holders:
        if frame_kind(holder.filename) is FrameKind.USER:
            continue
        for link in reversed([one for one in holder.links if one.kind in _ATTRIBUTES]):
            name = link.type_name.rpartition(".")[2]
            places = [place for call, place in case.calls(name) if call.args or call.keywords]
            if len({place.line for place in places}) == 1:
                return Collector(places[0], made_class=name)
    return None


def _by_length(case: Case) -> Collector | None:
    """A container of a library's object that became longer from look to look."""
    for holder in case.finding.holders:
        owner, container, length = _collected_in(holder)
        links = holder.links
        at = next((at for at, link in enumerate(links) if link.kind == LinkKind.ITEM), 0)
        if owner and links[at].grows and not links[at - 1].filename and case.site is not None:
            return Collector(case.site, "", owner, container, length, is_longer=True)
    return None


def _collected_in(holder: Holder) -> tuple[str, str, int]:
    """The name of the object whose container holds it, the container's, and its length.

    A container that a function has in a variable of its own is no object's.
    """
    items = [at for at, link in enumerate(holder.links) if link.kind == LinkKind.ITEM]
    # One of several may lead to the object, as a list of one callback does.
    at = next((at for at in items if holder.links[at].length > 1), 0)
    if not at or holder.links[at - 1].kind not in _ATTRIBUTES:
        return "", "", 0
    names = ".".join(link.name for link in holder.links[:at]).split(".")
    if len(names) < 2 or holder.links[at].length < 2:
        return "", "", 0
    return names[-2], names[-1], holder.links[at].length


def _receivers(call: ast.Call) -> set[str]:
    """``{"update", "metric"}`` of ``self.metric.update(…)``: what is called, and on what."""
    function = call.func
    inner = function.value if isinstance(function, ast.Attribute) else function
    return {last_name(ast.unparse(function)), last_name(ast.unparse(inner))}


RULE = CollectingObject()
