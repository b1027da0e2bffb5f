"""What one screen says of a run: a verdict, why, what to do next, and the figures of its devices.

What is wrong with it is found elsewhere (`leaks`, `waste`); here it is weighed into one line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from memprof.oom.failed_allocation import NO_STACKS, Failure, failures, times_out_of_memory
from memprof.oom.post_mortem import in_a_line
from memprof.records import Site
from memprof.report.device_summary import DeviceFigures, device_figures
from memprof.report.recorded_steps import in_words, why_no_more
from memprof.report.recording_gaps import is_bare_state, recording_gaps
from memprof.rules.finding import Kind, Remedy, RuleFinding
from memprof.rules.floor import is_needed
from memprof.rules.unexplained_growth import unexplained_growth
from memprof.run import Run
from memprof.trace import NOT_RECORDED
from memprof.units import format_bytes, format_count
from memprof.views.examination import Examination
from memprof.views.owners import UNKNOWN_CATEGORY
from memprof.views.sites import library_frame, short_path, site_name

__all__ = [
    "RECORD",
    "Summary",
    "Verdict",
    "summarize",
]

_FRAGMENTED = 0.15
"""Share of reserved bytes at its peak that no tensor used, from which it is worth a word."""
_NOTABLE = 256 << 20
_CODE = 60
"""Characters of a source line in a sentence."""
_MOST = 0.5
"""Share of the live bytes when memory ran out from which a leak is the reason that is told."""
_ALMOST_ALL = 0.9
"""Of the steps, up to which bytes were counted: where they end earlier, that is said."""
_SURE = 0.5
"""Confidence from which waste is the verdict; below it is told among the rest."""
_OF_FINDINGS = frozenset(("leak", "waste", "fragmentation"))
"""Levels of verdicts that are findings."""
RECORD = (
    "record with `memprof run train.py`, or call torch.cuda.memory._record_memory_history() "
    "before the model is built"
)
"""What to type where a file lacks what was asked for."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer first: a word for machines, a line, the reason and the next thing to do."""

    level: str
    """``no data``, ``ok``, ``leak``, ``waste``, ``fragmentation`` or ``oom``."""
    line: str
    why: str
    next: str

    @property
    def is_finding(self) -> bool:
        """Whether it says the first finding; else what was found is to be told beside it."""
        return self.level in _OF_FINDINGS


@dataclass(frozen=True, slots=True)
class Summary:
    """What `memprof report` prints and ``--json`` carries."""

    source: str
    verdict: Verdict
    devices: tuple[DeviceFigures, ...]
    unseen: tuple[str, ...]
    ended: str
    """How the program ended, where not as usual: by an exception, or with no end in the file."""
    final_state: bool
    """The file holds what was allocated in the end, and no peak."""
    overhead_us: int
    """-1 where it was not measured."""
    duration_us: int
    allowance_us: int
    """Time that recording may take in any case, before its budget counts; -1 where not known."""
    dry_run: str = ""
    """Of a run without a device: the card that it was for, and that nothing was computed."""


def summarize(examination: Examination, findings: Sequence[RuleFinding] = ()) -> Summary:
    """The summary of a run, given what was found wrong with it, best first."""
    run = examination.run
    failed = _failures(examination)
    devices = tuple(device_figures(device, run) for device in examination.devices)
    ended_us = run.footer.ended_us if run.footer else 0
    return Summary(
        source=run.source,
        verdict=_verdict(examination, devices, findings, failed),
        devices=devices,
        unseen=(*recording_gaps(examination), *_told_otherwise(failed)),
        ended=_end_text(run),
        final_state=is_bare_state(run),
        overhead_us=run.footer.overhead_us if run.footer else NOT_RECORDED,
        duration_us=max(ended_us - run.header.created_us, 0) if ended_us else 0,
        allowance_us=_allowance(run),
        dry_run=_dry_run(run),
    )


def _dry_run(run: Run) -> str:
    card = run.header.dry_run
    return f"dry run for {card.card}: no kernel ran" if card is not None else ""


def _allowance(run: Run) -> int:
    allowance_s = run.header.options.get("allowance_s")
    return round(allowance_s * 1e6) if isinstance(allowance_s, (int, float)) else NOT_RECORDED


def _end_text(run: Run) -> str:
    if run.is_snapshot:
        return ""
    if run.footer is None:
        return "killed, or still running: the file has no end"
    return "" if run.footer.status == "ok" else run.footer.status


def _failures(examination: Examination) -> dict[str, Failure]:
    """The last failure of every device that ran out, the latest first; nothing of bare states."""
    run = examination.run
    if not any(times_out_of_memory(run, device) for device in run.devices):
        return {}
    return {failure.device: failure for failure in failures(run, examination)}


def _told_otherwise(failed: Mapping[str, Failure]) -> Iterator[str]:
    for name, failure in failed.items():
        if failure.between_windows:
            yield f"{name}: {NO_STACKS}"


