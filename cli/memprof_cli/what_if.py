"""``memprof what-if``: a recording replayed on another card or under other settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import click
from rich.console import Console
from rich.table import Table

from memprof.allocator import MODELLED, OutOfMemory
from memprof.runfile.remote_file import Location
from memprof.trace import Trace
from memprof.units import format_bytes, format_count
from memprof.views.sites import site_name, sites
from memprof.what_if.changed_run import (
    OUTSIDE_TORCH,
    DeviceWhatIf,
    Fit,
    Row,
    replay,
)
from memprof_cli.json_output import StackFrame, known_or_none, print_json
from memprof_cli.sources import RECORDING
from memprof_cli.terminal import terminal

__all__ = ["command"]

WIDTH = 140
_FIGURES = ("allocated", "reserved", "unused", "largest free", "mallocs", "frees", "retries")
_MOST_TOLD = 3
"""Of them in a narrow terminal."""
_LEAST_WIDTH = 116
"""Columns that all of them take beside a configuration."""
_ALIVE = 5
_NAME_WIDTH = 30
_EXPLAINED = 2
"""Rows that run out of memory and are told in full; ``--json`` has them all."""
_NOTICEABLE = 0.01
"""Of the reserved bytes: less than that is not worth another setting."""


@click.command()
@click.argument("file", type=RECORDING)
@click.option("--gpu", metavar="SIZE", help="A card that leaves torch SIZE bytes, such as 24GiB.")
@click.option(
    "--alloc-conf",
    "alloc_confs",
    multiple=True,
    metavar="SETTINGS",
    help="Settings as in PYTORCH_CUDA_ALLOC_CONF; may be given several times.",
)
@click.option(
    "--free-after",
    metavar="SITE",
    help="Free what SITE allocated (function, file.py or file.py:12) when its step ends.",
)
@click.option("--search", is_flag=True, help="Try a sensible set of settings and rank them.")
@click.option("--fit", is_flag=True, help="Find the smallest card that the run fits on.")
@click.option("--json", "as_json", is_flag=True, help="Print figures as JSON.")
def command(
    file: Location,
    gpu: str | None,
    alloc_confs: Sequence[str],
    free_after: str | None,
    search: bool,
    fit: bool,
    as_json: bool,
) -> None:
    """Replay the recording in FILE on another card or under other settings: one row for each.

    The allocator model places every allocation of FILE again. With no option it tries a set of
    settings and ranks them, as --search does.
    """
    search = search or not (gpu or alloc_confs or free_after or fit)
    devices = replay(
        file, tuple(alloc_confs), gpu=gpu, free_after=free_after, search=search, fit=fit
    )
    if as_json:
        print_json({"file": str(file), "devices": [_device(device) for device in devices]})
        return
    console = terminal(WIDTH)
    for device in devices:
        conclusion = _conclusion(device, file) if search else ""
        _print(console, device, conclusion or (_fits(device) if gpu else ""))


@dataclass(frozen=True, slots=True)
class _Alive:
    """Blocks of one line that were alive."""

    site: str
    bytes: int
    count: int


@dataclass(frozen=True, slots=True)
class _OutOfMemory:
    """The request at which a replay ran out of memory."""

    event: int
    step: int | None
    requested_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    largest_free_block_bytes: int
    stack: list[StackFrame]
    alive: list[_Alive]


@dataclass(frozen=True, slots=True)
class _ConfigurationRow:
    """What the recording comes to under one configuration."""

    configuration: str
    capacity_bytes: int | None
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    peak_window: int
    peak_event: int
    unallocated_bytes_at_peak: int
    largest_free_block_bytes_at_peak: int
    cuda_mallocs: int
    cuda_frees: int
    retries: int
    oom: _OutOfMemory | None
    notes: list[str]


@dataclass(frozen=True, slots=True)
class _Fit:
    """The smallest card for one configuration."""

    configuration: str
    bytes: int
    card_bytes: int | None
    retries: int


@dataclass(frozen=True, slots=True)
class _DeviceComparison:
    """A device as ``memprof what-if --json`` prints it; `docs/what-if.md` explains the fields."""

    device: int | str
    rows: list[_ConfigurationRow]
    fits: list[_Fit]


def _device(device: DeviceWhatIf) -> _DeviceComparison:
    name = device.device
    return _DeviceComparison(
        device=int(name.partition(":")[2]) if ":" in name else name,
        rows=[_row(row, device.traces[row.window]) for row in device.rows],
        fits=[
            _Fit(fit.configuration, fit.bytes, fit.card or None, fit.retries) for fit in device.fits
        ],
    )


def _row(row: Row, trace: Trace) -> _ConfigurationRow:
    outcome = row.outcome
    return _ConfigurationRow(
        configuration=row.configuration,
        capacity_bytes=row.capacity or None,
        peak_allocated_bytes=outcome.peak_allocated,
        peak_reserved_bytes=outcome.peak_reserved,
        peak_window=row.window,
        peak_event=outcome.peak_event,
        unallocated_bytes_at_peak=outcome.unallocated,
        largest_free_block_bytes_at_peak=outcome.largest_free,
        cuda_mallocs=outcome.driver_allocs,
        cuda_frees=outcome.driver_frees,
        retries=outcome.retries,
        oom=None if outcome.oom is None else _failure(outcome.oom, trace),
        notes=list(outcome.notes),
    )


def _failure(oom: OutOfMemory, trace: Trace) -> _OutOfMemory:
    stack = trace.stack(int(trace.events.stack[oom.event])) if oom.event >= 0 else ()
    places = sites(trace.tables)
    return _OutOfMemory(
        event=oom.event,
        step=_step(oom, trace),
        requested_bytes=oom.requested,
        allocated_bytes=oom.allocated,
        reserved_bytes=oom.reserved,
        largest_free_block_bytes=oom.largest_free,
        stack=[StackFrame(frame.name, frame.filename, frame.line) for frame in stack],
        alive=[
            _Alive(site_name(places.frames[places.of_stack[group.stack]]), group.bytes, group.count)
            for group in oom.alive
        ],
    )


def _step(oom: OutOfMemory, trace: Trace) -> int | None:
    if oom.event < 0:
        return None
    return known_or_none(trace.label(int(trace.events.label[oom.event])).step)


def _print(console: Console, device: DeviceWhatIf, conclusion: str) -> None:
    table = Table(title=device.device, title_justify="left", box=None, pad_edge=False)
    figures = _FIGURES if console.width >= _LEAST_WIDTH else _FIGURES[:_MOST_TOLD]
    table.add_column("configuration", overflow="fold", min_width=_NAME_WIDTH)
    for name in figures:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("out of memory", no_wrap=True)
    for row in device.rows:
        name, *cells, end = _cells(row, device.traces[row.window])
        table.add_row(name, *cells[: len(figures)], end)
    console.print(table)
    if figures != _FIGURES:
        console.print(f"a terminal of {_LEAST_WIDTH} columns shows more", style="dim")
    failed = [row for row in device.rows if row.outcome.oom is not None]
    for row in failed[:_EXPLAINED]:
        _print_oom(console, row, device.traces[row.window])
    card = device.rows[-1].capacity
    if card:
        console.print(f"replayed with {format_bytes(card)} for torch", style="dim")
    notes = dict.fromkeys(note for row in device.rows for note in row.outcome.notes)
    if any(trace.modelled for trace in device.traces):
        notes[MODELLED] = None
    for note in notes:
        console.print(f"note: {note}", style="dim")
    for fit in device.fits:
        console.print(_fit_line(fit))
    if conclusion:
        console.print(conclusion, soft_wrap=True)  # what is to be copied stays in one piece
    console.print()


def _cells(row: Row, trace: Trace) -> tuple[str, ...]:
    outcome = row.outcome
    end = "no"
    if outcome.oom is not None:
        step = _step(outcome.oom, trace)
        end = "at the start" if outcome.oom.event < 0 else f"at event {outcome.oom.event}"
        end = end if step is None else f"in step {step}"
    return (
        row.configuration,
        format_bytes(outcome.peak_allocated),
        format_bytes(outcome.peak_reserved),
        format_bytes(outcome.unallocated),
        format_bytes(outcome.largest_free),
        format_count(outcome.driver_allocs),
        format_count(outcome.driver_frees),
        format_count(outcome.retries),
        end,
    )


def _print_oom(console: Console, row: Row, trace: Trace) -> None:
    oom, site_table = row.outcome.oom, sites(trace.tables)
    if oom is None:
        return
    console.print(
        f"{row.configuration}: {format_bytes(oom.requested)} asked for with "
        f"{format_bytes(oom.allocated)} allocated and {format_bytes(oom.reserved)} reserved "
        f"(largest free block {format_bytes(oom.largest_free)})"
    )
    if oom.event >= 0:
        where = site_table.frames[site_table.of_stack[int(trace.events.stack[oom.event])]]
        console.print(f"  asked by {site_name(where)}")
    for name, (nbytes, count) in _by_line(oom, trace)[:_ALIVE]:
        blocks = "1 block" if count == 1 else f"{format_count(count)} blocks"
        console.print(f"  {format_bytes(nbytes):>9} in {blocks}: {name}")


def _by_line(oom: OutOfMemory, trace: Trace) -> list[tuple[str, tuple[int, int]]]:
    """Bytes and blocks that were alive, by the line that made them, most bytes first."""
    site_table = sites(trace.tables)
    lines: dict[str, tuple[int, int]] = {}
    for group in oom.alive:
        name = site_name(site_table.frames[site_table.of_stack[group.stack]])
        nbytes, count = lines.get(name, (0, 0))
        lines[name] = nbytes + group.bytes, count + group.count
    return sorted(lines.items(), key=lambda line: -line[1][0])


def _conclusion(device: DeviceWhatIf, file: Location) -> str:
    """What the ranked rows come to, against the recorded settings under the same conditions."""
    base = _recorded_settings(device.rows)
    best = next((row for row in device.rows[1:] if row is not base), None)
    if best is None:
        return ""
    if best.outcome.oom is not None:
        failed = device.rows[0].outcome.oom is not None
        then = f"`memprof oom {file}` says what would" if failed else "--fit finds a card that does"
        return f"none of these settings lets it go on: {then}"
    less = base.outcome.peak_reserved - best.outcome.peak_reserved
    if base.outcome.oom is not None:
        saving = "it goes on with"
    elif less > _NOTICEABLE * base.outcome.peak_reserved:
        saving = f"{format_bytes(less)} less would be reserved with"
    else:
        return "none of these settings reserves noticeably less than the recorded ones"
    if not best.settings:
        return f"{saving} torch's default settings: leave PYTORCH_CUDA_ALLOC_CONF unset"
    return f"{saving} PYTORCH_CUDA_ALLOC_CONF={best.settings}"


def _fits(device: DeviceWhatIf) -> str:
    """Whether the run goes through on the card that was asked about, and with what to spare."""
    rows = [row for row in device.rows if row.capacity] or list(device.rows)
    best = min(rows, key=lambda row: (row.outcome.oom is not None, row.outcome.peak_reserved))
    with_ = f" with {best.configuration}" if len(rows) > 1 else ""
    card = format_bytes(best.capacity) if best.capacity else "the card"
    if best.outcome.oom is not None:
        return f"does not fit in {card}{with_}"
    spare_bytes = best.capacity - best.outcome.peak_reserved
    spare = f", {format_bytes(spare_bytes)} to spare" if best.capacity else ""
    return f"fits in {card}{with_}{spare}"


def _recorded_settings(rows: Sequence[Row]) -> Row:
    """The row of the recorded settings that is most like the others: afresh, on the same card."""
    first_row, *replayed = rows
    same = [row for row in replayed if row.settings is None]
    return next((row for row in same if row.afresh), same[0] if same else first_row)


def _fit_line(fit: Fit) -> str:
    card = f"a card of {format_bytes(fit.card)}" if fit.card else "no common card"
    number = "1 retry" if fit.retries == 1 else f"{fit.retries} retries"
    retries = f", with {number}" if fit.retries else ""
    return (
        f"{fit.configuration}: fits in {format_bytes(fit.bytes)}{retries}; {card} "
        f"(torch's own bytes and {format_bytes(OUTSIDE_TORCH)} for CUDA itself)"
    )
