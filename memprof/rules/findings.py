"""Everything that is wrong with a run, best first, with remedies; nothing is detected here."""

from __future__ import annotations

from collections.abc import Sequence

from memprof.analysis.host_growth import host_growth
from memprof.analysis.host_memory import host_memory
from memprof.analysis.pinned import pinned
from memprof.analysis.reserves import fragmentation, non_torch
from memprof.rules.finding import Found, Kind
from memprof.rules.group_by_holder import outline
from memprof.rules.leaks import leaks
from memprof.rules.remedies import with_remedies
from memprof.rules.wasted import waste_of
from memprof.run import Run
from memprof.views.examination import Examination, examine

__all__ = ["findings"]


def findings(run: Run, examination: Examination | None = None) -> tuple[Found, ...]:
    """What grows first, the fastest first; then what is merely there, the largest first.

    ``examination`` saves time where the caller has one of ``run`` already. What tensors and graphs
    that grow on the host leave there around them is theirs, and not told once more.
    """
    growing = leaks(run)
    graphs = [one for one in host_growth(run) if not _is_part_of(one, growing)]
    holes = fragmentation(run)
    wasted = _not_growing(_told_once(waste_of(examination or examine(run)), holes), growing)
    found = [
        *growing,
        *non_torch(run),
        *graphs,
        *([] if graphs or any(one.device == "cpu" for one in growing) else host_memory(run)),
        *holes,
        *wasted,
        *_not_growing(pinned(run), (*growing, *wasted)),
    ]
    return tuple(with_remedies(one, run) for one in found)


def _is_part_of(one: Found, growing: tuple[Found, ...]) -> bool:
    """Whether the graph hangs on something that is a leak of tensors anyway."""
    held = {outline(holder) for leak in growing for holder in leak.holders[:1]}
    return any(outline(holder) in held for holder in one.holders[:1])


def _told_once(found: Sequence[Found], holes: Sequence[Found]) -> list[Found]:
    """Without the fragmentation of devices whose fragmentation was found from step to step."""
    devices = {one.device for one in holes}
    return [one for one in found if one.kind is not Kind.FRAGMENTATION or one.device not in devices]


def _not_growing(found: Sequence[Found], told: Sequence[Found]) -> list[Found]:
    """Waste at other lines than those that were told: there it is the same bytes."""
    lines = {(one.site.filename, one.site.line) for one in told}
    return [one for one in found if (one.site.filename, one.site.line) not in lines]
