"""pool-ahead: a pool's results wait to be taken, or the items of its work to be worked on."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.idioms import keyword
from memprof.source_code.program import Place, Program, bound_names, called_name, calls_in
from memprof.source_code.scopes import nodes_around
from memprof.trace import Frame
from memprof.units import format_bytes
from memprof.views.peak_without import Cuts, Saving
from memprof.views.window import Bools, Ints, Window

__all__ = ["RULE", "fewest_items"]

_POOL = "ThreadPoolExecutor"
_POOLS = frozenset((_POOL, "Pool", "ThreadPool"))
"""Classes of pools: of threads, where a thread of this process makes the tensors."""
_WORKERS = ("concurrent/futures/thread.py", "multiprocessing/pool.py")
_GOING_THROUGH = ("imap", "imap_unordered", "map")
_SUBMITTING = ("apply_async", "submit")
_WAITING = frozenset(
    (
        *("acquire", "as_completed", "get", "next", "pop", "popleft", "put", "result", "sleep"),
        *("wait",),
    )
)
"""Calls beside which work is handed in as results are taken."""
_RESULTS = ("get", "result")
_KEEPING = frozenset(("add", "append", "extend", "insert", "put", "setdefault", "update"))
_MAP = ("Executor.map", "concurrent/futures/_base.py")
"""The function that goes through all items of its work before it returns."""
_TAKING = "result_iterator"
"""A function in it, which runs when a result is taken."""
_MOST_WORKERS = 32
"""Of a pool for which nothing else is said: ``min(32, cpu_count + 4)``."""
_LEAST_SHARE = 0.2
"""Of the peak."""
_FEWEST = 8
"""Results that wait: fewer are a bound that somebody may have in mind."""
_FEWEST_STEPS = 4
"""In which they are taken: results that all go at once may be needed together."""
_AHEAD = 4
"""Results of a line that may wait, in what is promised."""
_COLLECTING = frozenset(("dict", "list", "set", "sorted", "tuple"))


@dataclass(frozen=True, slots=True, eq=False)
class Waiting(Match):
    """What waits: results, or the items of the work."""

    are_items: bool = False
    """The call that hands in the work made them, going through a generator."""
    are_kept: bool = False
    """Their futures keep them after they were taken."""


class PoolAhead(WasteRule[Waiting]):
    """`for batch in pool.map(load, files):` beside a model that is slower than the disk."""

    name = "pool-ahead"
    summary = "a pool's results, or the items of its work, wait"
    fixes = ("bound_queue",)

    def matches(self, window: Window) -> Iterator[Waiting]:
        """Tensors that a pool's threads, or `map`, made long before they go, one by one."""
        if _handed_in(window.programs):
            waiting = list(_waiting(window, _is_of_worker, _FEWEST, are_items=False))
            yield from waiting or _kept(window)
        least = fewest_items(window.programs)
        yield from _waiting(window, _is_of_map, least, are_items=True)

    def title(self, match: Waiting) -> str:
        """Say whose they are."""
        if match.are_items:
            return "are items that a pool's `map` took from their generator all at once"
        if match.are_kept:
            return "are results of a pool of threads that their futures keep"
        return "are results of a pool of threads that wait to be taken"

    def advice(self, match: Waiting, case: Case) -> Iterator[Advice]:
        """Hand in a few at a time."""
        if match.are_items:
            why = (
                f"`map` goes through its generator before the first result: {len(match.rows)} "
                f"tensors ({format_bytes(match.nbytes)}) wait for a worker. Hand over what is "
                "small, such as their numbers or names, and load them within the function. Or "
                "submit a few ahead (from Python 3.14 on `map(…, buffersize=…)`)."
            )
            yield Advice("bound_queue", why, _place_of_map(case) or case.site)
            return
        places = _handed_in(case.programs)
        why = (
            f"All work is handed to the pool at once, and its threads run ahead: {len(match.rows)} "
            f"tensors ({format_bytes(match.nbytes)}) wait. Submit a few ahead of what is taken "
            "(from Python 3.14 on `map(…, buffersize=…)`)."
        )
        if match.are_kept:
            why += " And let go of each future when its result was taken: it keeps that."
        yield Advice("bound_queue", why, places[0] if len(places) == 1 else case.site)


