"""lbfgs-history: L-BFGS keeps a hundred pairs of vectors, each as long as all parameters."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.idioms import arguments_named, keyword, optimizers_made
from memprof.source_code.patch import diff, with_keyword
from memprof.source_code.program import Place, calls_in
from memprof.source_code.values import values_of
from memprof.trace import SURVIVOR_AGE, Category
from memprof.units import format_bytes
from memprof.views.window import Bools, Ints, Window

__all__ = ["RULE"]

_FILE = "/torch/optim/lbfgs.py"
_CLASS = "LBFGS"
_ENOUGH = 10
"""Pairs that are kept after the change, what SciPy's L-BFGS keeps by default."""
_PLACE = 7
"""Of ``history_size`` among the arguments."""
_LEAST_PAIRS = 15
"""Pairs at the peak: with fewer there is little to gain."""
_LEAST_SHARE = 0.2
"""Of the peak."""
_FEW_PAIRS, _DEFAULT = 40, 100
"""Where the program says how many: that many are meant; and more, up to the default, may be."""


@dataclass(frozen=True, slots=True, eq=False)
class History(Match):
    """Vectors of a history."""

    pairs: int = 0
    """Pairs at the peak."""


class LbfgsHistory(WasteRule[History]):
    """`torch.optim.LBFGS(model.parameters())`, whose ``history_size`` is 100 by default."""

    name = "lbfgs-history"
    summary = "L-BFGS keeps a long history of vectors as long as all parameters"
    fixes = ("history_size",)
    stands_beside = True
    accumulates = True

    def matches(self, window: Window) -> Iterator[History]:
        """Vectors of the optimizer's that outlive their steps, many of them at the peak."""
        if window.peak.event < 0:
            return
        kept = _of_history(window)
        there = np.flatnonzero(kept & window.at_peak)
        nbytes = int(window.lives.size[there].sum())
        if (
            not len(there)
            or _vectors(window, there) < 2 * _LEAST_PAIRS
            or window.share(nbytes) < _LEAST_SHARE
        ):
            return
        pairs = _vectors(window, there) // 2
        if pairs <= _FEW_PAIRS + 1 and _asks_for_few(window, _FEW_PAIRS):  # one more: it comes
            return
        rows, ends = _beyond(window, np.flatnonzero(kept))
        yield History(
            row=int(there[0]),
            rows=there,
            nbytes=nbytes,
            saving=window.replayed(window.ended_at(rows, ends)),
            pairs=pairs,
            tentative=_asks_for_few(window, _DEFAULT - 1),
        )

    def title(self, match: History) -> str:
        """Say how many there are."""
        return f"are {match.pairs} pairs of vectors that L-BFGS has kept of its steps"

    def advice(self, match: History, case: Case) -> Iterator[Advice]:
        """Keep fewer of them."""
        made = list(optimizers_made(case.programs, (_CLASS,)))
        call, place = made[0] if len(made) == 1 else (None, None)
        if call is None and not made:
            place = _made_by_call(case)
        size = keyword(call, "history_size") if call is not None else None
        if size is None and (call is None or _may_be_given(call)):
            place = next(_places_given(case), place or case.site)
        patch = ""
        if place is not None and call is not None and _may_be_set(call, size):
            patch = diff(place.program, with_keyword(call, "history_size", str(_ENOUGH)))
        enough = f"{_ENOUGH} are mostly enough"
        is_default = call is not None and size is None and not _may_be_given(call)
        why = (
            f"{format_bytes(match.nbytes)} are of earlier steps, two vectors of the length of all "
            f"parameters for each; "
        ) + (f"the default keeps 100 pairs, and {enough}." if is_default else f"{enough}.")
        yield Advice("history_size", why, place, patch=patch)


def _made_by_call(case: Case) -> Place | None:
    """Where the optimizer whose step ran is made by a call that does not name its class.

    ``optimizer = optimizers[name](parameters)``, and ``optimizer.step(closure)``.
    """
    for _, place in case.frames:
        for step in calls_in(place.statement, "step"):
            name = ast.unparse(step.func.value) if isinstance(step.func, ast.Attribute) else ""
            made = [one for one in values_of(place, name) if isinstance(one, ast.Call)]
            if len(made) == 1:
                return place.program.place(made[0])
    return None


def _asks_for_few(window: Window, most: int) -> bool:
    """Whether the program says how many pairs are kept, and never more than ``most``."""
    sizes = [
        size
        for call, _ in optimizers_made(window.programs, (_CLASS,))
        if (size := keyword(call, "history_size")) is not None
    ]
    written_out = [one.value for one in sizes if isinstance(one, ast.Constant)]
    few = [one for one in written_out if isinstance(one, int) and one <= most]
    return bool(sizes) and len(few) == len(written_out)


def _places_given(case: Case) -> Iterator[Place]:
    """Where calls of other functions, which hand it on, or dictionaries say a larger size."""
    for place, value in arguments_named(case.programs, "history_size"):
        size = value.value if isinstance(value, ast.Constant) else None
        if not isinstance(size, int) or size > _FEW_PAIRS:
            yield place


def _vectors(window: Window, rows: Ints) -> int:
    """How many are as long as the largest: numbers about each pair are kept beside them."""
    sizes = window.lives.requested[rows]
    return int((sizes == sizes.max()).sum())


def _may_be_given(call: ast.Call) -> bool:
    """Whether a call may give the size otherwise than by its name."""
    return (
        len(call.args) >= _PLACE
        or any(isinstance(one, ast.Starred) for one in call.args)
        or any(one.arg is None for one in call.keywords)
    )


def _may_be_set(call: ast.Call, size: ast.expr | None) -> bool:
    """Whether ``history_size`` may be written into a call: it is not given, or a larger number."""
    if _may_be_given(call):
        return False
    if size is None:
        return True
    return isinstance(size, ast.Constant) and isinstance(size.value, int) and size.value > _ENOUGH


def _of_history(window: Window) -> Bools:
    """Vectors that the optimizer's own code has made, and that stay for steps.

    Also what the last steps made by the same lines, which has had no time to.
    """
    made_by = np.array(
        [
            bool(stack) and stack[0].filename.replace("\\", "/").endswith(_FILE)
            for stack in map(window.trace.stack, range(len(window.trace.tables.stacks)))
        ]
    )
    stays = window.freed_in - window.made_in >= SURVIVOR_AGE
    states = made_by[window.lives.stack] & (window.category == Category.OPTIMIZER_STATE)
    of_history: Bools = states & stays
    lines = np.unique(window.lives.stack[of_history])
    late = window.made_in > window.steps[-1] - SURVIVOR_AGE if len(window.steps) else stays
    of_history |= states & late & np.isin(window.lives.stack, lines)
    return of_history


def _beyond(window: Window, rows: Ints) -> tuple[Ints, Ints]:
    """Those that are there longer than a short history would keep them, and until when it would."""
    lives = window.lives
    late: list[int] = []
    ends: list[int] = []
    for stack in np.unique(lives.stack[rows]).tolist():
        of_stack = rows[lives.stack[rows] == stack]
        in_order = of_stack[np.argsort(lives.alloc[of_stack])]
        late += in_order[:-_ENOUGH].tolist()
        ends += lives.alloc[in_order[_ENOUGH:]].tolist()
    at, until = np.array(late, dtype=np.int64), np.array(ends, dtype=np.int64)
    longer = lives.free[at] > until
    return at[longer], until[longer]


RULE = LbfgsHistory()
