"""``memprof replay``: how exactly the allocator model retells a recording."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
import numpy as np

from memprof.allocator import Replay, replay_recorded
from memprof.errors import MissingError
from memprof.loading import load
from memprof.pickles import load_plain_pickle
from memprof.trace import Trace
from memprof.units import format_bytes, format_count
from memprof_cli.progress import progress

__all__ = ["command"]


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print figures as JSON.")
@click.option(
    "--placements",
    type=click.Path(path_type=Path),
    help="Write device,event,predicted_address for every alloc event as CSV.",
)
def command(file: Path, as_json: bool, placements: Path | None) -> None:
    """Check the allocator model against the recording in FILE.

    FILE is a run file of memprof or a snapshot that torch wrote. Every recorded allocation is
    placed by the model; counted is how many land on the address that the allocator gave them.
    """
    traces = [w for d in load(file).devices for w in d.windows]
    if not traces:
        raise MissingError(f"{file} holds no device", "record one with memprof run, or torch")
    replays = [replay_recorded(trace) for trace in progress(traces, "replaying")]
    if placements is not None:
        _write_placements(placements, file, traces, replays)
    if as_json:
        devices = [_figures(replay) for replay in replays]
        click.echo(json.dumps({"file": str(file), "devices": devices}, indent=2))
    else:
        for replay in replays:
            _print(replay)


def _index(device: str) -> int | str:
    return int(device.partition(":")[2]) if ":" in device else device


def _figures(replay: Replay) -> dict[str, Any]:
    return {
        "device": _index(replay.device),
        "events": replay.events,
        "allocs": replay.allocs,
        "exact": replay.exact,
        "undetermined": replay.undetermined,
        "wrong": replay.wrong,
        "reasons": replay.reasons(),
        "segment_allocs": replay.new_segments,
        "segment_allocs_predicted": replay.new_segments_predicted,
        "segment_frees": replay.released_segments,
        "segment_frees_predicted": replay.released_segments_predicted,
        "recorded_peak_reserved_bytes": replay.recorded_peak_reserved,
        "replayed_peak_reserved_bytes": replay.peak_reserved,
        "replayed_peak_allocated_bytes": replay.peak_allocated,
        "settings": replay.settings.text(),
        "tie_break": replay.tie_break.value,
        "notes": list(replay.notes),
    }


def _print(replay: Replay) -> None:
    click.secho(f"{replay.device}", bold=True, nl=False)
    click.echo(f"  {format_count(replay.events)} events, {_settings(replay)}")
    if not replay.events:
        click.echo("  no trace: the file holds a state alone, so there is nothing to replay\n")
        return
    rows = [
        ("allocations placed exactly", _of(replay.exact, replay.allocs)),
        ("new segments predicted", _of(replay.new_segments_predicted, replay.new_segments)),
        (
            "released segments predicted",
            _of(replay.released_segments_predicted, replay.released_segments),
        ),
        ("peak reserved, recorded", format_bytes(replay.recorded_peak_reserved)),
        ("peak reserved, replayed", format_bytes(replay.peak_reserved)),
        *((f"not exact: {reason}", format_count(n)) for reason, n in replay.reasons().items()),
    ]
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        click.echo(f"  {name:{width}}  {value}")
    for note in replay.notes:
        click.echo(f"  note: {note}")
    click.echo()


def _settings(replay: Replay) -> str:
    return replay.settings.text() or "default settings"


def _of(part: int, whole: int) -> str:
    return f"{format_count(part)} of {format_count(whole)}"


def _write_placements(
    path: Path, source: Path, traces: Iterable[Trace], replays: Iterable[Replay]
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


def _rows_in_file(source: Path, trace: Trace) -> Any:
    """For every event its place in the file, which differs where the file was out of order."""
    if not trace.reordered:
        return np.arange(len(trace.events))
    device = _index(trace.device)
    entries = load_plain_pickle(source)["device_traces"][device]
    return np.argsort([entry.get("time_us", -1) for entry in entries], kind="stable")
