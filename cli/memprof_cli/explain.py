"""``memprof explain``: the page about a rule or a fix, in the terminal."""

from __future__ import annotations

import click
from rich.console import Console
from rich.markdown import Markdown

from memprof.rules.pages import page, summaries

__all__ = ["command"]

_WIDTH = 100


@click.command()
@click.argument("name", required=False, default="")
def command(name: str) -> None:
    """Show the page about a rule or a fix: the pattern, why it costs memory, what to change.

    NAME is one that `memprof leaks` prints, such as detach. Without it all of them are listed.
    """
    if not name:
        kinds = summaries()
        width = max(len(one) for names in kinds.values() for one in names)
        for kind, names in kinds.items():
            click.echo(f"{kind}:")
            for one, text in names.items():
                click.echo(f"  {one:<{width}}  {text}")
        return
    text = page(name)
    console = Console(highlight=False)
    if not console.is_terminal:
        click.echo(text)
        return
    console.width = min(console.width, _WIDTH)
    console.print(Markdown(text, code_theme="ansi_dark", hyperlinks=False))
