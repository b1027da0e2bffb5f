"""The console that every command writes to; what is written there is the commands' own."""

from __future__ import annotations

from rich.console import Console

__all__ = ["terminal"]


def terminal(width: int) -> Console:
    """A console as wide as the terminal, and ``width`` columns wide in a pipe.

    It takes every word as it is: a file or a module may well be called ``layers[/x]``, which is
    markup to rich, or ``:fire:``, which is an emoji.
    """
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = width
    return console
