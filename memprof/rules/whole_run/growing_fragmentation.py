"""growing-fragmentation: reserved but unallocated memory grows from step to step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from memprof.rules.allocator_settings import advice_on_settings
from memprof.rules.case import Case
from memprof.rules.finding import Kind
from memprof.rules.rule import Advice
from memprof.rules.run_rule import RunMatch, RunRule
from memprof.rules.unallocated_reserve import UnallocatedReserve, unallocated_reserve
from memprof.units import format_bytes
from memprof.views.examination import Examination
from memprof.views.trend import level_rise

__all__ = ["RULE"]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class GrowingHoles(RunMatch):
    """Reserved bytes that no tensor uses, which become more."""

    reserve: UnallocatedReserve


class GrowingFragmentation(RunRule[GrowingHoles]):
    """Every step asks for other sizes, and what the last ones left does not fit."""

    name = "growing-fragmentation"
    summary = "reserved but unallocated memory grows from step to step"
    fixes = ("expandable_segments", "max_split_size")
    kind = Kind.FRAGMENTATION

    def matches(self, examination: Examination) -> Iterator[GrowingHoles]:
        """Devices on which it keeps growing up to the end, and is much by then."""
        for device in examination.run.devices:
            reserve = unallocated_reserve(device)
            rise = level_rise(reserve.steps, reserve.unallocated) if reserve is not None else None
            if reserve is not None and rise is not None:
                yield GrowingHoles(
                    device=device.device,
                    nbytes=reserve.nbytes,
                    first_step=int(reserve.steps[0]),
                    last_step=int(reserve.steps[-1]),
                    rise=rise,
                    reserve=reserve,
                )

    def title(self, match: GrowingHoles) -> str:
        """Say how much it is in the end, and by how much it grows."""
        rate = format_bytes(match.rise.per_step if match.rise is not None else 0)
        return f"{match.reserve}, and grows by {rate} per step"

    def advice(self, match: GrowingHoles, case: Case) -> Iterator[Advice]:  # noqa: ARG002 - of the case
        """Change the allocator's settings."""
        yield from advice_on_settings(case)


RULE = GrowingFragmentation()
