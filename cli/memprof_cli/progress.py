"""A progress bar on a terminal and nothing in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TypeVar

__all__ = ["progress"]

T = TypeVar("T")


def progress(items: Sequence[T], doing: str) -> Iterator[T]:
    """``items`` one by one, with a bar on standard error while that is a terminal."""
    if not sys.stderr.isatty():
        yield from items
        return
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    yield from track(items, description=doing, console=console, transient=True)
