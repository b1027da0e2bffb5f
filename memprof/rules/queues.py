"""Queues without a bound: where a chain of references has one, and where the program makes it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from memprof.records import Holder
from memprof.reference_chain import Link, LinkKind
from memprof.rules.case import Case
from memprof.rules.rule import Advice
from memprof.source_code.idioms import last_name
from memprof.source_code.program import Place, called_name
from memprof.views.peak_without import Saving

__all__ = ["MOST_WAITING", "bounded", "queue_at", "queue_made_at", "queue_name"]

MOST_WAITING = 8
"""Items that a queue with the bound that is advised has room for."""
_QUEUES = frozenset(("Queue", "LifoQueue", "PriorityQueue", "JoinableQueue"))


def queue_at(holder: Holder) -> int | None:
    """Where in a chain a queue without a bound has its items; None where there is none."""
    for at, link in enumerate(holder.links[:-1]):
        if link.kind == LinkKind.QUEUE and link.limit < 0:
            return at if holder.links[at + 1].kind == LinkKind.ITEM else None
    return None


def queue_name(links: Sequence[Link]) -> str:
    """The name of what the links lead to: an attribute or a variable."""
    return links[-1].name if links else "queue"


def queue_made_at(case: Case, name: str) -> Iterator[Place]:
    """Statements that bind the name to a queue that is made there."""
    for program in case.programs:
        for node in ast.walk(program.tree):
            if not isinstance(node, (ast.Assign, ast.AnnAssign)):
                continue
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            named = any(last_name(ast.unparse(target)) == name for target in targets)
            is_queue = node.value is not None and called_name(node.value) in _QUEUES
            place = program.place(node) if named and is_queue else None
            if place is not None:
                yield place


def bounded(name: str, items: int, place: Place | None, saving: Saving | None = None) -> Advice:
    """The advice to let what fills a queue wait, or to drop the oldest."""
    return Advice(
        "bound_queue",
        f"`{name}` has no bound, and is filled faster than it is emptied ({items} items were seen "
        f"in it): give it one (`maxsize={MOST_WAITING}`), so that what fills it waits, or drop the "
        "oldest when it is full.",
        place,
        saving=saving,
    )
