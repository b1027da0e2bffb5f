"""The option that names where a run's source lies, and a recording opened with that in mind."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from memprof.loading import load
from memprof.run import Run
from memprof.source_code.locate import located

__all__ = ["opened", "source_option"]

source_option = click.option(
    "--source",
    "roots",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="FOLDER",
    help="Where the program's source is, if it ran elsewhere; the current folder is searched too. "
    "A file is used only if its text is what ran.",
)


def opened(file: Path, roots: Sequence[Path]) -> Run:
    """The recording in ``file``, its source files named as they lie here."""
    return located(load(file), [*roots, Path.cwd()])