# -- the verdict -------------------------------------------------------------------------------


def _verdict(
    examination: Examination,
    devices: Sequence[DeviceFigures],
    findings: Sequence[RuleFinding],
    failed: Mapping[str, Failure],
) -> Verdict:
    if failed:
        return _ran_out(examination, next(iter(failed.values())), findings)
    measured = [d for d in devices if d.peak_allocated_bytes or d.peak_reserved_bytes]
    if not measured:
        return _no_data(examination.run)
    main = max(measured, key=lambda d: d.peak_allocated_bytes)
    growing = (Kind.LEAK, Kind.CYCLE, Kind.HOST_GROWTH, Kind.NON_TORCH)
    if findings and findings[0].kind in growing and not findings[0].minor:
        return _from_finding("leak", findings[0])
    unexplained = unexplained_growth(examination, findings)
    if unexplained is not None:
        return Verdict("leak", str(unexplained), unexplained.way_on, _show(examination.run))
    filling = next((d for d in measured if d.time_to_full and not d.time_to_full.ended), None)
    if filling is not None:  # the job runs, or was killed: it is no rest that may wait
        why = _trend(filling, examination.run)
        return Verdict("leak", str(filling.time_to_full), why, _show(examination.run))
    if findings and not findings[0].minor and findings[0].confidence >= _SURE:
        level = "fragmentation" if findings[0].kind is Kind.FRAGMENTATION else "waste"
        return _from_finding("ok" if is_needed(findings[0]) else level, findings[0])
    if is_bare_state(examination.run):
        return _state_alone(examination.run, main)
    return _quiet(examination, main, next(filter(is_needed, findings), None))


def _no_data(run: Run) -> Verdict:
    why, then = "the file holds no allocation, no segment and no counter of any device", RECORD
    if not run.is_snapshot:
        limit = why_no_more(run)
        why = "the process that was recorded made no tensor"
        then = "`MEMPROF=run.json` before the command records the processes that it starts as well"
        if limit:
            why, then = "recording ended before anything was measured", limit
        if run.footer is not None and run.footer.status != "ok":
            then = "it did not get that far: see above how it ended"
    return Verdict("no data", "no data: nothing was measured", why, then)


def _ran_out(
    examination: Examination, failure: Failure, findings: Sequence[RuleFinding]
) -> Verdict:
    command = f"`memprof oom {examination.run.source}`"
    leak = _what_filled_it(failure, findings)
    if leak is None:
        then = f"{command} says what would have let it go on"
        return Verdict("oom", in_a_line(failure), _holdings(failure), then)
    why = f"{_holdings(failure)}; {format_bytes(leak.bytes)} of that is a leak, which {leak.title}"
    then = f"{_what_to_do(leak)}; {command} says what else would have let it go on"
    return Verdict("oom", in_a_line(failure), why, then)


def _what_filled_it(failure: Failure, findings: Sequence[RuleFinding]) -> RuleFinding | None:
    """The leak of that device that made most of its live bytes."""
    for finding in findings:
        if finding.kind in (Kind.LEAK, Kind.CYCLE) and finding.device == failure.device:
            return finding if finding.bytes >= _MOST * failure.allocated > 0 else None
    return None


def _holdings(failure: Failure) -> str:
    if failure.allocated < 0:
        return "what tensors held then is not in the file"
    allocated = f"tensors held {format_bytes(failure.allocated)}"
    if failure.unused < 0:
        return allocated
    return f"{allocated}, and {format_bytes(failure.unused)} more was reserved but unused"


def _from_finding(level: str, finding: RuleFinding) -> Verdict:
    return Verdict(level, finding.title, _evidence(finding), _what_to_do(finding))


def _show(run: Run) -> str:
    return f"`memprof leaks {run.source}` lists what else was found"


def _what_to_do(finding: RuleFinding) -> str:
    remedy = finding.remedies[0] if finding.remedies else None
    if remedy is None:
        return finding.hint or "see the finding below"
    place = f"{short_path(remedy.filename)}:{remedy.line}" if remedy.line else ""
    if remedy.typed:
        where = f" at {place}" if place else ""
        return f"write `{remedy.typed}`{where}: {remedy.why}{_comes_to(finding, remedy)}"
    then = f"{remedy.fix}: {remedy.why}{_comes_to(finding, remedy)}"
    if place and (remedy.filename, remedy.line) != _line_of(finding.site):
        then += f" ({place})"
    return then


def _comes_to(finding: RuleFinding, remedy: Remedy) -> str:
    """What that makes of the peak; what grows comes to any number of bytes."""
    if finding.bytes_per_step or not remedy.peak_before > remedy.peak_after >= 0:
        return ""
    return f" Peak {format_bytes(remedy.peak_before)} → {format_bytes(remedy.peak_after)}."


