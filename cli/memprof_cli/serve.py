"""``memprof serve``: the page of ``report`` in the browser, following a job while it runs."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import webbrowser
from pathlib import Path

import click

from memprof.live.watched_runs import WatchedRuns

__all__ = ["command"]

_LONGEST_S = 600
"""A page that takes longer is not made."""


@click.command()
@click.argument("target", default="memprof-run.json", metavar="[FILE|FOLDER|PID]")
@click.option("--port", type=int, default=8750, show_default=True, help="0 takes a free one.")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Another lets other machines in, who have the token of the address.",
)
@click.option(
    "--every",
    "every_s",
    type=click.FloatRange(min=1),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="The least time between two pages.",
)
@click.option("--open", "open_page", is_flag=True, help="Open it in a browser.")
def command(target: str, port: int, host: str, every_s: float, open_page: bool) -> None:
    """Serve the page of a job to a browser, and follow the job while it runs.

    The page is that of `memprof report`, made anew as FILE grows, or of all ranks in FOLDER; PID is
    a process that is recorded. A strip below says every second what is known by now.
    """
    from memprof_dashboards.server import PageServer

    runs = WatchedRuns(target)
    source = runs.runs[0].source if target.isdecimal() and not Path(target).exists() else target
    with tempfile.TemporaryDirectory(prefix="memprof-") as folder:
        server = PageServer(
            runs,
            lambda page: _make(source, page),
            Path(folder),
            host=host,
            port=port,
            every_s=every_s,
        )
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        server.start()
        try:
            click.echo(f"{target}: {server.url} (Ctrl-C ends)")
            if open_page:
                webbrowser.open(server.url)
            while True:
                signal.pause() if hasattr(signal, "pause") else input()
        except (KeyboardInterrupt, EOFError):
            return
        finally:
            server.close()


def _make(source: str, page: Path) -> str:
    """Write the page in a process of its own, whose memory is given back; why it failed, if so."""
    words = ["report", source, "-o", str(page)]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "memprof_cli", *words],
            check=False,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=_LONGEST_S,
        )
    except subprocess.TimeoutExpired:
        return "the page took too long to make: `memprof leaks` says more"
    if done.returncode == 0:
        return ""
    lines = done.stderr.strip().splitlines() or [f"exit {done.returncode}"]
    return lines[-1] if lines[0].startswith("Traceback") else lines[0]
