"""``memprof explain``: the page about a fix, in the terminal."""

from __future__ import annotations

import click
from rich.console import Console
from rich.markdown import Markdown

from memprof.advice.pages import page
from memprof.advice.vocabulary import FIXES

__all__ = ["command"]

_WIDTH = 100


@click.command()
@click.argument("fix", required=False, default="")
def command(fix: str) -> None:
    """Show the page about FIX: the pattern, why it costs memory, the fix, when not to.

    FIX is a name that `memprof leaks` prints, such as detach. Without it all of them are listed.
    """
    if not fix:
        width = max(map(len, FIXES))
        click.echo("\n".join(f"{name:<{width}}  {text}" for name, text in FIXES.items()))
        return
    text = page(fix)
    console = Console(highlight=False)
    if not console.is_terminal:
        click.echo(text)
        return
    console.width = min(console.width, _WIDTH)
    console.print(Markdown(text, code_theme="ansi_dark", hyperlinks=False))
