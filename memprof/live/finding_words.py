"""What a job finds out while it runs, in a line for a person."""

from __future__ import annotations

from memprof.records import Finding
from memprof.units import format_bytes, format_count, format_duration

__all__ = ["in_words"]


def in_words(finding: Finding) -> str:
    """One line; the step it was found in is told beside it."""
    words = {
        "holders": _outlives_step,
        "garbage": _garbage,
        "host_growth": _host_growth,
        "oom": _ran_out,
        "time_to_full": _fills_up,
        "profiled": _profiled,
    }.get(finding.finding)
    return words(finding) if words is not None else finding.finding.replace("_", " ")


def _outlives_step(finding: Finding) -> str:
    holder = finding.holders[0] if finding.holders else None
    by = holder.description if holder is not None and holder.is_named else "an unknown holder"
    return f"{_tensors(finding)} outlived their step, kept by {by}"


def _garbage(finding: Finding) -> str:
    return f"{_tensors(finding)} were in reference cycles, until the collector freed them"


def _host_growth(finding: Finding) -> str:
    holder = finding.holders[0] if finding.holders else None
    by = f": {holder.description}" if holder is not None else ""
    return f"the autograd graph grows, in host memory{by}"


def _ran_out(finding: Finding) -> str:
    request = f" when {format_bytes(finding.bytes)} were asked for" if finding.bytes > 0 else ""
    return f"{finding.device} ran out of memory{request}"


def _fills_up(finding: Finding) -> str:
    step, left_us = finding.details.get("full_step"), finding.details.get("left_us")
    if not isinstance(step, int):
        return f"{finding.device} fills up"
    time = ""
    if isinstance(left_us, int) and left_us >= 0:
        time = f", in {format_duration(left_us)}"
    at = "at about" if finding.details.get("exact", True) else "before"
    return f"{finding.device} runs out of memory {at} step {format_count(step)}{time}"


def _profiled(finding: Finding) -> str:
    calls = finding.details.get("calls")
    of = f" of {format_count(calls)}" if isinstance(calls, int) else ""
    return f"torch's profiler has recorded {format_count(finding.count)}{of} calls of a model"


def _tensors(finding: Finding) -> str:
    tensors = "1 tensor" if finding.count == 1 else f"{format_count(finding.count)} tensors"
    return f"{tensors}, {format_bytes(max(finding.bytes, 0))},"
