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
from memprof.trace import EMPTY
from memprof.units import format_bytes, format_percent
from memprof.views.examination import DeviceExamination, Examination
from memprof.views.window import Window

__all__ = ["RULE"]

_CLASS = "DiagonalGaussianDistribution"
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
    stacks = [one.stack for one in searches]
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
        names=tuple(sorted({_attribute(one.holders[0]) for one in searches})),
        items=holder.links[at].length,
    )


RULE = DistributionsInContainer()
