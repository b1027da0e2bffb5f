"""A summary as one screen of text, and as JSON; what it says is decided in `memprof.report`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from memprof.report.device_summary import DeviceFigures, PeakMoment
from memprof.report.summary import Summary, Verdict
from memprof.rules.finding import RuleFinding
from memprof.trace import Phase
from memprof.units import format_bytes, format_count, format_duration, format_percent
from memprof.views.owners import NO_MODULE, PHASE_NAMES, UNKNOWN_PHASE
from memprof.views.owners import Group as OwnerGroup
from memprof_cli.json_output import print_json
from memprof_cli.leaks import findings_record
from memprof_cli.terminal import terminal

__all__ = ["print_summaries", "print_summary"]

_STYLES = {"ok": "bold green", "no data": "bold yellow", "oom": "bold red", "leak": "bold red"}
_WIDTH = 100
_NAMES = 4
"""Modules and sites shown; the page has the rest."""
_FINDINGS = 4
_UNSEEN = 5
_NO_PHASE = (UNKNOWN_PHASE, PHASE_NAMES[Phase.OTHER])
"""Phases that say nothing of where a peak was."""


def print_summary(summary: Summary, findings: Sequence[RuleFinding] = ()) -> None:
    """Print one run: verdict, peak, owners, growth and what was not seen."""
    console = terminal(_WIDTH)
    console.print(Text(summary.source, style="dim"))
    if summary.dry_run:
        console.print(Text(summary.dry_run, style="yellow"))
    if summary.ended:
        console.print(Text(f"ended: {summary.ended}", style="yellow"))
    console.print(_verdict(summary.verdict))
    for device in summary.devices:
        console.print(_device(device, summary.final_state))
    others = findings[1:] if summary.verdict.is_finding else findings
    if others:
        console.print(_others(others))
    if summary.unseen:
        console.print(_not_seen(summary.unseen))
    if summary.overhead_us >= 0 and summary.duration_us > 0:
        share = format_percent(summary.overhead_us, summary.duration_us)
        took = format_duration(summary.duration_us)
        console.print(Text(f"recording took {share} of {took}{_limit_text(summary)}", style="dim"))


def _limit_text(summary: Summary) -> str:
    """Why a short run may take so much: nobody should expect that share of a long one."""
    if summary.dry_run or summary.overhead_us > summary.allowance_us:
        return ""  # a dry run has no budget
    return f", within its start-up allowance of {format_duration(summary.allowance_us)}"


def _verdict(verdict: Verdict) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    style = _STYLES.get(verdict.level, "bold yellow")
    for name, text, how in (
        ("Verdict", verdict.line, style),
        ("Why", verdict.why, ""),
        ("Next", verdict.next, "cyan"),
    ):
        grid.add_row(name, Text(text, style=how))
    return Padding(grid, (0, 0, 1, 0))


def _device(device: DeviceFigures, final_state: bool) -> RenderableType:
    peak = device.peak
    lines: list[RenderableType] = [_in_the_end(device) if final_state else _headline(device)]
    if peak is not None and peak.bytes:
        when = "in the end" if final_state else f"at the peak ({_moment(peak)})"
        lines.append(Padding(Text(f"{when} these were alive:"), (0, 0, 0, 2)))
        lines.append(Padding(_owners(peak), (0, 0, 0, 2)))
    when = "in the end" if final_state else "at the peak"
    lines += [Padding(Text(text), (0, 0, 0, 2)) for text in _remarks(device, when)]
    return Padding(Group(*lines), (0, 0, 1, 0))


def _headline(device: DeviceFigures) -> Text:
    text = Text()
    text.append(device.device, style="bold")
    if not device.events and not device.steps and not device.peak_reserved_bytes:
        return text.append("  nothing of its memory was recorded", style="dim")
    text.append(f"  peak allocated {device.peak_in_words}")
    if device.peak_reserved_bytes and device.device != "cpu":  # there they are a model's
        text.append(f", reserved {format_bytes(device.peak_reserved_bytes)}")
    if device.total_bytes:
        text.append(f" of {format_bytes(device.total_bytes)}")
    text.append(f"; at the end {format_bytes(device.allocated_bytes)}", style="dim")
    text.append(f"; {format_count(device.events)} events", style="dim")
    return text


def _in_the_end(device: DeviceFigures) -> Text:
    allocated = format_bytes(device.allocated_bytes)
    reserved = format_bytes(device.reserved_bytes)
    return Text(device.device, style="bold").append(
        f"  allocated {allocated}, reserved {reserved}", ""
    )


def _moment(peak: PeakMoment) -> str:
    where = [f"step {peak.step}"] if peak.step >= 0 else []
    where += [peak.phase] if peak.phase not in _NO_PHASE and not peak.backward_of else []
    where += [peak.module] if peak.module else []
    where += [peak.backward_of or peak.site] if peak.site else []
    return ", ".join(where) or "before the first recorded event"


def _owners(peak: PeakMoment) -> RenderableType:
    note = " (inferred)" if peak.inferred else ""
    parts = [(f"category{note}", peak.categories), ("line", peak.sites[:_NAMES])]
    if any(group.name != NO_MODULE for group in peak.modules):
        parts.insert(1, ("module", peak.modules[:_NAMES]))
    width = max(len(title) for title, _ in parts)
    return Group(*(row for part in parts for row in _groups(*part, peak.bytes, width)))


def _groups(title: str, groups: Sequence[OwnerGroup], total: int, width: int) -> list[Text]:
    """A line for each; where the terminal is narrow, the end of the name is what is cut off."""
    rows = []
    for number, group in enumerate(g for g in groups if g.bytes):
        row = Text(no_wrap=True, overflow="ellipsis")
        row.append((title if number == 0 else "").ljust(width), style="dim")
        row.append(f"  {format_bytes(group.bytes):>8}")
        row.append(f" {format_percent(group.bytes, total):>7}", style="dim")
        rows.append(row.append(f"  {group.name}"))
    return rows


def _remarks(device: DeviceFigures, when: str) -> list[str]:
    lines = []
    if device.growth is not None and device.growth.is_telling:
        lines.append(f"growth: {device.growth}")
    if device.time_to_full is not None:
        lines.append(str(device.time_to_full))
    if device.unused_reserved_bytes and device.peak_reserved_bytes and device.device != "cpu":
        unused = format_bytes(device.unused_reserved_bytes)
        share = format_percent(device.unused_reserved_bytes, device.peak_reserved_bytes)
        lines.append(f"reserved but unused {when}: {unused} ({share})")
    if device.outside_torch_bytes >= 0:
        lines.append(f"held outside torch's allocator: {format_bytes(device.outside_torch_bytes)}")
    if device.other_processes:
        processes = list(device.other_processes.items())[:_NAMES]
        process_names = ", ".join(f"{name} {format_bytes(size)}" for name, size in processes)
        more = len(device.other_processes) - len(processes)
        lines.append(
            f"other processes on it: {process_names}" + (f" and {more} more" if more else "")
        )
    if device.ooms:
        times = "once" if device.ooms == 1 else f"{format_count(device.ooms)} times"
        lines.append(f"ran out of memory {times}")
    return lines


def _others(findings: Sequence[RuleFinding]) -> RenderableType:
    lines: list[Text] = []
    for head, minor, style in (("Also found", False, ""), ("Also seen", True, "dim")):
        some = [finding for finding in findings if finding.minor is minor]
        if some:
            lines.append(Text(head, style="bold"))
            lines += [Text(f"  {finding.title}", style=style) for finding in some[:_FINDINGS]]
        if len(some) > _FINDINGS:
            more = f"  and {len(some) - _FINDINGS} more: see `memprof leaks`"
            lines.append(Text(more, style="dim"))
    return Padding(Group(*lines), (0, 0, 1, 0))


def _not_seen(texts: Sequence[str]) -> RenderableType:
    lines = [Text("Not seen", style="bold")]
    lines += [Text(f"  {text}", style="dim") for text in texts[:_UNSEEN]]
    if len(texts) > _UNSEEN:
        lines.append(Text(f"  and {len(texts) - _UNSEEN} more on the page", style="dim"))
    return Group(*lines)


def print_summaries(reports: Sequence[tuple[Summary, Sequence[RuleFinding]]]) -> None:
    """Print as JSON: one object for one run, ``{"runs": […]}`` for several, with the findings."""
    records: list[Any] = []
    for summary, findings in reports:
        one = msgspec.to_builtins(summary) | msgspec.to_builtins(findings_record(findings))
        if not one["dry_run"]:  # a field of few runs: it is there only where it says something
            del one["dry_run"]
        for device in one["devices"]:
            if not device["peak_gaps"]:
                del device["peak_gaps"]
            if not device["time_to_full"]:  # likewise
                del device["time_to_full"]
        records.append(one)
    print_json(records[0] if len(records) == 1 else {"runs": records})
