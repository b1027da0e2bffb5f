"""Containers that grow: the statements that fill them, and what their items are."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from memprof.records import Holder
from memprof.reference_chain import (
    CYCLES,
    Link,
    LinkKind,
    breadth,
    instance_attribute,
    is_bounded,
    is_field,
    largest_container,
    linked_at,
)
from memprof.rules.case import Case
from memprof.source_code.call_sites import parameters_given
from memprof.source_code.idioms import (
    Filling,
    checks_for_key,
    filling,
    growing,
    last_name,
    merged_entries,
)
from memprof.source_code.length_guards import is_kept_to_length, replaces_items
from memprof.source_code.program import (
    FUNCTIONS,
    Place,
    bound_names,
    called_name,
    nodes_of,
    place_of,
)
from memprof.source_code.values import values_of
from memprof.source_code.verbs import EMPTYING
from memprof.trace import Frame

__all__ = [
    "FilledContainer",
    "below_item",
    "filled_container",
    "filled_registry",
    "gradient_of_data",
    "has_fixed_keys",
    "is_cache",
    "is_cycle_around_bounded",
    "is_kept_short",
    "is_of_key",
    "left_in",
    "places_in",
    "taken_at",
]

_FAR_MORE = 2
_ITSELF = ("self", "super()")
"""The object in its own methods."""
_FEW_KEYS = 64
"""Of a container whose items are kept to a length each: classes, say, and no ever new names."""
_ITEM_OR_NEW = frozenset(("get", "setdefault"))
_MOSTLY = 0.5
_LEAVING = (ast.Break, ast.Continue, ast.Raise, ast.Return)
_TAKING_ONE = EMPTYING - {"clear"}
_MODULES = frozenset(("ModuleDict", "ModuleList", "ParameterDict", "ParameterList"))


@dataclass(frozen=True, slots=True, eq=False)
class FilledContainer:
    """A container that the program's own source fills."""

    holder: Holder
    place: Place
    """The statement that fills it."""
    filling: Filling

    @property
    def is_module(self) -> bool:
        """Whether a module holds its items, as parts of the model."""
        container = max(self.holder.links, key=breadth, default=None)
        return container is not None and container.type_name in _MODULES

    @property
    def is_object(self) -> bool:
        """Whether an object of the program's own class is the container, and fills itself."""
        return self.filling.container in _ITSELF

    @property
    def length(self) -> int:
        """How many items it had when that was seen; -1 where it was not."""
        return max(self.holder.links, key=breadth).length if self.holder.links else -1

    def __str__(self) -> str:
        """Say that it grows, and how long it is, where that was seen."""
        size = f" ({self.length} items)" if self.length > 0 else ""
        own = self.place.class_.name if self.place.class_ is not None else ""
        name = own if own and self.is_object else self.filling.container
        return f"`{name}`{size} only grows"


def filled_container(case: Case) -> FilledContainer | None:
    """The container of the first holder that the source shows to be filled.

    None where a cycle or a memoized function holds the tensors: that is what is wrong then; nor
    where graphs of far more steps hang on it than it has places, so that it is they that grow. What
    it keeps itself may have been looked at when it was still short.
    """
    if case.links & CYCLES or LinkKind.LRU_CACHE in case.links:
        return None
    for holder in case.finding.holders:
        by_graph = case.graph and case.finding.growth.kept_itself < _MOSTLY
        if by_graph and 0 < _FAR_MORE * places_in(holder) < case.finding.growth.times:
            continue
        place = case.place_of(holder)
        if place is None or linked_at(holder.links) is not None:
            continue
        place = _filled_by_instance(holder, case) or place
        filling = growing(place)
        if filling is None or isinstance(place.statement, FUNCTIONS):
            place = (
                _filling_statement(place)
                or _filled_by_own_class(holder, case)
                or _filled_elsewhere(place, holder, case)
            )
            filling = growing(place)
        if place is not None and filling is not None:
            return FilledContainer(holder, place, _of_new_keys(filling, holder))
    return None


def _of_new_keys(filling: Filling, holder: Holder) -> Filling:
    """The dictionary, where its items are bounded and it has ever more: ``gallery[id].append(x)``.

    What each item may have, in a ``deque(maxlen=…)``, does not grow.
    """
    links, at = holder.links, largest_container(holder.links)
    item = ast.parse(filling.container, mode="eval").body
    if at is None or not isinstance(item, ast.Subscript) or not links[at].grows:
        return filling
    inner = next((link for link in links[at + 1 :] if link.kind == LinkKind.ITEM), None)
    container = ast.unparse(item.value)
    if inner is None or inner.limit <= 0 or last_name(container) != last_name(links[at - 1].name):
        return filling
    return Filling(container, filling.values, keyed=True)


