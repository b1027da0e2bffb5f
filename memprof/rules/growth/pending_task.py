"""pending-task: tasks of asyncio that never end, or timers, keep what they know."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from memprof.records import Holder
from memprof.reference_chain import VARIABLES, Link, LinkKind
from memprof.rules.case import Case
from memprof.rules.containers import filled_container
from memprof.rules.queues import queue_at
from memprof.rules.rule import Advice, Cause, GrowthRule
from memprof.source_code.program import Place, calls_in

__all__ = ["RULE"]

_TIMER = "TimerHandle"
"""The class of a timer in asyncio's event loops."""
_STARTING = ("call_later", "call_at")
"""Methods of a loop that begin one."""
_TAKING_OUT = {"list": "remove", "set": "discard"}
"""Methods of containers that a task may be told to call when it is done."""
_PUTTING_IN = ("add", "append")


@dataclass(frozen=True, slots=True, eq=False)
class PendingTask(Cause):
    """What the tasks run, the statement that begins one, and by which name it is known there."""

    coroutine: str
    place: Place | None
    name: str
    """Empty where nothing keeps the task."""
    is_timer: bool = False
    """They are timers of an event loop, which run a function when they are due."""
    container: str = ""
    """What keeps tasks that are done, as it is filled; empty of those that are not."""
    taken_by: str = ""
    """Its method that takes one out."""


class PendingTasks(GrowthRule[PendingTask]):
    """`asyncio.create_task(self.heartbeat(session))` for each session, and no `cancel()`."""

    name = "pending-task"
    summary = "tasks of asyncio that are never done, or kept when they are, keep what they know"
    fixes = ("release", "clear_container")
    precedes = (
        *("kept-graph", "small-view", "growing-container", "unbounded-dict", "assigned-history"),
        *("uncalled-release", "collected-models", "registered-callback", "collecting-object"),
        *("carried-state", "hook", "linked-objects"),
    )

    def match(self, case: Case) -> PendingTask | None:
        """A task or timer in a chain of references, and the call that begins it."""
        waits = any(queue_at(holder) is not None for holder in case.finding.holders)
        for holder in case.finding.holders:
            if waits and _is_of_one_task(holder):
                continue  # it is at work on one of those that wait in the queue
            if any(map(_is_task_that_is_done, holder.links, holder.links[1:])):
                return _done_tasks(case, holder)
            for link in holder.links:
                if link.kind == LinkKind.TASK and link.name:
                    start = next(_task_starts(case, link.name), None)
                    if start is not None:
                        return PendingTask(link.name, *start)
                    return PendingTask(link.name, case.place_of(holder), "")
            kinds = [link.type_name for link in holder.links]
            if _TIMER in kinds:
                run = kinds[kinds.index(_TIMER) + 1 :][:1]
                function = run[0].rpartition(".")[2] if run else ""
                return PendingTask(function, *_timer_start(case, function), is_timer=True)
        return None

    def advice(self, cause: PendingTask, case: Case) -> Iterator[Advice]:  # noqa: ARG002 - the task says all
        """End it with what it is for."""
        if cause.is_timer:
            how = f"`{cause.name}.cancel()`" if cause.name else "keep the handle and cancel it"
            yield Advice(
                "release",
                "Ever more timers wait until they are due, and each keeps what its function knows: "
                f"{how} when what it is for is done with.",
                cause.place,
            )
            return
        if cause.container:
            call = f"task.add_done_callback({cause.container}.{cause.taken_by})"
            yield Advice(
                "clear_container",
                f"`{cause.container}` keeps each task when it is done, and with it what its "
                "coroutine returned: take it out then.",
                cause.place,
                typed=call if cause.taken_by else "",
            )
            return
        how = (
            f"`{cause.name}.cancel()` when what it is for is done with"
            if cause.name
            else "keep the task and cancel it when what it is for is done with (`task.cancel()`)"
        )
        yield Advice(
            "release",
            f"Ever more tasks of `{cause.coroutine}()` wait and are never done, and each keeps "
            f"what its coroutine knows: {how}, or have the coroutine end by itself.",
            cause.place,
        )


def _is_task_that_is_done(above: Link, link: Link) -> bool:
    """Whether an item of a container is a task, or a future, that keeps a result."""
    return above.kind == LinkKind.ITEM and link.kind == LinkKind.TASK and not link.name


def _done_tasks(case: Case, holder: Holder) -> PendingTask | None:
    """Tasks that are done and kept, with the statement that puts them into their container."""
    at = next(at for at, link in enumerate(holder.links) if link.kind == LinkKind.TASK) - 1
    method = _TAKING_OUT.get(holder.links[at].type_name, "")
    filled = filled_container(case)
    if filled is not None:
        return PendingTask(
            "", filled.place, "", container=filled.filling.container, taken_by=method
        )
    name = holder.links[at - 1].name if at else ""
    for call, place in case.calls(*_PUTTING_IN):
        receiver = ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""
        if name and receiver.rpartition(".")[2] == name:
            return PendingTask("", place, "", container=receiver, taken_by=method)
    return None


def _is_of_one_task(holder: Holder) -> bool:
    """Whether names alone lead to a task, and from a variable of its coroutine to what it has."""
    kinds = [link.kind for link in holder.links]
    if LinkKind.TASK not in kinds or kinds[0] not in VARIABLES:
        return False
    lists = (one for one in holder.links if one.type_name != "tuple" and not one.is_record)
    return not any(one.length > 1 for one in lists)


def _timer_start(case: Case, function: str) -> tuple[Place | None, str]:
    """The statement that begins a timer of a function, and the name of its handle there.

    Of a function that has no name where it is handed over, the only one that begins any.
    """
    starts = [(call, place) for call, place in case.calls(*_STARTING)]
    own = [
        place
        for call, place in starts
        if any(ast.unparse(one).rpartition(".")[2] == function for one in call.args)
    ]
    if not own and len(starts) == 1:
        own = [starts[0][1]]
    if not own:
        return None, ""
    statement = own[0].statement
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return own[0], ast.unparse(targets[0]) if len(targets) == 1 else ""


def _task_starts(case: Case, coroutine: str) -> Iterator[tuple[Place, str]]:
    """Statements that call the coroutine's function without waiting for it, and bind the task."""
    for call, place in case.calls(coroutine):
        awaited = (
            inner
            for node in ast.walk(place.statement)
            if isinstance(node, ast.Await)
            for inner in calls_in(node)
        )
        if call not in awaited:
            statement = place.statement
            targets = statement.targets if isinstance(statement, ast.Assign) else []
            yield place, ast.unparse(targets[0]) if len(targets) == 1 else ""


RULE = PendingTasks()
