"""The page's style, its scripts and Plotly's own, as text to put into one file."""

from __future__ import annotations

import base64
import gzip
import importlib.util
from collections.abc import Sequence
from functools import lru_cache
from importlib import resources
from pathlib import Path

from memprof.errors import MissingError

__all__ = ["JOB_SCRIPTS", "SCRIPTS", "packed", "plotly_script", "script", "style"]

# In the order in which they run: each but the last adds to what the first defines.
SCRIPTS = (
    "core.js",
    "format.js",
    "stacks.js",
    "marks.js",
    "memory.js",
    "readings.js",
    "owners.js",
    "steps.js",
    "segments.js",
    "findings.js",
    "start.js",
    "main.js",
)


def style() -> str:
    """The style sheet."""
    return _static("page.css")


JOB_SCRIPTS = ("core.js", "format.js", "start.js", "ranks.js")
"""Likewise, of the page about the ranks of a job."""


def script(names: Sequence[str]) -> str:
    """The scripts of a page, as one."""
    return "\n".join(_static(name) for name in names)


def _static(name: str) -> str:
    return (
        resources.files(__package__).joinpath("static").joinpath(name).read_text(encoding="utf-8")
    )


def packed(data: bytes) -> str:
    """``data`` compressed, as text that is inert in HTML; browsers since 2023 unpack it."""
    # Level 5 is within 4 % of the smallest, in half the time; mtime 0 makes pages reproducible.
    return base64.b64encode(gzip.compress(data, compresslevel=5, mtime=0)).decode("ascii")


@lru_cache(maxsize=1)
def plotly_script() -> str:
    """Plotly's script from the installed package, `packed`: 2 MB in place of 4.8.

    The package is located, not imported: importing it takes longer than making the page.

    Raises:
        MissingError: plotly is not installed, or without its script.
    """
    spec = importlib.util.find_spec("plotly")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder, "package_data", "plotly.min.js")
        if path.is_file():
            return packed(path.read_bytes())
    raise MissingError("plotly is not installed whole", "pip install --force-reinstall plotly")
