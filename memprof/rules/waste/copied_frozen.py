"""copied-frozen: copies of a model's parameters have those that nothing trains as well."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.lifespan import FEWEST_STEPS
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.rules.waste.copy_of_model import are_copies
from memprof.source_code.copied_parameters import Copied, copied_parameters, keeps_in_step
from memprof.source_code.program import place_of
from memprof.trace import Category
from memprof.units import format_bytes
from memprof.views.window import Bools, Ints, Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.1
"""Of the peak, in copies of what is frozen."""


@dataclass(frozen=True, slots=True, eq=False)
class FrozenCopies(Match):
    """How much is copied in all."""

    copied: int = 0
    """Bytes."""
    by: Copied = Copied.PARAMETERS
    """What the statement copies."""


class CopiedFrozen(WasteRule[FrozenCopies]):
    """`[p.detach().clone() for p in model.parameters()]` of a model with a frozen part."""

    name = "copied-frozen"
    summary = "an average or a snapshot of a model has copies of parameters that nothing trains"
    fixes = ("copy_trained",)

    def matches(self, window: Window) -> Iterator[FrozenCopies]:
        """Copies of all parameters, by a statement that goes through them without a condition."""
        if len(window.steps) < FEWEST_STEPS or window.peak.event < 0:
            return
        for site in window.large_sites(window.at_peak, _LEAST_SHARE):
            copies = window.at_peak & (window.site == site)
            # A validation with the average may have put the copies into the model.
            parameters = window.at_peak & (window.category == Category.PARAMETER) & ~copies
            every = Counter(window.lives.requested[parameters].tolist())
            own = Counter(window.lives.requested[copies].tolist())
            is_whole = bool(every) and are_copies(own, every)
            copied = _copied(window, window.largest(copies)) if is_whole else None
            if copied is None:
                continue
            frozen = _frozen(window, parameters)
            rows = _alike(window, window.site == site, every, frozen)
            if copied is Copied.MODULE:  # it may be what is trained
                rows = rows[~np.isin(window.module[rows], _trained(window))]
            there = rows[window.at_peak[rows]]
            nbytes = int(window.lives.size[there].sum())
            if window.share(nbytes) < _LEAST_SHARE or len(there) == sum(own.values()):
                continue
            yield FrozenCopies(
                row=int(there[window.lives.size[there].argmax()]),
                rows=there,
                nbytes=nbytes,
                saving=window.replayed(window.whole(rows)),
                copied=window.bytes_of(copies),
                by=copied,
            )
            return

    def title(self, match: FrozenCopies) -> str:  # noqa: ARG002 - every match reads the same
        """Say of what they are copies."""
        return "are copies of parameters that nothing trains"

    def advice(self, match: FrozenCopies, case: Case) -> Iterator[Advice]:
        """Copy what is trained."""
        why = (
            f"{format_bytes(match.nbytes)} of the {format_bytes(match.copied)} that are copied are "
            "of frozen parameters, which stay as they are: "
        )
        if match.by is Copied.LIBRARY:
            why += "hand those with `requires_grad` to the average alone, in each of its methods."
            yield Advice("copy_trained", why, case.site, typed="if p.requires_grad")
            return
        if match.by is Copied.PARAMETERS:
            why += "copy those with `requires_grad` alone."
            yield Advice("copy_trained", why, case.site, typed="if p.requires_grad")
            return
        why += {
            Copied.AVERAGE: (
                "average what is trained alone (`AveragedModel(model.part)`), or have the copy "
                "share the rest with the model."
            ),
            Copied.MODULE: (
                "have the copy share these with the model (`copied.part = model.part`), and change "
                "what is trained alone."
            ),
            Copied.STATE: (
                "copy the rest of the state alone (`frozen = {n for n, p in "
                "model.named_parameters() if not p.requires_grad}`), and load it with "
                "`strict=False`."
            ),
        }[match.by]
        yield Advice("copy_trained", why, case.site)


def _copied(window: Window, row: int) -> Copied | None:
    """What the statement that made a tensor copies; None for other statements.

    A copy by `deepcopy` counts where the program keeps a module in step with another.
    """
    frame = window.frame_of(row)
    frames = window.user_frames(window.stack(row))
    places = [place_of(one) for one in frames[frames.index(frame) if frame in frames else 0 :]]
    if not places or places[0] is None:
        return None
    copied = copied_parameters(places[0], [one for one in places[1:] if one is not None])
    if copied is Copied.MODULE and not keeps_in_step(window.programs):
        return None
    return copied


def _trained(window: Window) -> Ints:
    """The modules that have gradients or states."""
    of_training = np.isin(window.category, (Category.GRADIENT, Category.OPTIMIZER_STATE))
    return np.unique(window.module[of_training & (window.module > 0)])


def _frozen(window: Window, parameters: Bools) -> Ints:
    """Those of modules that have neither gradients nor states, where others do; else none."""
    is_trained = np.isin(window.module, _trained(window))
    frozen = np.flatnonzero(parameters & ~is_trained)
    return frozen if (parameters & is_trained).any() else frozen[:0]


def _alike(window: Window, copies: Bools, every: Counter[int], frozen: Ints) -> Ints:
    """The copies of frozen parameters, by their sizes.

    Of so many copies of a size as a model has parameters of it, as many as are frozen there.
    """
    requested = window.lives.requested
    of_frozen = Counter(requested[frozen].tolist())
    place: Counter[int] = Counter()
    rows: list[int] = []
    for row in np.flatnonzero(copies).tolist():
        size = int(requested[row])
        if size not in every:
            continue
        if place[size] % every[size] < of_frozen[size]:
            rows.append(row)
        place[size] += 1
    return np.array(rows, dtype=np.int64)


RULE = CopiedFrozen()
