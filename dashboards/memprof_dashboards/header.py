"""The top of the page as HTML: verdict, key figures per device, what was not seen, what ran."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable

from memprof.report.device_summary import DeviceFigures
from memprof.report.summary import Summary
from memprof.run import Run
from memprof.units import format_bytes, format_count, format_duration, format_percent
from memprof.views.owners import UNKNOWN_CATEGORY, UNKNOWN_PHASE
from memprof_dashboards.text import coded, escaped

__all__ = ["figures", "recording", "recording_gaps", "verdict"]

_LEVELS = {
    "ok": "No leak seen",
    "measured": "Measured",
    "no data": "No data",
    "leak": "Leak",
    "waste": "Waste",
    "fragmentation": "Fragmentation",
    "oom": "Out of memory",
}


def verdict(summary: Summary) -> str:
    """The answer first: the line, why, and what to do next."""
    verdict_record = summary.verdict
    level = _level(summary)
    return (
        f'<section class="verdict level-{level.replace(" ", "-")}" aria-label="Verdict">'
        f'<p class="level">{_LEVELS[level]}</p>'
        f"<h1>{coded(verdict_record.line)}</h1>"
        f"<dl>{_dry_run(summary)}{_end_text(summary)}<div><dt>Why</dt><dd>{coded(verdict_record.why)}</dd></div>"
        f"<div><dt>Next</dt><dd>{coded(verdict_record.next)}</dd></div></dl></section>"
    )


def _dry_run(summary: Summary) -> str:
    if not summary.dry_run:
        return ""
    return f"<div><dt>Not a GPU</dt><dd>{escaped(summary.dry_run)}</dd></div>"


def _end_text(summary: Summary) -> str:
    return f"<div><dt>Ended</dt><dd>{escaped(summary.ended)}</dd></div>" if summary.ended else ""


def _level(summary: Summary) -> str:
    """The verdict's level; "ok" only where enough steps were there to judge growth by."""
    level = summary.verdict.level
    if level == "ok" and all(d.growth is None for d in summary.devices):
        return "measured"
    return level if level in _LEVELS else "measured"


def figures(device: DeviceFigures, *, final_state: bool = False) -> str:
    """The key figures of one device, as tiles; of a final state there is no peak."""
    tiles = (
        [
            _tile("Allocated", _size(device.allocated_bytes), _owner(device)),
            _reserved_tile(device, "Reserved"),
        ]
        if final_state
        else [
            _peak_tile(device),
            *([] if device.device == "cpu" else [_reserved_tile(device)]),
            _end_tile(device),
            _when_tile(device),
        ]
    )
    return f'<div class="tiles">{"".join(t for t in tiles if t)}</div>'


def _tile(name: str, value: str, detail: str = "", gauge: str = "") -> str:
    small = f'<p class="detail">{detail}</p>' if detail else ""
    return f'<div class="tile"><h3>{name}</h3><p class="value">{value}</p>{gauge}{small}</div>'


def _gauge(part: int, whole: int, label: str) -> str:
    share = max(0.0, min(100.0, 100 * part / whole)) if whole else 0.0
    return (
        f'<div class="gauge" role="img" aria-label="{escaped(label)}">'
        f'<span style="width:{share:.1f}%"></span></div>'
    )


def _peak_tile(device: DeviceFigures) -> str:
    peak, total = device.peak_allocated_bytes, device.total_bytes
    if not total:
        name = "Peak allocated, at least" if device.peak_is_least else "Peak allocated"
        return _tile(name, _size(peak), _owner(device))
    text = f"{format_percent(peak, total)} of {format_bytes(total)}"
    return _tile(
        "Peak allocated", _size(peak), f"{text}. {_owner(device)}", _gauge(peak, total, text)
    )


def _owner(device: DeviceFigures) -> str:
    """Whose most of it is; where that is not known, that comes first."""
    groups = device.peak.categories[:2] if device.peak else ()
    names = [
        f"{escaped(group.name)}, {format_bytes(group.bytes)}" for group in groups if group.bytes
    ]
    if not names or groups[0].name != UNKNOWN_CATEGORY:
        return f"largest owner: {names[0]}" if names else ""
    return "; then ".join(f"owner {one}" if one == names[0] else one for one in names)


def _reserved_tile(device: DeviceFigures, name: str = "Peak reserved") -> str:
    reserved, unused = device.peak_reserved_bytes, device.unused_reserved_bytes
    if not reserved:
        return _tile(name, "none", "nothing was held from the driver")
    text = f"{format_bytes(unused)} of it unused ({format_percent(unused, reserved)})"
    gauge = _gauge(
        reserved - unused, reserved, f"{format_percent(reserved - unused, reserved)} used"
    )
    return _tile(name, _size(reserved), text, gauge)


