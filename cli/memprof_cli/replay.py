"""``memprof replay``: how exactly the allocator model retells a recording."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from memprof.allocator import Replay, replay_recorded
from memprof.loading import load
from memprof.runfile.remote_file import Location
from memprof.snapshot.unpickler import load_plain_pickle
from memprof.trace import Trace
from memprof.units import format_bytes, format_count
from memprof_cli.json_output import print_json
from memprof_cli.progress import progress
from memprof_cli.sources import RECORDING

__all__ = ["command"]


@click.command()
@click.argument("file", type=RECORDING)
@click.option("--json", "as_json", is_flag=True, help="Print figures as JSON.")
@click.option(
    "--placements",
    type=click.Path(path_type=Path),
    help="Write device,event,predicted_address for every alloc event as CSV.",
)
def command(file: Location, as_json: bool, placements: Path | None) -> None:
    """Check the allocator model against the recording in FILE.

    FILE is a run file of memprof or a snapshot that torch wrote. The model places every recorded
    allocation. The output counts those that land on the address that the allocator gave them.
    """
    windows = [(i, w) for d in load(file).devices for i, w in enumerate(d.windows)]
    traces = [trace for _, trace in windows]
    replays = [replay_recorded(trace) for trace in progress(traces, "replaying")]
    if placements is not None:
        _write_placements(placements, file, traces, replays)
    numbers = [number for number, _ in windows]
    devices = [_window(*pair) for pair in zip(numbers, replays, strict=True)]
    if as_json:
        print_json({"file": str(file), "devices": devices})
        return
    if not devices:
        click.echo(f"{file} holds no device: there is nothing to replay")
    for device in dict.fromkeys(window.device for window in devices):
        _print([window for window in devices if window.device == device])


def _index(device: str) -> int | str:
    return int(device.partition(":")[2]) if ":" in device else device


@dataclass(frozen=True, slots=True)
class _WindowReplay:
    """How the model followed one window, as ``--json`` prints it; `docs/replay.md` explains it."""

    device: int | str
    window: int
    events: int
    allocs: int
    exact: int
    undetermined: int
    wrong: int
    reasons: dict[str, int]
    segment_allocs: int
    segment_allocs_predicted: int
    segment_frees: int
    segment_frees_predicted: int
    recorded_peak_reserved_bytes: int
    replayed_peak_reserved_bytes: int
    replayed_peak_allocated_bytes: int
    settings: str
    tie_break: str
    notes: list[str]


def _window(number: int, replay: Replay) -> _WindowReplay:
    return _WindowReplay(
        device=_index(replay.device),
        window=number,
        events=replay.events,
        allocs=replay.allocs,
        exact=replay.exact,
        undetermined=replay.undetermined,
        wrong=replay.wrong,
        reasons=replay.reasons(),
        segment_allocs=replay.new_segments,
        segment_allocs_predicted=replay.new_segments_predicted,
        segment_frees=replay.released_segments,
        segment_frees_predicted=replay.released_segments_predicted,
        recorded_peak_reserved_bytes=replay.recorded_peak_reserved,
        replayed_peak_reserved_bytes=replay.peak_reserved,
        replayed_peak_allocated_bytes=replay.peak_allocated,
        settings=replay.settings.text(),
        tie_break=replay.tie_break.value,
        notes=list(replay.notes),
    )


def _print(windows: list[_WindowReplay]) -> None:
    """One device: the sum of its windows, and their highest peaks."""
    device, settings = windows[0].device, windows[0].settings or "default settings"
    several = f" in {len(windows)} windows" if len(windows) > 1 else ""
    click.secho(f"cuda:{device}" if isinstance(device, int) else device, bold=True, nl=False)
    events = sum(window.events for window in windows)
    click.echo(f"  {format_count(events)} events{several}, {settings}")
    if not events:
        click.echo("  no trace: the file holds a state alone, so there is nothing to replay\n")
        return
    rows = [
        ("allocations placed exactly", _of((w.exact, w.allocs) for w in windows)),
        (
            "new segments predicted",
            _of((w.segment_allocs_predicted, w.segment_allocs) for w in windows),
        ),
        (
            "released segments predicted",
            _of((w.segment_frees_predicted, w.segment_frees) for w in windows),
        ),
        ("peak reserved, recorded", _most(w.recorded_peak_reserved_bytes for w in windows)),
        ("peak reserved, replayed", _most(w.replayed_peak_reserved_bytes for w in windows)),
        *((f"not exact: {reason}", format_count(n)) for reason, n in _reasons(windows).items()),
    ]
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        click.echo(f"  {name:{width}}  {value}")
    for note in dict.fromkeys(note for window in windows for note in window.notes):
        click.echo(f"  note: {note}")
    click.echo()


def _of(parts: Iterable[tuple[int, int]]) -> str:
    part, whole = (sum(column) for column in zip(*parts, strict=True))
    return f"{format_count(part)} of {format_count(whole)}"


def _most(sizes: Iterable[int]) -> str:
    return format_bytes(max(sizes))


def _reasons(windows: list[_WindowReplay]) -> Counter[str]:
    return sum((Counter(window.reasons) for window in windows), Counter())


def _write_placements(
    path: Path, source: Location, traces: Iterable[Trace], replays: Iterable[Replay]
) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("device", "event", "predicted_address"))
        for trace, replay in zip(traces, replays, strict=True):
            index = _index(trace.device)
            rows = _rows_in_file(source, trace)[replay.rows]
            order = np.argsort(rows, kind="stable")
            columns = (rows[order].tolist(), replay.predicted[order].tolist())
            writer.writerows((index, row, address) for row, address in zip(*columns, strict=True))


def _rows_in_file(source: Location, trace: Trace) -> Any:
    """For every event its place in the file, which differs where the file was out of order."""
    if not trace.reordered:
        return np.arange(len(trace.events))
    device = _index(trace.device)
    entries = load_plain_pickle(source)["device_traces"][device]
    return np.argsort([entry.get("time_us", -1) for entry in entries], kind="stable")
