"""kept-distributions: a container keeps distributions and what is computed of their numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from memprof.records import Finding, Holder
from memprof.reference_chain import LinkKind, largest_container
from memprof.rules.case import Case
from memprof.rules.finding import Kind
from memprof.rules.held_at_peak import HeldAtPeak, last_searches
from memprof.rules.rule import Advice
from memprof.rules.run_rule import RunRule
from memprof.rules.same_memory import ANY_GROWTH, Overlap
from memprof.source_code.idioms import attribute_set
from memprof.source_code.program import bound_names, source_of
from memprof.trace import EMPTY, Frame, Tables
from memprof.units import format_bytes, format_percent
from memprof.views.examination import DeviceExamination, Examination
from memprof.views.window import Window

__all__ = ["RULE"]

_CLASS = "DiagonalGaussianDistribution"
_CONSTRUCTOR = f"{_CLASS}.__init__"
_COMPUTED = ("logvar", "std", "var")
"""Attributes of diffusers' class that its constructor computes of ``parameters``."""
_LEAST_SHARE = 0.1
"""Of the peak: what is less is not worth a change."""
_FEWEST_ITEMS = 4


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class KeptDistributions(HeldAtPeak):
    """What each distribution has beside its numbers, at the peak."""

    names: tuple[str, ...]
    items: int


class DistributionsInContainer(RunRule[KeptDistributions]):
    """`cache.append(vae.encode(images).latent_dist)`, of which `sample()` is called each epoch."""

    name = "kept-distributions"
    summary = "a container keeps distributions with all that is computed of their numbers"
    fixes = ("del_ref",)
    kind = Kind.WASTE
    yields_to = (ANY_GROWTH,)
    overlap = Overlap.HOLDER

    def matches(self, examination: Examination) -> Iterator[KeptDistributions]:
        """Standard deviations and variances that searches in the job found to be held so."""
        for device in examination.devices:
            window = device.peak_window
            if window is None or not window.line.peak_allocated.bytes:
                continue
            searches = [
                one
                for one in last_searches(examination, device)
                if one.stack != EMPTY and _attribute(one.holders[0])
            ]
            match = _match(searches, device, window)
            if match is not None:
                yield match

    def title(self, match: KeptDistributions) -> str:
        """Say how much it is, and what."""
        share = format_percent(match.nbytes, match.peak)
        names = ", ".join(f"`{name}`" for name in match.names)
        return f"{format_bytes(match.nbytes)} ({share} of the peak) are {names} of `{_CLASS}`"

    def advice(self, match: KeptDistributions, case: Case) -> Iterator[Advice]:
        """Keep the numbers that they are computed of, or a sample."""
        why = (
            f"Each of {match.items} distributions keeps, beside its `parameters`, what its class "
            "computes of them: keep the parameters and make the distribution again when it is "
            "needed, or what `sample()` returns."
        )
        yield Advice("del_ref", why, case.place_of(match.holders[0]))


def _attribute(holder: Holder) -> str:
    """The attribute by which a distribution among a container's items has a tensor; else empty."""
    at, last = largest_container(holder.links), holder.links[-1]
    if at is None or holder.links[at].length < _FEWEST_ITEMS or last.kind != LinkKind.ATTRIBUTE:
        return ""
    is_of_class = last.type_name.rpartition(".")[2] == _CLASS
    return last.name if is_of_class and last.name in _COMPUTED else ""


def _match(
    searches: Sequence[Finding], device: DeviceExamination, window: Window
) -> KeptDistributions | None:
    lives = window.lives
    named = {one.stack: _attribute(one.holders[0]) for one in searches}
    named |= _made_beside(list(named), window.trace.tables)
    stacks = list(named)
    rows = np.flatnonzero(np.isin(lives.stack, stacks) & ~window.has_owner)
    there = rows[window.at_peak[rows]]
    nbytes = int(lives.size[there].sum())
    if not len(there) or window.share(nbytes) < _LEAST_SHARE:
        return None
    holder = searches[-1].holders[0]
    at = largest_container(holder.links)
    assert at is not None
    return KeptDistributions.of(
        device,
        window,
        searches[-1],
        there,
        rows,
        names=tuple(sorted({named[one] for one in set(lives.stack[there].tolist())})),
        items=holder.links[at].length,
    )


def _made_beside(stacks: Sequence[int], tables: Tables) -> dict[int, str]:
    """What the constructor made in the same calls of it, for attributes that no search came to.

    A search takes a few tensors. What keeps a distribution keeps all that this has.
    """
    calls = {_call_of(tables.stack(stack)) for stack in stacks} - {()}
    beside = {}
    for stack in range(len(tables.stacks)) if calls else ():
        frames = tables.stack(stack)
        if stack not in stacks and _call_of(frames) in calls:
            name = _assigned_in(frames)
            if name in _COMPUTED:
                beside[stack] = name
    return beside


def _call_of(stack: Sequence[Frame]) -> tuple[Frame, ...]:
    """The frames from which the constructor was called; none where it was not."""
    at = next((at for at, one in enumerate(stack) if one.name == _CONSTRUCTOR), len(stack))
    return tuple(stack[at + 1 :])


def _assigned_in(stack: Sequence[Frame]) -> str:
    """The attribute that the constructor's line assigns."""
    frame = next(one for one in stack if one.name == _CONSTRUCTOR)
    program = source_of(frame.filename)
    place = program.at(frame.line) if program is not None else None
    names = map(attribute_set, bound_names(place.statement)) if place is not None else ()
    return next((name.removeprefix("self.") for name in names if name), "")


RULE = DistributionsInContainer()