def _end_tile(device: DeviceFigures) -> str:
    facts = []
    if device.device != "cpu":
        facts.append(f"{format_bytes(device.reserved_bytes)} reserved")
    if device.growth is not None and device.growth.is_telling:
        facts.append(f"growth: {device.growth}")
    if device.time_to_full is not None:
        facts.append(f"<b>{escaped(str(device.time_to_full))}</b>")
    return _tile("Allocated at the end", _size(device.allocated_bytes), "; ".join(facts))


def _when_tile(device: DeviceFigures) -> str:
    peak = device.peak
    if peak is None or peak.event < 0:
        steps = _count_of(device.steps, "step") if device.steps else ""
        return _tile("Recorded", _count_of(device.events, "event"), steps)
    where = [f"step {peak.step}"] if peak.step >= 0 else []
    where += [peak.phase] if peak.phase != UNKNOWN_PHASE else []
    where += [escaped(peak.module, 80)] if peak.module else []
    site = f"<code>{escaped(peak.site, 120)}</code>" if peak.site else ""
    if peak.origin_site:
        site = f"backward pass of <code>{escaped(peak.origin_site, 120)}</code>"
    detail = ". ".join(
        t for t in (site, f"{_count_of(device.events, 'event')}{_steps(device)}") if t
    )
    return _tile("Peak reached in", ", ".join(where) or f"event {format_count(peak.event)}", detail)


def _steps(device: DeviceFigures) -> str:
    return f", {_count_of(device.steps, 'step')}" if device.steps else ""


def _count_of(number: int, noun: str) -> str:
    return f"{format_count(number)} {noun}{'' if number == 1 else 's'}"


def _size(nbytes: int) -> str:
    return format_bytes(nbytes) if nbytes >= 0 else "not measured"


def recording_gaps(summary: Summary) -> str:
    """What the recording cannot tell; visible, because silence would read as "all is well"."""
    if not summary.unseen:
        return ""
    items = "".join(f"<li>{coded(text)}</li>" for text in summary.unseen)
    return f'<section class="unseen"><h2>Not seen</h2><ul>{items}</ul></section>'


def recording(run: Run, summary: Summary) -> str:
    """What ran, where and how it was recorded."""
    rows = "".join(
        f"<div><dt>{name}</dt><dd>{value}</dd></div>"
        for name, value in _facts(run, summary)
        if value
    )
    return f'<dl class="facts">{rows}</dl>'


def _facts(run: Run, summary: Summary) -> Iterable[tuple[str, str]]:
    header = run.header
    yield "File", f"<code>{escaped(run.source)}</code>"
    yield "Kind", "torch allocator snapshot" if run.is_snapshot else "memprof run"
    yield "Command", f"<code>{escaped(' '.join(header.argv))}</code>" if header.argv else ""
    yield "Folder", f"<code>{escaped(header.cwd)}</code>" if header.cwd else ""
    yield ("Ended" if run.is_snapshot else "Started"), _moment(header.created_us)
    yield "Lasted", format_duration(summary.duration_us) if summary.duration_us else ""
    yield "Recording took", format_duration(summary.overhead_us) if summary.overhead_us > 0 else ""
    yield "Rank", f"{header.rank} of {header.world_size}" if header.rank >= 0 else ""
    yield "torch", escaped(header.torch_version or _torch_of_traces(run))
    yield "Python", escaped(header.python_version)
    yield "Platform", escaped(header.platform)
    for device in run.devices:
        name = escaped(device.info.name) if device.info.name else ""
        total = format_bytes(device.info.total_bytes) if device.info.total_bytes else ""
        yield escaped(device.device), ", ".join(t for t in (name, total) if t)
        settings = device.info.settings.get("PYTORCH_CUDA_ALLOC_CONF")
        yield f"{escaped(device.device)} settings", escaped(str(settings)) if settings else ""


def _torch_of_traces(run: Run) -> str:
    return next((w.torch_version for d in run.devices for w in d.windows if w.torch_version), "")


def _moment(time_us: int) -> str:
    try:
        moment = dt.datetime.fromtimestamp(time_us / 1e6, dt.timezone.utc)
    except (ValueError, OverflowError, OSError):  # a hostile file's year 60,000
        return ""
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC") if time_us > 0 else ""