def _line_of(site: Site) -> tuple[str, int]:
    return site.filename, site.line


def _evidence(finding: RuleFinding) -> str:
    """Where the bytes are made, how many there are by now, and what else holds them."""
    sentences = []
    if finding.site.filename:
        code = finding.site.code.split("  #", maxsplit=1)[
            0
        ]  # PEP 8 sets comments off by two spaces
        code = code if len(code) <= _CODE else code[: _CODE - 1] + "…"
        code_text = f": `{code}`" if code else ""
        inner = library_frame(finding.stack)
        by = f", by {site_name(inner)}" if inner is not None else ""
        how = "made in the backward pass of" if _in_backward_of(finding) else "made at"
        sentences.append(
            f"{how} {short_path(finding.site.filename)}:{finding.site.line}{code_text}{by}"
        )
    if finding.bytes_per_step and finding.bytes:
        by = f" after step {finding.last_step}" if finding.last_step >= 0 else ""
        sentences.append(f"{format_bytes(finding.bytes)} in all{by}")
    if len(finding.holders) > 1:
        others = len(finding.holders) - 1
        sentences.append(f"{others} more {'holds' if others == 1 else 'hold'} such tensors")
    return "; ".join(sentences) or finding.title


def _in_backward_of(finding: RuleFinding) -> bool:
    return finding.match is not None and finding.match.in_backward_of


def _state_alone(run: Run, main: DeviceFigures) -> Verdict:
    """Neither a peak nor growth can be told of what there was in the end."""
    allocated = f"{format_bytes(main.allocated_bytes)} in tensors on {main.device}"
    if run.is_snapshot:
        why = "the file holds a final state alone, so neither its peak nor growth can be judged"
        return Verdict(
            "ok",
            f"{allocated} when the snapshot was taken",
            why,
            f"`memprof oom {run.source}` says what filled it; for the peak and what grows {RECORD}",
        )
    return Verdict(
        "ok",
        f"{allocated}, and nothing allocated while it recorded",
        "no step ended and no tensor was made between the start of the recording and its end",
        "`memprof run train.py` records a program from its first line to its end",
    )


def _quiet(examination: Examination, main: DeviceFigures, largest: RuleFinding | None) -> Verdict:
    """Nothing is wrong: the peak, whose it is, and what would take less where memory is short."""
    peak, source = main.peak, examination.run.source
    owner = peak.categories[0] if peak and peak.categories else None
    line = f"peak {main.peak_in_words} on {main.device}"
    if peak and peak.step >= 0:
        line += f", in step {peak.step}"
    if owner and owner.name != UNKNOWN_CATEGORY:
        line += f"; {format_bytes(owner.bytes)} of it {owner.name}"
    unused = main.unused_reserved_bytes
    if unused > _NOTABLE and unused > _FRAGMENTED * main.peak_reserved_bytes:
        then = (
            f"{format_bytes(unused)} reserved was unused at the peak: "
            f"`memprof what-if {source} --search` tries other allocator settings"
        )
    else:
        then = _nothing_to_mend(main, largest, source)
    return Verdict("ok", line, _trend(main, examination.run), then)


def _nothing_to_mend(main: DeviceFigures, largest: RuleFinding | None, source: str) -> str:
    if largest is not None and largest.remedies and largest.remedies[0].saves_bytes > 0:
        remedy = largest.remedies[0]
        place = f" at {short_path(remedy.filename)}:{remedy.line}" if remedy.line else ""
        what = f"`{remedy.typed}`" if remedy.typed else remedy.fix
        less = f"{format_bytes(remedy.peak_before)} → {format_bytes(remedy.peak_after)}"
        return f"where memory is short, {what}{place}: peak {less}"
    if main.device == "cpu":
        return "nothing must change; `memprof dry-run` says what the program would take on a card"
    return f"`memprof what-if {source} --fit` finds the smallest card that it fits on"


def _trend(device: DeviceFigures, run: Run) -> str:
    trend = device.growth
    if trend is None:
        if not device.steps:
            return "no step marks, so growth from step to step cannot be judged"
        if device.recorded_steps < device.steps:
            sentence = in_words(device.recorded_steps, device.steps, run)
            return f"too little was counted to judge growth from step to step: {sentence}"
        steps = "one step is" if device.steps == 1 else f"{format_count(device.steps)} steps are"
        return f"{steps} too few to judge growth from step to step"
    if trend.keeps_rising:
        rate = format_bytes(trend.bytes_per_step)
        return f"allocated bytes rise by {rate} per step, yet no single line keeps growing"
    if trend.last_step + 1 < _ALMOST_ALL * device.steps:
        last, total = format_count(trend.last_step), format_count(device.steps)
        return f"nothing keeps growing over steps {trend.first_step} to {last} of {total}"
    return f"nothing keeps growing over {format_count(device.steps)} steps"