def places_in(holder: Holder) -> int:
    """How many items the containers of a chain have together; 0 where it has none."""
    lengths = [
        link.length
        for link in holder.links
        if link.kind == LinkKind.ITEM and link.length > 0 and link.type_name != "tuple"
    ]
    return prod(lengths) if lengths else 0


def filled_registry(case: Case) -> FilledContainer | None:
    """The same of a class's own attribute: ``cls._made[key] = made``."""
    holder = case.holder(LinkKind.CLASS_ATTRIBUTE)
    if holder is None or LinkKind.LRU_CACHE in case.links:
        return None
    if instance_attribute(holder.links) is not None:
        return None  # an object that the class has fills its own
    links = [link for link in holder.links if link.kind == LinkKind.CLASS_ATTRIBUTE]
    names = {link.name for link in links}
    classes = {link.type_name.rpartition(".")[2] for link in links}
    by_name: FilledContainer | None = None
    for program in case.programs:
        for node in program.nodes:
            if isinstance(node, (ast.Expr, ast.Assign, ast.AugAssign)):
                place = program.place(node)
                filling = growing(place)
                if place is None or not filling or last_name(filling.container) not in names:
                    continue
                filled = FilledContainer(holder, place, filling)
                owner = place.class_.name if place.class_ is not None else ""
                if {owner, filling.container.split(".", maxsplit=1)[0]} & classes:
                    return filled
                by_name = by_name or filled  # by a subclass, or a variable
    return by_name


def is_of_key(links: Sequence[Link]) -> bool:
    """Whether a memoized method's key has the object that it was called on, and that the rest."""
    kinds = [link.kind for link in links]
    at = kinds.index(LinkKind.LRU_CACHE) if LinkKind.LRU_CACHE in kinds else len(links)
    if len(links) <= at + 2 or links[at + 1].kind is not LinkKind.ITEM:
        return False
    owner = links[at].name.rpartition(".")[0].rpartition(".")[2]
    is_first = links[at + 1].name == "0" and links[at + 1].type_name == "tuple"
    return is_first and bool(owner) and links[at + 2].type_name == owner


def is_cycle_around_bounded(holder: Holder, others: Sequence[Holder]) -> bool:
    """Whether a cycle leads to a bounded container that another chain comes to from a name.

    ``self.locals`` of a callback has the callback: its ``deque(maxlen=4)`` is no garbage for that.
    """
    if holder.kind not in CYCLES:
        return False
    attributes = {(link.name, link.type_name) for link in holder.links}
    return any(
        one.kind not in CYCLES
        and is_bounded(one.links)
        and (at := largest_container(one.links))
        and (one.links[at - 1].name, one.links[at - 1].type_name) in attributes
        for one in others
    )


def is_kept_short(holder: Holder) -> bool:
    """Whether the largest container of a chain is bounded, or what fills it takes by its length.

    Not where it had more items than that would leave it. A list of which items are only replaced is
    as long as it was made.
    """
    if is_bounded(holder.links):
        return True
    container = largest_container(holder.links)
    if container is None or linked_at(holder.links) is not None or not holder.line:
        return False
    place = place_of(Frame("", holder.filename, holder.line))
    if place is not None and (growing(place) is None or isinstance(place.statement, FUNCTIONS)):
        aliased = _filled_in_turn(place, last_name(holder.links[container - 1].name))
        if aliased is not None and place.program.code(holder.line).strip() == holder.code:
            return is_kept_to_length(aliased, holder.links[container].length)
        place = _filling_statement(place)
    growth = growing(place)
    if place is None or growth is None or place.program.code(holder.line).strip() != holder.code:
        return False
    outer = _filled_by(growth, holder)
    if outer >= 0:  # what it keeps few of may each have more items: a cache of caches
        container = outer
    name = last_name(holder.links[container - 1].name) if container else ""
    length, grew = holder.links[container].length, holder.links[container].grows
    if _is_list_of_items(holder, container) and replaces_items(place, name, length, grew=grew):
        return True
    if _is_kept_by_key(place, growth, holder):
        return True
    return last_name(growth.container) == name and is_kept_to_length(place, length)