def _waiting(
    window: Window, is_maker: Callable[[Frame], bool], fewest: int, *, are_items: bool
) -> Iterator[Waiting]:
    """Tensors of the peak that a frame of that kind made, if they go one after the other."""
    made = _made_by(window, is_maker)
    rows = _of_one_line_each(window, np.flatnonzero(made & window.at_peak), fewest)
    nbytes = int(window.lives.size[rows].sum())
    if not len(rows) or window.share(nbytes) < _LEAST_SHARE:
        return
    if len(np.unique(window.freed_in[rows])) < _FEWEST_STEPS:
        return
    yield Waiting(
        row=int(rows[np.argmax(window.lives.size[rows])]),
        rows=rows,
        nbytes=nbytes,
        saving=_with_few_ahead(window, np.flatnonzero(made)),
        are_items=are_items,
    )


def _of_one_line_each(window: Window, rows: Ints, fewest: int) -> Ints:
    """Those that a line has made so many of: of what a call is working with each thread has one."""
    sites, counts = np.unique(window.site[rows], return_counts=True)
    return rows[np.isin(window.site[rows], sites[counts >= fewest])]


def _kept(window: Window) -> Iterator[Waiting]:
    """Results at the peak that nothing needs any more, as they were taken in a loop each."""
    made = np.flatnonzero(_made_by(window, _is_of_worker) & window.at_peak)
    rows = _of_one_line_each(window, made, _FEWEST)
    nbytes = int(window.lives.size[rows].sum())
    is_much = len(rows) > 0 and window.share(nbytes) >= _LEAST_SHARE
    if not is_much or not _are_taken_singly(window):
        return
    later = [rows[window.site[rows] == site][_AHEAD:] for site in np.unique(window.site[rows])]
    yield Waiting(
        row=int(rows[np.argmax(window.lives.size[rows])]),
        rows=rows,
        nbytes=nbytes,
        saving=window.replayed(window.whole(np.concatenate(later))),
        are_kept=True,
    )


def _made_by(window: Window, is_maker: Callable[[Frame], bool]) -> Bools:
    """Per lifetime: whether such a frame is in its stack."""
    stacks, which = np.unique(window.lives.stack, return_inverse=True)
    by_stack = [any(map(is_maker, window.trace.stack(row))) for row in stacks.tolist()]
    made: Bools = np.array(by_stack, dtype=np.bool_)[which.reshape(-1)]
    return made


def _is_of_worker(frame: Frame) -> bool:
    """Whether a thread of a pool runs here."""
    return frame.filename.replace("\\", "/").endswith(_WORKERS)


def _is_of_map(frame: Frame) -> bool:
    """Whether a pool's `map` goes through its items here."""
    function, path = _MAP
    is_library = frame.filename.replace("\\", "/").endswith(path)
    # Python 3.10 knows functions by their last name alone.
    is_map = frame.name.startswith(function) or frame.name in ("map", "<listcomp>")
    return is_library and is_map and not frame.name.endswith(_TAKING)


def _place_of_map(case: Case) -> Place | None:
    """The program's statement that calls `map`."""
    stack = case.finding.stack
    last = max((at for at, frame in enumerate(stack) if _is_of_map(frame)), default=len(stack))
    places = (case.place_at(frame.filename, frame.line) for frame in stack[last + 1 :])
    return next((place for place in places if place is not None), None)


def fewest_items(programs: Iterable[Program]) -> int:
    """More items than are worked on at a time in any pool of the program, and as many again."""
    calls = [call for one in programs for call in calls_in(one.tree) if _makes_pool(call)]
    sizes = [
        keyword(call, "max_workers") or (call.args[0] if call.args else None) for call in calls
    ]
    numbers = [
        2 * one.value
        if isinstance(one, ast.Constant) and isinstance(one.value, int)
        else _MOST_WORKERS
        for one in sizes
    ]
    return max(_FEWEST, *numbers) if numbers else _MOST_WORKERS


def _with_few_ahead(window: Window, rows: Ints) -> Saving:
    """The peak if each result came when only a few of its line were there before it."""
    lives = window.lives
    kept_rows, end = [], []
    for site in np.unique(window.site[rows]).tolist():
        here = rows[window.site[rows] == site]
        here = here[np.argsort(lives.free[here], kind="stable")]
        kept_rows.append(here[_AHEAD:])
        end.append(np.maximum(lives.alloc[here[_AHEAD:]], lives.free[here[:-_AHEAD]]))
    late = np.concatenate(kept_rows)
    return window.replayed(Cuts(late, lives.alloc[late], np.concatenate(end)))


