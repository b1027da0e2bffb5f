"""``memprof attach``: record a process that runs already, or list the processes that use torch."""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path

import click

from memprof.attach.listing import ListedProcess, list_processes
from memprof.attach.recordings import begin
from memprof.record.process import path_of_process
from memprof.units import format_bytes, format_duration, parse_duration_s
from memprof_cli.json_output import print_json

__all__ = ["command", "say_that_it_waits", "timeout_option"]

_DEFAULT_PATH = "memprof-run.json"


def _to_seconds(
    context: click.Context, parameter: click.Parameter, text: str | None
) -> float | None:
    """A duration such as ``10m`` in seconds; None where none is given."""
    del context, parameter
    return None if text is None else parse_duration_s(text)


timeout_option = click.option(
    "--timeout",
    callback=_to_seconds,
    metavar="TIME",
    default="30s",
    show_default=True,
    help="Give up when the process has not run Python for so long.",
)
"""What ``attach`` and ``detach`` wait."""


@click.command(name="attach")
@click.option("-o", "--output", help="The run file. [memprof-run.pidPID.json]")
@click.option(
    "--duration",
    callback=_to_seconds,
    metavar="TIME",
    help="End by itself after 90s, 10m or 1h30m.",
)
@click.option(
    "--inject",
    is_flag=True,
    help="Go in by a debugger (gdb), which stops the process for a moment: a Python before 3.14 "
    "that was not started with MEMPROF=standby has no other door.",
)
@timeout_option
@click.option("--budget", type=float, help="Share of the time that recording may take. [0.01]")
@click.option("--allowance", type=float, help="Seconds that it may take in any case. [10]")
@click.option("--json", "as_json", is_flag=True, help="Print the result, or the list, as JSON.")
@click.argument("pid", type=click.IntRange(min=1), required=False)
def command(
    output: str | None,
    duration: float | None,
    inject: bool,
    timeout: float,
    budget: float | None,
    allowance: float | None,
    as_json: bool,
    pid: int | None,
) -> int:
    """Begin to record process PID, which need not know of memprof; without PID, list those there
    are.

    The job goes on as before. A process that stands by (MEMPROF=standby, or track(standby=True)) is
    asked over a private socket; Python 3.14 and later is asked to run a file; other processes are
    entered with --inject only. End it with memprof detach PID.

    \b
        memprof attach
        memprof attach 4711 -o run.json --duration 10m
    """  # noqa: D205, D301 - click joins the lines, and marks a paragraph with this very character
    if pid is None:
        return _list(as_json=as_json)
    path = os.path.abspath(output or path_of_process(_DEFAULT_PATH, pid))  # noqa: PTH100 - no links
    request = {
        "path": path,
        "duration_s": duration,
        "budget": budget,
        "allowance_s": allowance,
    }
    written = begin(
        pid,
        request,
        inject=inject,
        timeout_s=timeout,
        waits=lambda: say_that_it_waits(pid, timeout),
    )
    if as_json:
        print_json({"pid": pid, "path": written, "duration_s": duration})
        return 0
    ends = f"for {format_duration(duration * 1e6)}" if duration else "until you type"
    click.echo(f"recording process {pid} into {_brief(written)}, {ends}")
    click.echo(f"{'to end it before: ' if duration else '    '}memprof detach {pid}")
    return 0


def say_that_it_waits(pid: int, timeout_s: float) -> None:
    """Told on standard error when a process does not run Python at once."""
    click.echo(
        f"process {pid} has not come to it yet, as in a long call of C++: waiting up to "
        f"{format_duration(timeout_s * 1e6)}; Ctrl-C withdraws the request",
        err=True,
    )


def _brief(path: str) -> str:
    """The path as seen from here."""
    file = Path(path)
    return str(file.relative_to(Path.cwd())) if file.is_relative_to(Path.cwd()) else path


def _list(*, as_json: bool) -> int:
    listing = list_processes()
    if as_json:
        print_json(listing)
        return 0
    if not listing.processes:
        click.echo("no process here that may be looked into has loaded torch")
    else:
        _print_table([_COLUMNS, *map(_row, listing.processes)])
    if not listing.has_driver:
        click.echo("no NVIDIA driver answers, so device memory is not known")
    if listing.unread:
        click.echo(f"{listing.unread} more processes may not be looked into: try as root")
    return 0


_COLUMNS = ("PID", "rank", "runs for", "on devices", "torch", "memprof", "command")


def _print_table(rows: list[tuple[str, ...]]) -> None:
    """Columns as wide as they are; at a terminal the last one ends where the line does."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for row in rows:
        cells = [cell.ljust(n) for cell, n in zip(row[:-1], widths[:-1], strict=True)]
        click.echo("  ".join([*cells, row[-1]])[:width].rstrip())


def _row(process: ListedProcess) -> tuple[str, ...]:
    used = process.device_bytes
    return (
        str(process.pid),
        "-" if process.rank is None else str(process.rank),
        format_duration((time.time() - process.started_s) * 1e6),
        "?" if used is None else format_bytes(used),
        f"{process.torch_version} on {process.python_version}",
        _brief(process.status) if process.status.startswith("/") else process.status or "-",
        " ".join(" ".join(process.command).split())[:_LONGEST],
    )


_LONGEST = 200
"""Characters of a command line, some of which hold a whole program."""
