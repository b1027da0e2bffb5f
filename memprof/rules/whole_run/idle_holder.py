"""idle-holder: a waiting thread, a stored exception, a log record or a notebook keeps tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from memprof.chain_description import shortened
from memprof.records import Finding, Holder, Site
from memprof.reference_chain import LinkKind, largest_container
from memprof.rules.case import Case
from memprof.rules.finding import Kind
from memprof.rules.long_lived_tensors import advice_on_long_lived
from memprof.rules.notebooks import advice_on_outputs
from memprof.rules.references import advice_on_exceptions_and_logs, advice_on_views
from memprof.rules.resident_searches import resident_searches
from memprof.rules.rule import Advice
from memprof.rules.run_rule import RunMatch, RunRule
from memprof.rules.same_memory import ANY_GROWTH, ANY_WASTE, Overlap
from memprof.source_code.frame_kind import FrameKind, frame_kind
from memprof.units import format_bytes, format_percent
from memprof.views.examination import DeviceExamination, Examination

__all__ = ["RULE"]

_IDLE = frozenset(
    {
        LinkKind.THREAD,
        LinkKind.EXCEPTION,
        LinkKind.TRACEBACK,
        LinkKind.LOG_RECORD,
        LinkKind.NOTEBOOK,
    }
)
"""What keeps tensors although nobody means to use them again."""
_LEAST_SHARE = 0.04
"""Of the peak: what is less is not worth a person's time, as with waste."""
_MOST = 3
"""Lines of one device: each next one holds less."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class IdleTensors(RunMatch):
    """Tensors that were there when recording ended, and who alone kept them."""

    peak: int
    """Bytes at the device's peak."""


class IdleHolder(RunRule[IdleTensors]):
    """The last job of a worker that waits for the next one; the frames of the last failure."""

    name = "idle-holder"
    summary = "something that has done its work keeps tensors"
    fixes = (
        *("del_ref", "clear_traceback", "clear_container", "item", "cpu_offload"),
        *("clone_view", "narrow_before_cast"),
    )
    kind = Kind.WASTE
    yields_to = (ANY_GROWTH, ANY_WASTE)
    overlap = Overlap.LINE

    def matches(self, examination: Examination) -> Iterator[IdleTensors]:
        """The largest tensors of each device at the end that nothing but such a holder keeps."""
        for device in examination.devices:
            searches = _searches(examination, device)
            by_line: dict[tuple[str, int], Finding] = {}
            for one in sorted(searches, key=lambda one: -one.bytes):
                by_line.setdefault((one.holders[0].filename, one.holders[0].line), one)
            for one in list(by_line.values())[:_MOST]:
                yield _match(one, device)

    def title(self, match: IdleTensors) -> str:
        """Say how much it is, and what holds it."""
        share = f"{format_percent(match.nbytes, match.peak)} of the peak"
        if match.nbytes > match.peak:  # they came after the steps whose peak is known
            share = "at the end, more than the recorded steps had"
        size = format_bytes(match.nbytes)
        description = shortened(match.holders[0].links)
        return f"{size} ({share}) are allocated but unused: {description}"

    def advice(self, match: IdleTensors, case: Case) -> Iterator[Advice]:  # noqa: ARG002 - of the case
        """Make the holder let go; of a thread also keep less of it, or keep it on the host."""
        yield from advice_on_exceptions_and_logs(case)
        notebook = case.holder(LinkKind.NOTEBOOK)
        if notebook is not None:
            yield advice_on_outputs(notebook, case)
        if not case.links & (_IDLE - {LinkKind.THREAD}):
            yield from advice_on_views(case)
            yield from advice_on_long_lived(case)


def _searches(examination: Examination, device: DeviceExamination) -> list[Finding]:
    """Searches at the end for who holds what is large, where that is something idle."""
    return [
        one
        for one in resident_searches(examination, device, _LEAST_SHARE)
        if one.holders[0].kind in _IDLE
        and not _is_under_way(one.holders[0])
        and not _is_stored(one.holders[0])
    ]


def _is_stored(holder: Holder) -> bool:
    """Whether a waiting thread has it among others in a container, and in no name for one job."""
    return holder.kind is LinkKind.THREAD and largest_container(holder.links) is not None


def _is_under_way(holder: Holder) -> bool:
    """Whether only memprof's own call holds it: the exception with which the program ends.

    Nobody keeps that: the process is about to end.
    """
    first = holder.links[0] if holder.links else None
    if first is None or first.kind is not LinkKind.LOCAL or not first.filename:
        return False
    return frame_kind(first.filename) is FrameKind.HIDDEN


def _match(one: Finding, device: DeviceExamination) -> IdleTensors:
    holder = one.holders[0]
    windows = device.windows
    return IdleTensors(
        device=device.name,
        nbytes=one.bytes,
        first_step=one.step,
        last_step=one.step,
        site=Site(holder.filename, holder.line, "", holder.code),
        stack=windows[-1].trace.tables.stack(one.stack) if windows else (),
        holders=tuple(one.holders),
        peak=device.peak_allocated,
    )


RULE = IdleHolder()