def _is_kept_by_key(place: Place, growth: Filling, holder: Holder) -> bool:
    """Whether a statement keeps each item of a container of a few keys to a length.

    By a variable that stands for the item: ``slot = self.slots.setdefault(label, [])``.
    """
    links, outer = holder.links, _container_of(place, growth.container)
    at = next(
        (
            at
            for at in range(1, len(links))
            if links[at].kind == LinkKind.ITEM and last_name(links[at - 1].name) == outer
        ),
        -1,
    )
    if not outer or at < 0 or links[at].length > _FEW_KEYS:
        return False
    inner = [link.length for link in links[at + 1 :] if link.kind == LinkKind.ITEM]
    return is_kept_to_length(place, max(inner[:1], default=0))


def _container_of(place: Place, variable: str) -> str:
    """The last name of the container of which a variable stands for an item; else empty."""
    values = list(values_of(place, variable)) if "." not in variable else []
    value = values[0] if len(values) == 1 else None
    if isinstance(value, ast.Call) and called_name(value) in _ITEM_OR_NEW:
        value = value.func.value if isinstance(value.func, ast.Attribute) else None
    elif isinstance(value, ast.Subscript):
        value = value.value
    else:
        return ""
    return last_name(ast.unparse(value)) if value is not None else ""


def _filled_by(growth: Filling, holder: Holder) -> int:
    """Where in a chain the container stands that a statement fills, by its name; -1: nowhere."""
    name, links = last_name(growth.container), holder.links
    return next(
        (
            at
            for at in range(1, len(links))
            if links[at].kind == LinkKind.ITEM and last_name(links[at - 1].name) == name
        ),
        -1,
    )


def _is_list_of_items(holder: Holder, container: int) -> bool:
    """Whether a container is a list, and no container in it can grow."""
    link = holder.links[container]
    inner = [one for one in holder.links[container + 1 :] if one.kind == LinkKind.ITEM]
    is_fixed = all(one.type_name == "tuple" or is_field(one) for one in inner)
    return link.type_name == "list" and is_fixed


def is_cache(container: FilledContainer) -> bool:
    """Whether the function that fills a container asks it for the key first."""
    filling = container.filling
    return filling.keyed and checks_for_key(container.place, filling.container)


def has_fixed_keys(container: FilledContainer) -> bool:
    """Whether the statement puts something under a key that it writes out: that never grows.

    ``self.cache["factor"] = factor``: then there are ever more objects that have such a dict. Also
    where the dict is made anew with it: ``cache = {**cache, "factor": factor}``.
    """
    _, entries = merged_entries(container.place.statement)
    if entries:
        return all(isinstance(key, ast.Constant) for key, _ in entries)
    for target in bound_names(container.place.statement):
        if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
            name = ast.unparse(target.value)
            if name == container.filling.container and isinstance(target.slice.value, str):
                return True
    return False


def taken_at(container: FilledContainer) -> list[int]:
    """Lines of the same class, or file, that take single entries out of a container by its name."""
    name = container.filling.container
    return sorted({line for node in _around(container) for line in _takes_out_of(name, node)})


def left_in(container: FilledContainer) -> tuple[Place, str] | None:
    """A branch that reads an entry, leaves its loop or function, and takes nothing out.

    Where other lines take entries out: ``if self.jobs[key].done(): continue``. With the entry. One
    that reads it again, as a cache's answer is read, has a use for it.
    """
    name = container.filling.container
    if not taken_at(container):
        return None
    for node in _around(container):
        if not isinstance(node, ast.If) or not isinstance(node.body[-1], _LEAVING):
            continue
        entries = [
            ast.unparse(one)
            for one in ast.walk(node.test)
            if isinstance(one, ast.Subscript) and ast.unparse(one.value) == name
        ]
        inside = [one for part in node.body for one in ast.walk(part)]
        is_used = any(isinstance(one, ast.expr) and ast.unparse(one) == name for one in inside)
        if entries and not is_used:
            place = container.place.program.place(node)
            return (place, entries[0]) if place is not None else None
    return None


def _around(container: FilledContainer) -> Sequence[ast.AST]:
    """The nodes of the class whose attribute a container is, else of the file."""
    place, name = container.place, container.filling.container
    own = place.class_ if name in _ITSELF or name.startswith("self.") else None
    return nodes_of(own if own is not None else place.program.tree)


def _takes_out_of(name: str, node: ast.AST) -> Iterator[int]:
    """The line of a node that takes an entry out of a container by its name."""
    if isinstance(node, ast.Delete):
        parts = [t.value for t in node.targets if isinstance(t, ast.Subscript)]
    elif isinstance(node, ast.Call) and called_name(node) in _TAKING_ONE:
        parts = [node.func.value] if isinstance(node.func, ast.Attribute) else []
    else:
        return
    yield from (node.lineno for part in parts if ast.unparse(part) == name)


