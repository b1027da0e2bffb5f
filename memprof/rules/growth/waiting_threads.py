"""waiting-threads: ever more threads wait for more to do, and keep their variables."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from memprof.reference_chain import Link, LinkKind
from memprof.rules.case import Case
from memprof.rules.rule import Advice, Cause, GrowthRule
from memprof.source_code.idioms import keyword
from memprof.source_code.program import Place, arguments

__all__ = ["RULE"]

_FEWEST = 2
"""Threads that each hold what one line made: one thread holds what it works with."""
_OF_OBJECT = "run"
"""The method of a thread that is a class of the program's own."""
_STARTING = ("Thread", "submit", "start_new_thread")
_OF_THREADS = "_localdummy"
"""By which each thread has an entry in what a `threading.local` keeps; it goes with the thread."""
_POOLS = ("ThreadPoolExecutor", "ThreadPool")


@dataclass(frozen=True, slots=True, eq=False)
class WaitingThread(Cause):
    """What the threads run, and the statement that makes one."""

    function: str
    place: Place | None
    is_of_local: bool = False
    """They hold it by their variables of a `threading.local`, and what they run is not known."""


class WaitingThreads(GrowthRule[WaitingThread]):
    """`threading.Thread(target=self._loop)` for each shard, and nothing that ends its loop."""

    name = "waiting-threads"
    summary = "ever more threads that are never done keep what their functions know"
    fixes = ("release",)
    precedes = ("kept-attribute", "kept-graph", "small-view", "growing-container")

    def match(self, case: Case) -> WaitingThread | None:
        """Several threads, by the same variable of the same function."""
        ways: dict[tuple[str, str], set[str]] = {}
        places: dict[tuple[str, str], Place | None] = {}
        for holder in case.finding.holders:
            links = holder.links
            at = next((at for at, link in enumerate(links) if link.kind == LinkKind.THREAD), -1)
            # It is the tensor: what a list of one of a few threads has may become more as well.
            variable = links[at + 1] if at >= 0 and len(links) == at + 2 else None
            if variable is not None and variable.kind == LinkKind.LOCAL:
                way = variable.name, variable.type_name
                ways.setdefault(way, set()).add(links[at].name)
                places[way] = case.place_at(variable.filename, variable.line)
        for way, threads in ways.items():
            if len(threads) >= _FEWEST:
                name = way[1].rpartition(".")[2]
                made = next(_starts(case, name), None) or _made_at(case, places[way], name)
                return WaitingThread(name, made)
        if any(_is_entry_of_thread(holder.links) for holder in case.finding.holders):
            made = _made_for(case)
            return WaitingThread("", made, is_of_local=True) if made is not None else None
        return None

    def advice(self, cause: WaitingThread, case: Case) -> Iterator[Advice]:  # noqa: ARG002 - the threads say all
        """End each, or have one for all."""
        if cause.is_of_local:
            yield Advice(
                "release",
                "Each thread that lives has variables of its own in a `threading.local`, and ever "
                "more live: end those whose work is done (`shutdown()` of a pool, or `with` around "
                "it), or have one pool for all.",
                cause.place,
            )
            return
        yield Advice(
            "release",
            f"Ever more threads run `{cause.function}` and are never done, and each keeps its "
            "variables: tell each to end when its work is done (a last item that it stops at, "
            "then `join()`), or have one thread for all.",
            cause.place,
        )


def _is_entry_of_thread(links: Sequence[Link]) -> bool:
    """Whether the tensor is what one of several threads has in a variable of a `threading.local`.

    What is in a list there may become more in one thread as well.
    """
    entry = links[-2] if len(links) > 1 else None
    return (
        entry is not None
        and entry.kind == LinkKind.ITEM
        and _OF_THREADS in entry.name
        and entry.length >= _FEWEST
    )


def _made_for(case: Case) -> Place | None:
    """The statement that makes threads: one that hands over what made the tensors comes first.

    ``ThreadPoolExecutor(4, initializer=prepare)``, where ``prepare`` was running.
    """
    running = {place.function.name for _, place in case.frames if place.function is not None}
    calls = [(call, place) for name in (*_POOLS, *_STARTING) for call, place in case.calls(name)]
    calls.sort(key=lambda one: running.isdisjoint(map(_last_name, arguments(one[0]))))
    return next((place for _, place in calls), None)


def _last_name(argument: ast.expr) -> str:
    return argument.id if isinstance(argument, ast.Name) else getattr(argument, "attr", "")


def _starts(case: Case, function: str) -> Iterator[Place]:
    """Statements that have a thread run the function."""
    for call, place in case.calls(*_STARTING):
        target = keyword(call, "target") or next(iter(call.args), None)
        last = target.attr if isinstance(target, ast.Attribute) else ""
        if function in (last, target.id if isinstance(target, ast.Name) else ""):
            yield place


def _made_at(case: Case, place: Place | None, function: str) -> Place | None:
    """The statement that makes an object of the program's own class of threads, by its ``run``.

    By the place of a variable of that.
    """
    class_ = place.class_ if place is not None and function == _OF_OBJECT else None
    if class_ is None:
        return None
    return next((at for _, at in case.calls(class_.name) if at.class_ is not class_), None)


RULE = WaitingThreads()
