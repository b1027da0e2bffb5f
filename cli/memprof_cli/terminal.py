"""The console that every command writes to; what is written there is the commands' own."""

from __future__ import annotations

import os
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from memprof_dashboards.text import visible

__all__ = ["terminal"]


class _Spelling(Console):
    """Spells out control characters: a name in a file must not command the reader's terminal."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(_spelt(segment.text), segment.style)


def _spelt(text: str) -> str:
    return text if text.isprintable() else "\n".join(visible(x, len(x)) for x in text.split("\n"))


def terminal(width: int) -> Console:
    """A console as wide as the terminal or ``COLUMNS``; in a pipe ``width`` columns wide.

    It takes every word as it is: a file or a module may well be called ``layers[/x]``, which is
    markup to rich, or ``:fire:``, which is an emoji.
    """
    console = _Spelling(highlight=False, markup=False, emoji=False)
    if not console.is_terminal and not os.environ.get("COLUMNS", "").isdigit():
        console.width = width
    return console
