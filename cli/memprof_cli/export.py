"""``memprof export``: a recording as torch's snapshot, for PyTorch's viewers, or as metrics."""

from __future__ import annotations

from pathlib import Path

import click

from memprof.errors import MemprofError, MissingError
from memprof.loading import load
from memprof.runfile.remote_file import Location
from memprof.snapshot.writer import write_torch_snapshot
from memprof.trace import Trace
from memprof_cli.metrics import export_metrics
from memprof_cli.sources import RECORDING

__all__ = ["command"]


@click.command()
@click.argument("file", type=RECORDING)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The snapshot to write [FILE with .pickle].",
)
@click.option(
    "--window",
    type=int,
    default=-1,
    metavar="N",
    help="The window to write, counted from 0 [the last one with an end].",
)
@click.option(
    "--prometheus",
    is_flag=True,
    help="Follow FILE, a folder of ranks or a PID, and serve its metrics instead.",
)
@click.option("--port", type=int, default=9464, show_default=True, help="Where to serve metrics.")
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Another lets other machines scrape."
)
@click.option("--once", is_flag=True, help="Print the metrics by now, and end.")
def command(
    file: Location,
    output: Path | None,
    window: int,
    prometheus: bool,
    port: int,
    host: str,
    once: bool,
) -> None:
    """Write the recording in FILE as a snapshot for pytorch.org/memory_viz, or serve its metrics.

    A snapshot holds one window of each device. Steps, phases and modules become the metadata that
    the viewer shows with each block.
    """
    if prometheus or once:
        export_metrics(str(file), host, port, once=once)
        return
    traces = [
        trace for device in load(file).devices for trace in _chosen_windows(device.windows, window)
    ]
    if not traces:
        which = f"no window {window}" if window >= 0 else "no window that was recorded to its end"
        raise MissingError(f"{file} holds {which}", "`memprof report FILE` says what it holds")
    path = output or _beside(file)
    try:
        write_torch_snapshot(path, traces)
    except OSError as error:
        raise MemprofError(
            f"cannot write {path}: {error.strerror}", "name a file in a folder that exists"
        ) from error
    devices = ", ".join(trace.device for trace in traces)
    click.echo(f"{path} written ({devices}): open it at https://pytorch.org/memory_viz")


def _chosen_windows(windows: tuple[Trace, ...], number: int) -> list[Trace]:
    """The window of that number, where the device has it; with -1 the last that has an end."""
    if number >= 0:
        return [*windows[number : number + 1]]
    return [trace for trace in windows if trace.end is not None][-1:]


def _beside(file: Location) -> Path:
    """``run.json.gz`` -> ``run.pickle``; never the file itself."""
    name = file.name.removesuffix(".gz").removesuffix(".json")
    if name.endswith((".pickle", ".pkl")):
        name = f"{name.rpartition('.')[0]}-exported"
    return file.with_name(f"{name}.pickle")
