"""Queues without a bound: where a chain of references has one, and where the program makes it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from memprof.records import Holder
from memprof.reference_chain import Link, LinkKind
from memprof.rules.case import Case
from memprof.rules.rule import Advice
from memprof.source_code.idioms import last_name
from memprof.source_code.program import (
    Place,
    Program,
    bound_names,
    called_name,
    calls_in,
    loaded_names,
)
from memprof.views.peak_without import Saving

__all__ = [
    "MOST_WAITING",
    "bounded",
    "has_one_thread",
    "queue_at",
    "queue_filled_by",
    "queue_made_at",
    "queue_name",
]

MOST_WAITING = 8
"""Items that a queue with the bound that is advised has room for."""
_OF_OBJECTS = frozenset(
    (
        *(LinkKind.ATTRIBUTE, LinkKind.CLASS_ATTRIBUTE, LinkKind.MODULE_ATTRIBUTE),
        LinkKind.THREAD,  # of an object of a class of threads
    )
)
_SIMPLE = "SimpleQueue"
"""A queue of the standard library's that can have no bound."""
_QUEUES = frozenset(("Queue", "LifoQueue", "PriorityQueue", "JoinableQueue", _SIMPLE))
_SORTED = "PriorityQueue"
_TAKES = ("get", "get_nowait")
_STARTING = frozenset(
    (
        *("_thread", "anyio", "asyncio", "concurrent", "joblib", "multiprocessing", "ray"),
        *("threading", "trio"),
    )
)
"""Modules that start threads, processes or tasks."""
_PUTS = ("put", "put_nowait")
_ASKS_HOW_MANY = ("qsize", "full")
_DEQUE = "deque"
"""A container that is a queue where the program takes out what came first."""
_TAKES_FIRST = "popleft"
_APPENDS = "append"


def queue_at(holder: Holder) -> int | None:
    """Where in a chain a queue without a bound has its items; None where there is none."""
    for at, link in enumerate(holder.links[:-1]):
        is_queue = link.kind == LinkKind.QUEUE and link.limit < 0
        if is_queue or (link.kind == LinkKind.UNKNOWN and link.type_name == _SIMPLE):
            return at if holder.links[at + 1].kind == LinkKind.ITEM else None
    return None


def queue_name(links: Sequence[Link]) -> str:
    """The name of what the links lead to: an attribute or a variable."""
    return links[-1].name if links else "queue"


def queue_made_at(case: Case, links: Sequence[Link]) -> Place | None:
    """The statement that makes the queue that links lead to; None where it is not sure which.

    It is in the class of the object that has it, in the function whose variable it is, or at the
    top of a file. A base class makes it too, or a caller: then it is the only one of that name.
    """
    link = links[-1] if links else None
    if link is None:
        return None
    of_object = link.kind in _OF_OBJECTS
    named = [
        place
        for place, target in _queues_made(case.programs)
        if last_name(ast.unparse(target)) == link.name
        and (of_object == isinstance(target, ast.Attribute) or _is_class_attribute(place, link))
    ]
    exact = [place for place in named if _is_scope_of(place, link)]
    return exact[0] if exact else named[0] if len(named) == 1 else None


def queue_filled_by(place: Place, programs: Sequence[Program]) -> tuple[Place, str] | None:
    """Where the queue is made that a statement's value is put into, and its name.

    It must be the only one of its file or, where that makes none, of these programs. It has no
    bound, and nothing there asks how full it is. Where there is none at all, a ``deque`` does that
    one thread fills and another takes the first out of.
    """
    own = list(_queues_made([place.program]))
    deque = None if own else _deque_filled_by(place, [place.program])
    queues = own or list(_queues_made(programs))
    if deque is not None or not queues:
        return deque or _deque_filled_by(place, programs)
    asked = [place.program] if own else programs
    asks = any(calls_in(program.tree, *_ASKS_HOW_MANY) for program in asked)
    if len(queues) != 1 or asks or not _is_put(place):
        return None
    ((made_at, target),) = queues
    call = next(iter(calls_in(made_at.statement, *_QUEUES)))
    return None if call.args or call.keywords else (made_at, last_name(ast.unparse(target)))


def _deque_filled_by(place: Place, programs: Sequence[Program]) -> tuple[Place, str] | None:
    """Where the only deque without a bound is made that a statement's value is put into.

    What puts in may know it by another name, which is never bound to anything that is made.
    """
    taken = {
        last_name(ast.unparse(call.func.value))
        for program in programs
        for call in calls_in(program.tree, _TAKES_FIRST)
        if isinstance(call.func, ast.Attribute)
    }
    made = [
        (made_at, last_name(ast.unparse(target)))
        for made_at, target in _queues_made(programs, _DEQUE)
    ]
    deques = [(made_at, name) for made_at, name in made if name in taken]
    names = {
        last_name(ast.unparse(call.func.value))
        for call in _puts(place, _APPENDS)
        if isinstance(call.func, ast.Attribute)
    }
    if len(made) != 1 or not deques or not names or not _starts_threads(programs):
        return None
    ((made_at, name),) = deques
    call = next(iter(calls_in(made_at.statement, _DEQUE)))
    known = {name, *names}
    is_other = any(_is_made_elsewhere(programs, one) for one in names - {name})
    if call.args or call.keywords or is_other or _is_counted(programs, known | taken):
        return None
    return made_at, name


