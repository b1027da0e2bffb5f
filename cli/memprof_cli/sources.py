"""How a command is given a recording, here or at a URL, and where its program's source lies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from memprof.loading import load
from memprof.run import Run
from memprof.runfile.remote_file import Location, location
from memprof.source_code.locate import located

__all__ = ["RECORDING", "open_run", "source_option"]


class _Recording(click.ParamType["Location"]):
    """A file here, or a URL that fsspec knows."""

    name = "recording"

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,  # noqa: ARG002 - click's signature
        ctx: click.Context | None,  # noqa: ARG002
    ) -> Location:
        return location(value)


RECORDING = _Recording()

source_option = click.option(
    "--source",
    "roots",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="FOLDER",
    help="Where the program's source is, if it ran elsewhere; the current folder is searched too. "
    "A file is used only if its text is what ran.",
)


def open_run(file: Location, roots: Sequence[Path]) -> Run:
    """The recording in ``file``, its source files named as they lie here."""
    return located(load(file), [*roots, Path.cwd()])
