"""``memprof run``: a script or a module, run as plain python would, and recorded."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import click

from memprof.record.process import DEFAULT_PATH

__all__ = ["command"]


@click.command(
    name="run",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option("-o", "--output", default=DEFAULT_PATH, show_default=True, help="The run file.")
@click.option("--budget", type=float, help="Share of the time that recording may take. [0.01]")
@click.option("--allowance", type=float, help="Seconds that it may take in any case. [10]")
@click.option("--window-steps", type=int, help="Steps in each window after the first one. [5]")
@click.option("--max-events", type=int, help="Most events in the file. [2000000]")
@click.option("--max-bytes", type=int, help="Most bytes of events in the file. [46137344]")
@click.option("--sample-interval", type=float, help="Seconds between readings of driver, host. [1]")
@click.option("-q", "--quiet", is_flag=True, help="Do not say at the end what to type next.")
@click.option("-m", "as_module", is_flag=True, help="Run a module, like python -m.")
@click.option("--prometheus", metavar="[HOST:]PORT", help="Serve metrics there while it runs.")
@click.argument("program", nargs=-1, type=click.UNPROCESSED, required=True)
def command(  # noqa: PLR0917 - click names them all
    output: str,
    budget: float | None,
    allowance: float | None,
    window_steps: int | None,
    max_events: int | None,
    max_bytes: int | None,
    sample_interval: float | None,
    quiet: bool,
    prometheus: str | None,
    as_module: bool,
    program: tuple[str, ...],
) -> int:
    """Run PROGRAM (a script or, with -m, a module) with its arguments, and record its memory.

    It runs as plain python would run it, and the exit status is the program's. A short run is
    recorded whole. In a long one, windows of a few steps are recorded as far as --budget allows.

    \b
        memprof run train.py --epochs 3
        memprof run -o run.json -m mypackage.train
    """  # noqa: D301 - click marks a paragraph to be left as it is with this very character
    values = {
        "budget": budget,
        "sample_interval_s": sample_interval,
        "window_steps": window_steps,
        "max_events": max_events,
        "max_bytes": max_bytes,
        "allowance_s": allowance,
        "prometheus": prometheus,
    }
    options = {name: value for name, value in values.items() if value is not None}
    description = json.dumps({"path": output, "quiet": quiet, **options})
    words = [description, *(["-m"] if as_module else []), *program]
    return _replace_this_process(["-m", "memprof.record.launch", *words])


def _replace_this_process(arguments: list[str]) -> int:
    """Go on as a fresh interpreter, so that neither click nor our frames are in the job."""
    python = [sys.executable, *subprocess._args_from_interpreter_flags(), *arguments]  # type: ignore[attr-defined]
    if os.name != "nt":  # there exec leaves the shell behind with a finished process
        sys.stdout.flush()
        sys.stderr.flush()
        os.execv(sys.executable, python)  # noqa: S606 - no shell is wanted
    return subprocess.call(python)