def _handed_in(programs: Iterable[Program]) -> list[Place]:
    """The statements that hand many calls to a pool at once, and do not collect all results."""
    return [place for program in programs for place in _at_once(program)]


def _at_once(program: Program) -> Iterator[Place]:
    pools = set(_pools(program))
    submitting: dict[tuple[int, str], list[tuple[Place, bool]]] = defaultdict(list)
    for call in calls_in(program.tree, *_GOING_THROUGH, *_SUBMITTING):
        place = program.place(call)
        if place is None or not isinstance(call.func, ast.Attribute):
            continue
        pool = ast.unparse(call.func.value)
        if called_name(call) in _SUBMITTING:
            around = nodes_around(place.statement, call)
            is_at_once = _is_in_comprehension(around) or _fills_in_loop(place)
            submitting[id(next(iter(place.around), None)), pool].append((place, is_at_once))
        elif pool in pools and not _is_collected(place, call):
            yield place
    for calls in submitting.values():
        if all(is_at_once for _, is_at_once in calls):  # else more comes as results are taken
            yield from (place for place, _ in calls)


def _is_collected(place: Place, call: ast.Call) -> bool:
    around = nodes_around(place.statement, call)
    parent = around[-1] if around else None
    return isinstance(parent, ast.Call) and called_name(parent) in _COLLECTING


def _is_in_comprehension(around: list[ast.AST]) -> bool:
    return any(isinstance(one, (ast.ListComp, ast.DictComp, ast.SetComp)) for one in around)


def _fills_in_loop(place: Place) -> bool:
    """Whether a loop hands in work, and takes no result nor waits for anything meanwhile."""
    loop = place.loop
    return isinstance(loop, ast.For) and not any(
        called_name(call) in _WAITING for statement in loop.body for call in calls_in(statement)
    )


def _are_taken_singly(window: Window) -> bool:
    """Whether each loop that asks futures for their results, and ran, keeps none of them."""
    lines = {(frame.filename, frame.line) for frame in window.trace.tables.frames}
    loops = [
        (loop, call)
        for program in window.programs
        for loop in program.nodes
        if isinstance(loop, ast.For)
        and any((program.filename, line) in lines for line in _lines(loop))
        for call in calls_in(loop, *_RESULTS)
        if isinstance(call.func, ast.Attribute)
        and ast.unparse(call.func.value) in map(ast.unparse, bound_names(loop))
    ]
    return bool(loops) and not any(_keeps(loop, call) for loop, call in loops)


def _lines(node: ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _keeps(loop: ast.For, call: ast.Call) -> bool:
    """Whether a result goes into a container or an attribute, or it is not known what it is for."""
    around = nodes_around(loop, call)
    statement = next(node for node in around[::-1] if isinstance(node, ast.stmt))
    is_kept = any(called_name(one) in _KEEPING for one in around)
    if is_kept or not isinstance(statement, (ast.Assign, ast.AugAssign, ast.Expr)):
        return True
    targets = bound_names(statement)
    names = {one.id for one in targets if isinstance(one, ast.Name)}
    is_result = isinstance(statement, ast.Assign) and statement.value is call
    if not is_result:  # what is computed of it
        return False
    return len(names) < len(targets) or any(
        isinstance(one, ast.Name) and one.id in names
        for node in ast.walk(loop)
        for one in _stored(node)
    )


def _stored(node: ast.AST) -> list[ast.expr]:
    """What a node puts into a container or an attribute as it is."""
    if isinstance(node, ast.Call) and called_name(node) in _KEEPING:
        return [part for one in node.args for part in getattr(one, "elts", [one])]
    if isinstance(node, ast.Assign) and not all(isinstance(one, ast.Name) for one in node.targets):
        return [node.value]
    return []


def _pools(program: Program) -> Iterator[str]:
    """The names of pools, as written: ``pool``, ``self.pool``."""
    for node in program.nodes:
        if isinstance(node, ast.withitem) and _makes_pool(node.context_expr, _POOLS):
            if node.optional_vars is not None:
                yield ast.unparse(node.optional_vars)
        elif isinstance(node, ast.Assign) and _makes_pool(node.value, _POOLS):
            yield from map(ast.unparse, bound_names(node))


def _makes_pool(value: ast.expr, names: Collection[str] = (_POOL,)) -> bool:
    return isinstance(value, ast.Call) and called_name(value) in names


RULE = PoolAhead()
