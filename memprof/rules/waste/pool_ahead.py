"""pool-ahead: a pool of threads runs ahead of what takes its results, and all of them wait."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

import numpy as np

from memprof.rules.case import Case
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.program import Place, Program, bound_names, called_name, calls_in
from memprof.source_code.scopes import nodes_around
from memprof.units import format_bytes
from memprof.views.peak_without import Cuts, Saving
from memprof.views.window import Bools, Ints, Window

__all__ = ["RULE"]

_POOL = "ThreadPoolExecutor"
_WORKERS = "concurrent/futures/thread.py"
_LEAST_SHARE = 0.2
"""Of the peak."""
_FEWEST = 8
"""Results that wait: fewer are a bound that somebody may have in mind."""
_FEWEST_STEPS = 4
"""In which they are taken: results that all go at once may be needed together."""
_AHEAD = 4
"""Results of a line that may wait, in what is promised."""
_COLLECTING = frozenset(("dict", "list", "set", "sorted", "tuple"))


class PoolAhead(WasteRule[Match]):
    """`for batch in pool.map(load, files):` beside a model that is slower than the disk."""

    name = "pool-ahead"
    summary = "a pool of threads runs ahead, and its results wait"
    fixes = ("bound_queue",)

    def matches(self, window: Window) -> Iterator[Match]:
        """Tensors that threads of a pool made long before they go, one after the other."""
        made = _made_by_pool(window)
        rows = np.flatnonzero(made & window.at_peak)
        nbytes = int(window.lives.size[rows].sum())
        if len(rows) < _FEWEST or window.share(nbytes) < _LEAST_SHARE:
            return
        if len(np.unique(window.freed_in[rows])) < _FEWEST_STEPS:
            return
        if not _handed_in(window.programs):
            return
        yield Match(
            row=int(rows[np.argmax(window.lives.size[rows])]),
            rows=rows,
            nbytes=nbytes,
            saving=_with_few_ahead(window, np.flatnonzero(made)),
        )

    def title(self, match: Match) -> str:  # noqa: ARG002 - every match reads the same
        """Say whose they are."""
        return "are results of a pool of threads that wait to be taken"

    def advice(self, match: Match, case: Case) -> Iterator[Advice]:
        """Hand in a few at a time."""
        places = _handed_in(case.programs)
        why = (
            f"All work is handed to the pool at once, and its threads run ahead: {len(match.rows)} "
            f"tensors ({format_bytes(match.nbytes)}) wait. Submit a few ahead of what is taken "
            "(from Python 3.14 on `map(…, buffersize=…)`)."
        )
        yield Advice("bound_queue", why, places[0] if len(places) == 1 else case.site)


def _made_by_pool(window: Window) -> Bools:
    """Per lifetime: whether a thread of a pool made it."""
    stacks, which = np.unique(window.lives.stack, return_inverse=True)
    of_pool = [
        any(
            frame.filename.replace("\\", "/").endswith(_WORKERS)
            for frame in window.trace.stack(row)
        )
        for row in stacks.tolist()
    ]
    made: Bools = np.array(of_pool, dtype=np.bool_)[which.reshape(-1)]
    return made


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
    pools = set(_pools(program.tree))
    for call in calls_in(program.tree, "map", "submit"):
        if not isinstance(call.func, ast.Attribute) or ast.unparse(call.func.value) not in pools:
            continue
        place = program.place(call)
        if place is not None and _is_at_once(call, nodes_around(place.statement, call)):
            yield place


def _is_at_once(call: ast.Call, around: list[ast.AST]) -> bool:
    """Whether ``map`` is gone through, or ``submit`` is called for all of a comprehension."""
    if called_name(call) == "submit":
        return any(isinstance(one, (ast.ListComp, ast.DictComp, ast.SetComp)) for one in around)
    parent = around[-1] if around else None
    return not (isinstance(parent, ast.Call) and called_name(parent) in _COLLECTING)


def _pools(tree: ast.AST) -> Iterator[str]:
    """The names of pools, as written: ``pool``, ``self.pool``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.withitem) and _makes_pool(node.context_expr):
            if node.optional_vars is not None:
                yield ast.unparse(node.optional_vars)
        elif isinstance(node, ast.Assign) and _makes_pool(node.value):
            yield from map(ast.unparse, bound_names(node))


def _makes_pool(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and called_name(value) == _POOL


RULE = PoolAhead()
