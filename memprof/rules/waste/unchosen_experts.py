"""unchosen-experts: every expert computes every row, and a few of them are used for each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.lifespan import FEWEST_STEPS
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.chosen_modules import ChosenModules, chosen_modules
from memprof.trace import Phase
from memprof.units import format_bytes
from memprof.views.stacks import made_at_lines, made_by_lines
from memprof.views.window import Ints, Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.15
"""Of the peak, that experts make which are not chosen."""
_SCORES = 4
"""Tensors before the choice of which one has the scores: softmax, say, returns the last."""
_FEWEST = 3
"""Experts: of two one is half."""


@dataclass(frozen=True, slots=True, eq=False)
class Unchosen(Match):
    """How many there are, and how many are used."""

    modules: ChosenModules | None = None
    experts: int = 0
    used: int = 0


class UnchosenExperts(WasteRule[Unchosen]):
    """A mixture of experts that computes all of them and takes the best two of each token."""

    name = "unchosen-experts"
    summary = "every expert computes every row, and a few of them are used for each"
    fixes = ("route_rows",)

    def matches(self, window: Window) -> Iterator[Unchosen]:
        """What experts made that are all called with the same, as large each as the others."""
        if len(window.steps) < FEWEST_STEPS:
            return
        for program in window.programs:
            for modules in chosen_modules(program):
                match = _match(window, modules)
                if match is not None:
                    yield match

    def title(self, match: Unchosen) -> str:
        """Say how many are used."""
        return (
            f"are what all {match.experts} experts make of each row, of which "
            f"{match.used} {'is' if match.used == 1 else 'are'} used"
        )

    def advice(self, match: Unchosen, case: Case) -> Iterator[Advice]:
        """Give each the rows that are routed to it."""
        assert match.modules is not None
        given, at = match.modules.given, match.modules.call
        why = (
            f"All {match.experts} of `{match.modules.modules}` are called with the whole "
            f"`{given}` ({format_bytes(match.nbytes)}), and {match.used} of them are used for each "
            f"row (line {match.modules.choice.line}): call each with the rows that chose it, and "
            "add the results at their places."
        )
        place = case.place_at(at.program.filename, at.line)
        yield Advice("route_rows", why, place, remains=match.used / match.experts)


def _match(window: Window, modules: ChosenModules) -> Unchosen | None:
    made = made_by_lines(window, modules.call.program.filename, modules.call.lines)
    made &= (window.phase == Phase.FORWARD) & (window.made_in >= 0) & ~window.has_owner
    rows = np.flatnonzero(made)
    if not len(rows):
        return None
    attribute = re.escape(modules.modules.rpartition(".")[2])
    of_list = re.compile(rf"^(.*?)\.{attribute}\.(\d+)(?:\.|$)")
    found = [of_list.match(name) for name in window.owners.module.names]
    layers = sorted({one[1] for one in found if one})
    layer = np.array([layers.index(one[1]) if one else -1 for one in found])
    expert = np.array([int(one[2]) if one else -1 for one in found])
    of_experts = rows[layer[window.module[rows]] >= 0]
    if not len(of_experts):
        return None
    module = window.module[of_experts]
    number = _alike(window, of_experts, layer[module], expert[module])
    used = _used(window, modules, number) if number else 0
    there = rows[window.at_peak[rows]]
    nbytes = int(window.lives.size[there].sum())
    if not 0 < used < number or window.share(nbytes * (1 - used / number)) < _LEAST_SHARE:
        return None
    mask = np.zeros(len(window.lives), dtype=bool)
    mask[there] = True
    return Unchosen(
        row=window.main_site(mask),
        rows=there,
        nbytes=nbytes,
        saving=window.replayed(window.whole(np.union1d(rows, _gradients(window, rows, layers)))),
        modules=modules,
        experts=number,
        used=used,
    )


def _gradients(window: Window, rows: Ints, layers: list[str]) -> Ints:
    """What a backward pass makes as large as what the layers join of what all experts made."""
    names = window.owners.module.names
    of_layers = np.array([name in layers for name in names])[window.module]
    joined = window.lives.requested[rows[of_layers[rows]]]
    backward = of_layers & (window.phase == Phase.BACKWARD) & (window.made_in >= 0)
    return np.flatnonzero(backward & np.isin(window.lives.requested, joined))


def _alike(window: Window, rows: Ints, layer: Ints, expert: Ints) -> int:
    """How many experts a layer has, each of which makes as much in each step; 0 where not so."""
    key = np.stack([window.made_in[rows], layer, expert])
    keys, group = np.unique(key, axis=1, return_inverse=True)
    nbytes = np.bincount(group.reshape(-1), weights=window.lives.requested[rows])
    # A window may begin or end amid a step.
    whole = (keys[0] > keys[0].min()) & (keys[0] < keys[0].max())
    passes, of_pass = np.unique(keys[:2, whole], axis=1, return_inverse=True)
    numbers = np.bincount(of_pass.reshape(-1), minlength=passes.shape[1])
    least = np.full(passes.shape[1], np.inf)
    most = np.zeros(passes.shape[1])
    np.minimum.at(least, of_pass.reshape(-1), nbytes[whole])
    np.maximum.at(most, of_pass.reshape(-1), nbytes[whole])
    if not len(numbers) or (least != most).any() or numbers.min() != numbers.max():
        return 0
    return int(numbers[0]) if numbers[0] >= _FEWEST else 0


def _used(window: Window, modules: ChosenModules, experts: int) -> int:
    """How many of a layer's experts are chosen for each row; 0 where that is not known.

    What is chosen has as many values as that, where scores had one for each expert.
    """
    if modules.chooses_one:
        return 1
    lives = window.lives
    by_choice = made_at_lines(window, modules.choice.program.filename, modules.choice.lines)
    made = np.flatnonzero(by_choice & (window.made_in >= 0) & (window.phase == Phase.FORWARD))
    if not len(made):
        return 0
    # Beside them are their places, which are wider; a window may end between both.
    values = int(made[-2:][np.argmin(lives.requested[made[-2:]])])
    before = (window.made_in == window.made_in[values]) & (lives.alloc < lives.alloc[values])
    scores = np.flatnonzero(before & (window.phase == Phase.FORWARD))
    for row in scores[np.argsort(-lives.alloc[scores])][:_SCORES].tolist():
        used = lives.requested[values] * experts / max(1, lives.requested[row])
        if used == int(used) and 0 < used < experts:
            return int(used)
    return 0


RULE = UnchosenExperts()
