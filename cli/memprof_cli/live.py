"""``memprof live``: a screen that follows a job while it runs."""

from __future__ import annotations

import sys

import click

from memprof.errors import MemprofError, MissingError

__all__ = ["command"]


@click.command()
@click.argument("target", default="memprof-run.json", metavar="[FILE|FOLDER|PID]")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="How often to look for what is new.",
)
@click.option(
    "--screenshot",
    type=click.Path(dir_okay=False),
    metavar="FILE.svg",
    help="Write the screen as a picture and end.",
)
def command(target: str, interval: float, screenshot: str | None) -> None:
    """Watch a job: memory over time, owners, steps, findings and when memory is full.

    FILE is a run file that a job writes, FOLDER one with the files of its ranks, PID the process of
    a job that is recorded. Files on a file system that machines share work too.
    """
    from memprof.live.watched_runs import WatchedRuns

    try:
        from memprof_cli.live_screen import LiveScreen
    except ImportError as error:
        raise MissingError(
            f"memprof live needs textual, which is not here: {error}",
            "pip install 'cuda-memprof[live]'",
        ) from error
    runs = WatchedRuns(target)
    if screenshot is None and not sys.stdout.isatty():
        raise MemprofError(
            "memprof live draws on a terminal, and this is none",
            f"`memprof report {target}` prints what is known by now",
        )
    screen = LiveScreen(runs, interval_s=interval, picture=screenshot)
    screen.run(headless=screenshot is not None, size=(120, 40) if screenshot is not None else None)
    if screenshot is not None:
        click.echo(f"picture: {screenshot}")