def _is_made_elsewhere(programs: Sequence[Program], name: str) -> bool:
    """Whether a variable or an attribute is ever bound to anything but another name's value."""
    return any(
        last_name(ast.unparse(target)) == name
        and not isinstance(node.value, (ast.Attribute, ast.Name))
        for program in programs
        for node in program.nodes
        if isinstance(node, (ast.Assign, ast.AnnAssign))
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    )


def _is_counted(programs: Sequence[Program], names: set[str]) -> bool:
    """Whether programs ask how many items one of these has; not whether it has any."""
    for program in programs:
        any_at_all = {
            id(node.left)
            for node in program.nodes
            if isinstance(node, ast.Compare) and ast.unparse(node.comparators[0]) == "0"
        }
        for call in calls_in(program.tree, "len"):
            named = {last_name(ast.unparse(one)) for one in call.args}
            if named & names and id(call) not in any_at_all:
                return True
    return False


def _is_put(place: Place) -> bool:
    """Whether a function puts what a statement binds, or computes, into a queue."""
    return bool(_puts(place, *_PUTS))


def _puts(place: Place, *methods: str) -> list[ast.Call]:
    """The calls by which a function puts in what a statement computes, or else what it binds."""
    own = list(calls_in(place.statement, *methods))
    if own:
        return own
    names = {node.id for node in bound_names(place.statement) if isinstance(node, ast.Name)}
    return [
        call
        for call in calls_in(place.scope, *methods)
        if any(names & loaded_names(argument) for argument in call.args)
    ]


def _queues_made(programs: Sequence[Program], *types: str) -> Iterator[tuple[Place, ast.expr]]:
    """Statements that bind a target to a queue, or one of other ``types``, that is made there."""
    for program in programs:
        for node in program.nodes:
            if not isinstance(node, (ast.Assign, ast.AnnAssign)):
                continue
            is_queue = node.value is not None and called_name(node.value) in (types or _QUEUES)
            place = program.place(node) if is_queue else None
            if place is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                yield from ((place, target) for target in targets)


def _is_class_attribute(place: Place, link: Link) -> bool:
    return link.kind in _OF_OBJECTS and place.function is None and place.class_ is not None


def _is_scope_of(place: Place, link: Link) -> bool:
    """Whether a statement stands where what a link names is bound."""
    scope = link.type_name.rpartition(".")[2]
    if link.kind in _OF_OBJECTS:
        return place.class_ is not None and place.class_.name == scope
    if link.kind == LinkKind.GLOBAL:
        return place.function is None and place.class_ is None
    return place.function is not None and place.function.name == scope


def bounded(
    name: str,
    items: int,
    place: Place | None,
    saving: Saving | None = None,
    *,
    of_one_thread: bool = False,
) -> Advice:
    """The advice to let what fills a queue wait, or to drop the oldest.

    Not to wait where ``of_one_thread`` the same thread takes out; of a sorted queue the oldest may
    be what comes next.
    """
    is_sorted = place is not None and bool(calls_in(place.statement, _SORTED))
    dropped = "what comes last in its order" if is_sorted else "the oldest"
    way = f"give it one (`maxsize={MOST_WAITING}`)"
    if place is not None and calls_in(place.statement, _DEQUE):
        way = f"make it a `queue.Queue(maxsize={MOST_WAITING})`"
    elif place is not None and calls_in(place.statement, _SIMPLE):
        way = f"a `{_SIMPLE}` can have none, make it a `queue.Queue(maxsize={MOST_WAITING})`"
    way += f", so that what fills it waits, or drop {dropped} when it is full"
    if of_one_thread:
        way = (
            f"drop {dropped} when it has enough. The thread that fills it is the one that takes "
            "out, and would wait for itself at a `maxsize`"
        )
    return Advice(
        "bound_queue",
        f"`{name}` has no bound, and is filled faster than it is emptied ({items} items waited "
        f"in it): {way}.",
        place,
        saving=saving,
    )


def has_one_thread(programs: Sequence[Program], name: str) -> bool:
    """Whether programs take out of a queue of that name, and import nothing that starts threads.

    Nor tasks or processes.
    """
    taking = [call.func for program in programs for call in calls_in(program.tree, *_TAKES)]
    return not _starts_threads(programs) and any(
        isinstance(one, ast.Attribute) and last_name(ast.unparse(one.value)) == name
        for one in taking
    )


def _starts_threads(programs: Sequence[Program]) -> bool:
    """Whether programs import what starts threads, tasks or processes."""
    modules = {
        name
        for program in programs
        for node in program.nodes
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
        for name in (alias.name, f"{getattr(node, 'module', None) or ''}.{alias.name}".strip("."))
    }
    return any(_STARTING & set(name.split(".")) for name in modules)
