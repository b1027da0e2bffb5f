"""repeated-parametrization: a weight is computed anew, and saved, at each use within a pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.program import Place, place_of
from memprof.trace import Category, Frame
from memprof.units import format_bytes
from memprof.views.stacks import made_through
from memprof.views.window import Bools, Ints, Window

__all__ = ["RULE"]

_FILE = "/torch/nn/utils/parametrize.py"
_OF_HOOKS = ("/torch/nn/utils/weight_norm.py", "/torch/nn/utils/spectral_norm.py")
"""The older functions of the same names, which no cache is for."""
_FEWEST = 3
"""Of one weight at the peak: a model that is called for two inputs has two."""


@dataclass(frozen=True, slots=True, eq=False)
class RepeatedParametrization(Match):
    """Weights that a pass computed again, and where the program calls the model."""

    times: int = 0
    """The most of one weight that are there at once."""
    by_hooks: bool = False
    place: Place | None = None


class RepeatedParametrizationRule(WasteRule[RepeatedParametrization]):
    """`weight_norm` on the layers of a cell that a loop over time calls."""

    name = "repeated-parametrization"
    summary = "a parametrized weight is computed, and saved, at each use"
    fixes = ("cached_parametrization",)
    yields_to = ("copy-of-model",)

    def matches(self, window: Window) -> Iterator[RepeatedParametrization]:
        """What parametrizations made and graphs save, beyond the first of each weight and step."""
        lives = window.lives
        made = made_through(window, _is_parametrization) & ~window.has_owner
        made &= window.category == Category.ACTIVATION
        rows = np.flatnonzero(made)
        again = rows[_is_repeated(window, rows)]
        there = again[window.at_peak[again]]
        if not len(there):
            return
        row = int(there[np.argmax(lives.size[there])])
        of_one = (window.module == window.module[row]) & (lives.size == lives.size[row])
        times = int(np.count_nonzero(made & of_one & window.at_peak))
        if times < _FEWEST:
            return
        yield RepeatedParametrization(
            row=row,
            rows=there,
            nbytes=int(lives.size[there].sum()),
            saving=window.replayed(window.whole(again)),
            times=times,
            by_hooks=not any(one.filename.endswith(_FILE) for one in window.stack(row)),
            place=_call_of_model(window.user_frames(window.stack(row))),
        )

    def title(self, match: RepeatedParametrization) -> str:
        """Say how often one is there."""
        return f"are weights that are computed anew at each use, {match.times} of one at once"

    def advice(self, match: RepeatedParametrization, case: Case) -> Iterator[Advice]:
        """Compute each weight once in a step."""
        at = match.place
        place = case.place_at(at.program.filename, at.line) if at is not None else None
        first = (
            "Make them with the functions in `torch.nn.utils.parametrizations`, and write"
            if match.by_hooks
            else "Write"
        )
        yield Advice(
            "cached_parametrization",
            f"{format_bytes(match.nbytes)} are the same weights, computed again at each use and "
            f"saved each time. {first} `with torch.nn.utils.parametrize.cached():` around the "
            "call: then one of each is there.",
            place or case.site,
        )


def _is_parametrization(frame: Frame) -> bool:
    return frame.filename.endswith((_FILE, *_OF_HOOKS))


def _is_repeated(window: Window, rows: Ints) -> Bools:
    """Whether each row is not the first of its module, size and step."""
    keys = np.stack((window.module[rows], window.lives.size[rows], window.made_in[rows]), axis=1)
    order = np.argsort(window.lives.alloc[rows], kind="stable")
    _, first = np.unique(keys[order], axis=0, return_index=True)
    is_repeated = np.ones(len(rows), dtype=bool)
    is_repeated[order[first]] = False
    return is_repeated


def _call_of_model(frames: list[Frame]) -> Place | None:
    """The statement of the program that calls the outermost ``forward`` of a stack."""
    inside = [at for at, one in enumerate(frames) if one.name.rpartition(".")[2] == "forward"]
    if not inside or inside[-1] + 1 >= len(frames):
        return None
    return place_of(frames[inside[-1] + 1])


RULE = RepeatedParametrizationRule()