def below_item(holder: Holder) -> Sequence[Link]:
    """The links of a chain below the item of the largest container."""
    items = [at for at, link in enumerate(holder.links) if link.kind == LinkKind.ITEM]
    top = max(items, key=lambda at: breadth(holder.links[at]), default=len(holder.links))
    return holder.links[top + 1 :]


def gradient_of_data(holder: Holder) -> bool:
    """Whether what a container has is the gradient of a tensor that is no model's."""
    return any(
        link.kind == LinkKind.GRAD and link.type_name == "Tensor" for link in below_item(holder)
    )


def _filled_by_own_class(holder: Holder, case: Case) -> Place | None:
    """The statement by which an object that is a container fills itself: ``self[key] = made``.

    In a method of its class, where that is one of the program's.
    """
    at = largest_container(holder.links)
    class_name = holder.links[at].type_name.rpartition(".")[2] if at is not None else ""
    for program in case.programs if class_name else ():
        for class_ in program.classes():
            for node in ast.walk(class_) if class_.name == class_name else ():
                place = program.place(node) if isinstance(node, (ast.Expr, ast.Assign)) else None
                filling = growing(place)
                if place is None or filling is None or filling.container not in _ITSELF:
                    continue
                if place.class_ is class_:
                    return place
    return None


def _filled_by_instance(holder: Holder, case: Case) -> Place | None:
    """The statement by which a singleton fills its attribute, in a method of its class."""
    at = instance_attribute(holder.links)
    link = holder.links[at] if at is not None else None
    if link is None:
        return None
    class_name = link.type_name.rpartition(".")[2]
    for program in case.programs:
        for node in program.nodes:
            place = program.place(node) if isinstance(node, (ast.Expr, ast.Assign)) else None
            filling = growing(place)
            if place is None or filling is None or place.class_ is None:
                continue
            if place.class_.name == class_name and filling.container == f"self.{link.name}":
                return place
    return None


def _filled_elsewhere(place: Place, holder: Holder, case: Case) -> Place | None:
    """The statement of another function that fills it: by its parameter, or by a record's key.

    ``log(rows, x)`` of a list ``rows`` that ``def log(kept, x): kept.append(x)`` fills.
    """
    names = {target.id for target in bound_names(place.statement) if isinstance(target, ast.Name)}
    keys = {f"[{link.name}]" for link in holder.links if is_field(link)}
    ran = {id(near.scope) for _, near in case.frames}
    fillings = [
        (where, growth.container)
        for program in case.programs
        for node in program.nodes
        if isinstance(node, (ast.Expr, ast.Assign))
        and (growth := filling(node)) is not None
        and (where := program.place(node)) is not None
    ]
    fillings.sort(key=lambda one: id(one[0].scope) not in ran)
    for where, container in fillings:
        if any(container.endswith(key) for key in keys):
            return where
        if container in parameters_given(place, where, names):
            return where
    return None


def _filled_in_turn(place: Place, name: str) -> Place | None:
    """The statement that fills several containers in turn, of which a line makes one.

    ``for store, value in zip((self.frames, self.rewards), values): store.append(value)``
    """
    scope = place.class_ if place.class_ is not None else place.scope
    for loop in ast.walk(scope):
        if not isinstance(loop, (ast.For, ast.AsyncFor)):
            continue
        in_turn = {
            last_name(ast.unparse(item))
            for node in ast.walk(loop.iter)
            if isinstance(node, (ast.List, ast.Tuple))
            for item in node.elts
            if isinstance(item, (ast.Name, ast.Attribute))
        }
        targets = {one.id for one in ast.walk(loop.target) if isinstance(one, ast.Name)}
        for node in ast.walk(loop) if name in in_turn else ():
            filling = growing(place.program.place(node)) if isinstance(node, ast.Expr) else None
            if filling is not None and filling.container in targets:
                return place.program.place(node)
    return None


def _filling_statement(place: Place) -> Place | None:
    """The statement that fills what a line makes: ``kept = []`` or ``def f(x, kept=[])``."""
    statement = place.statement
    scope: ast.AST = place.scope
    names = {ast.unparse(target) for target in bound_names(statement)}
    if isinstance(statement, FUNCTIONS):
        scope = statement
        arguments = statement.args
        names = {a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    for node in ast.walk(scope):
        if isinstance(node, (ast.Expr, ast.Assign)):
            where = place.program.place(node)
            filling = growing(where)
            if filling is not None and filling.container in names:
                return where
    return None
