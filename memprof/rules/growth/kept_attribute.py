"""kept-attribute: an attribute or a variable holds the tensors beyond their step."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from memprof.records import Holder
from memprof.reference_chain import Link, LinkKind
from memprof.rules.case import NO_FIGURE, Case, says
from memprof.rules.rule import EVERY_OTHER, Advice, Cause, GrowthRule
from memprof.source_code.idioms import growing, last_name
from memprof.source_code.program import Place, bound_names, called_name, own_calls
from memprof.source_code.scopes import parameters, qualified_name
from memprof.source_code.stored_values import stored_name, stores

__all__ = ["RULE"]

_NAMED = frozenset({LinkKind.ATTRIBUTE, LinkKind.ITEM})
"""Links that have the name of an attribute."""
_SAY_MORE = frozenset(
    {
        *(LinkKind.CYCLE, LinkKind.CPP_CYCLE, LinkKind.LRU_CACHE, LinkKind.CLASS_ATTRIBUTE),
        *(LinkKind.LOG_RECORD, LinkKind.TRACEBACK, LinkKind.ITERATOR),
    }
)
"""Links that say more than the attribute or variable that they begin with."""
_MAKING = frozenset(("__init__", "__new__", "__post_init__", "__setstate__"))
"""Methods that run as an object is made."""


@dataclass(frozen=True, slots=True, eq=False)
class Name(Cause):
    """What holds the tensors by a name; nothing where no holder was found."""

    holder: Holder | None = None
    place: Place | None = None
    """The statement that binds the name."""
    name: str = ""
    """As written: ``self.batch``; empty where the statement binds none."""
    copied: str = ""
    """What the statement copies deeply, with all that the name holds by then: ``self``."""
    is_of_items: bool = False
    """It is an attribute or an entry of what a container has: ``sample.features``."""
    is_cached: bool = False
    """`functools.cached_property` sets it."""

    @property
    def is_attribute(self) -> bool:
        """Whether it outlives the function that binds it."""
        return "." in self.name


class KeptAttribute(GrowthRule[Name]):
    """`sample.features = features` for every sample of a list."""

    name = "kept-attribute"
    summary = "an attribute or a variable holds tensors beyond their step"
    fixes = ("del_ref", "clear_container")
    yields_to = (*EVERY_OTHER, "collecting-object", "growing-container")

    def match(self, case: Case) -> Name | None:
        """The first holder whose statement is here; else whatever outlives its step."""
        if case.links & _SAY_MORE:
            return None
        if case.site is not None and _copied_with(case.site):
            target = ast.unparse(bound_names(case.site.statement)[0])
            return Name(place=case.site, name=target, copied=_copied_with(case.site))
        for holder in case.finding.holders:
            setting = _setting(case, holder)
            if setting is not None:
                return setting
            place = case.place_of(holder) or _by_name_of_module(case, holder)
            place = _of_parameter(place, holder) or place
            if place is not None:
                names = bound_names(place.statement)
                return Name(holder, place, ast.unparse(names[0]) if names else "")
        is_of_tensors = bool(case.finding.site.filename and case.finding.bytes_per_step)
        return Name(place=case.site) if is_of_tensors else None

    def advice(self, cause: Name, case: Case) -> Iterator[Advice]:
        """Drop the reference."""
        if cause.copied:
            yield Advice(
                "del_ref",
                f"`deepcopy({cause.copied})` copies what `{cause.name}` holds as well, so that "
                "each copy has in it all those before: set it to None first.",
                cause.place,
                typed=f"{cause.name} = None",
            )
            return
        filling = growing(cause.place) if cause.holder is None else None
        if filling is not None:
            yield Advice(
                "clear_container",
                f"`{filling.container}` takes what this line makes: empty it when it has been "
                "used, or keep the last few (`deque(maxlen=…)`).",
                cause.place,
            )
        if cause.holder is None:
            why = "It outlives its step; drop the last reference to it."
            yield Advice("del_ref", why, cause.place, otherwise=True)
            return
        if cause.is_cached:
            yield Advice(
                "del_ref",
                f"`{cause.name}` is a `cached_property`, which stays with each item, and all of "
                f"them stay: {says(cause.holder)}. Make it a plain `property`, or `del` it of the "
                "item when it is done with.",
                cause.place,
            )
            return
        if cause.is_of_items:
            yield Advice(
                "del_ref",
                f"`{cause.name}` stays with each item, and all of them stay: "
                f"{says(cause.holder)}. Bind it to a variable, or `del {cause.name}` when it is "
                "done with.",
                cause.place,
                typed=f"del {cause.name}",
            )
            return
        name = f"`{cause.name}`" if cause.name else "what holds it"
        yield Advice(
            "del_ref",
            f"Let go of {name} when it is done with: {says(cause.holder)}.",
            cause.place,
            # Of a graph the name is not what is too much, and what letting go of it saves no replay
            # tells.
            saving=None if case.direct else NO_FIGURE,
            otherwise=not (cause.is_attribute and case.direct),
        )


def _copied_with(place: Place) -> str:
    """What a statement copies deeply and keeps the copy in: ``self.teacher = deepcopy(self)``."""
    targets = bound_names(place.statement)
    roots = {ast.unparse(one.value) for one in targets if isinstance(one, ast.Attribute)}
    copied = [
        ast.unparse(call.args[0]) for call in own_calls(place.statement, "deepcopy") if call.args
    ]
    is_own = len(targets) == 1 and isinstance(place.statement, ast.Assign) and bool(copied)
    return copied[0] if is_own and copied[0] in roots else ""


def _setting(case: Case, holder: Holder) -> Name | None:
    """The statement by which items that there are get the tensors, as an attribute or an entry.

    One on the tensors' stack, or one that stores there what such a statement binds.
    """
    kinds = [link.kind for link in holder.links]
    if LinkKind.ITEM not in kinds:
        return None
    # Of an object with a mapping of its own for attributes they are its keys.
    inner = holder.links[kinds.index(LinkKind.ITEM) + 1 :]
    names = {link.name.strip("'\""): link for link in inner if link.kind in _NAMED}
    attributes = [name for name, link in names.items() if link.kind is LinkKind.ATTRIBUTE]
    attribute = attributes[0] if len(attributes) == 1 else ""
    for _, place in case.frames:
        lazy = _cached_property(place)
        if lazy in names and _is_of_old_item(case, holder, place, names[lazy]):
            at = place.program.place(place.function or place.statement)
            return Name(holder, at, f"self.{lazy}", is_of_items=True, is_cached=True)
        for at, stored in stores(place, case.programs):
            is_unnamed = isinstance(stored, ast.Attribute) and not stored.attr
            target = ast.Attribute(stored.value, attribute) if is_unnamed else stored  # type: ignore[attr-defined]
            link = names.get(stored_name(target))
            if link is not None and (
                not _is_own(target) or _is_of_old_item(case, holder, at, link)
            ):
                return Name(holder, at, ast.unparse(target), is_of_items=True)
    return None


def _cached_property(place: Place) -> str:
    """The name under which an object keeps what a function returns; empty where it does not."""
    function = place.function
    decorators = function.decorator_list if function is not None else []
    names = [qualified_name(place, one) for one in decorators]
    is_cached = function is not None and "functools.cached_property" in names
    return function.name if function is not None and is_cached else ""


def _is_own(target: ast.expr) -> bool:
    """Whether it is an attribute of ``self``, or an entry of one."""
    while isinstance(target, ast.Subscript):
        target = target.value
    value = target.value if isinstance(target, ast.Attribute) else None
    return isinstance(value, ast.Name) and value.id == "self"


def _is_of_old_item(case: Case, holder: Holder, place: Place, link: Link) -> bool:
    """Whether a method sets an attribute of its object later than where that is made and kept.

    What a constructor sets, or the statement that makes the container has set, the items have from
    the beginning.
    """
    functions = {one.function.name for _, one in case.frames if one.function is not None}
    if functions & _MAKING or place.class_ is None:
        return False
    made_at = case.place_of(holder)
    if made_at is None or any(one.statement is made_at.statement for _, one in case.frames):
        return False
    if link.kind is not LinkKind.ATTRIBUTE:
        return True
    class_name = link.type_name.rpartition(".")[2]
    bases = {
        last_name(ast.unparse(base))
        for class_ in place.program.classes()
        if class_.name == class_name
        for base in class_.bases
    }
    return place.class_.name in {class_name, *bases}


def _of_parameter(place: Place | None, holder: Holder) -> Place | None:
    """The function that is handed what it holds by a parameter; None where a statement names it.

    The line of such a holder is the one at which the function was then.
    """
    function = place.function if place is not None else None
    name = holder.links[0].name if holder.links and holder.links[0].kind is LinkKind.LOCAL else ""
    if place is None or function is None or name not in parameters(function):
        return None
    names = {node.id for node in ast.walk(place.statement) if isinstance(node, ast.Name)}
    return None if name in names else place.program.place(function)


def _by_name_of_module(case: Case, holder: Holder) -> Place | None:
    """The one statement that puts values under names of its own making: ``globals()[name] = …``."""
    if not holder.links or holder.links[0].kind is not LinkKind.GLOBAL:
        return None
    places = [
        place
        for program in case.programs
        for node in program.nodes
        if isinstance(node, ast.Assign)
        and any(map(_is_of_globals, node.targets))
        and (place := program.place(node)) is not None
    ]
    return places[0] if len(places) == 1 else None


def _is_of_globals(target: ast.expr) -> bool:
    return isinstance(target, ast.Subscript) and called_name(target.value) == "globals"


RULE = KeptAttribute()
