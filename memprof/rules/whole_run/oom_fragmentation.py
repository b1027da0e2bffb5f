"""oom-fragmentation: allocations failed, and much of the reserved memory is unallocated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from memprof.rules.allocator_settings import advice_on_settings
from memprof.rules.case import Case
from memprof.rules.finding import Kind
from memprof.rules.rule import Advice
from memprof.rules.run_rule import RunMatch, RunRule
from memprof.rules.unallocated_reserve import UnallocatedReserve, unallocated_reserve
from memprof.views.examination import Examination

__all__ = ["RULE"]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class HolesAfterOom(RunMatch):
    """Reserved bytes that no tensor uses on a device that has run out of memory."""

    reserve: UnallocatedReserve


class OomFragmentation(RunRule[HolesAfterOom]):
    """The request that failed was larger than any hole, and smaller than all of them together."""

    name = "oom-fragmentation"
    summary = "allocations failed beside much reserved but unallocated memory"
    fixes = ("expandable_segments", "max_split_size")
    kind = Kind.FRAGMENTATION
    yields_to = ("growing-fragmentation",)

    def matches(self, examination: Examination) -> Iterator[HolesAfterOom]:
        """Devices that ran out of memory, where much is unallocated at the last step's end."""
        for device in examination.run.devices:
            reserve = unallocated_reserve(device)
            if reserve is not None and reserve.ooms > 0:
                yield HolesAfterOom(
                    device=device.device,
                    nbytes=reserve.nbytes,
                    first_step=int(reserve.steps[0]),
                    last_step=int(reserve.steps[-1]),
                    reserve=reserve,
                )

    def title(self, match: HolesAfterOom) -> str:
        """Say how much it is, and how often an allocation failed."""
        ooms = match.reserve.ooms
        return f"{match.reserve}, after {ooms} failed allocation{'' if ooms == 1 else 's'}"

    def advice(self, match: HolesAfterOom, case: Case) -> Iterator[Advice]:  # noqa: ARG002 - of the case
        """Change the allocator's settings."""
        yield from advice_on_settings(case)


RULE = OomFragmentation()
