"""``memprof detach``: end a recording that ``memprof attach`` began."""

from __future__ import annotations

import click

from memprof.attach.recordings import end
from memprof_cli.attach import say_that_it_waits, timeout_option
from memprof_cli.json_output import print_json

__all__ = ["command"]


@click.command(name="detach")
@click.option(
    "--stay",
    is_flag=True,
    help="Leave the process standing by, so that the next attach needs no debugger.",
)
@timeout_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.argument("pid", type=click.IntRange(min=1))
def command(stay: bool, timeout: float, as_json: bool, pid: int) -> int:
    """End the recording of process PID that memprof attach began; the job goes on as before.

    No hook, thread, file or socket is left in it; modules that were imported stay.
    """
    path = end(pid, stay=stay, timeout_s=timeout, waits=lambda: say_that_it_waits(pid, timeout))
    if as_json:
        print_json({"pid": pid, "path": path})
        return 0
    click.echo(f"recorded {path}; next: memprof report {path}")
    return 0
