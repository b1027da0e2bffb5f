"""The click group that loads one file a command, and the one place where an error ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import NoReturn

import click

from memprof import MemprofError, __version__
from memprof_cli import ABOUT, COMMANDS, EPILOG

__all__ = ["run_command"]

_EXIT_INTERRUPTED = 130
_EXIT_PIPE = 141


class _LazyGroup(click.Group):
    """A group whose commands are imported when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"memprof_cli.{COMMANDS[cmd_name][0]}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            like = get_close_matches(args[0], COMMANDS, n=1)
            if not like or "Did you mean" in error.message:  # later versions of click ask that
                raise
            raise click.UsageError(f"{error.message} Did you mean {like[0]!r}?", ctx) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(
    cls=_LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help=ABOUT,
    epilog=EPILOG,
)
@click.version_option(__version__, "-V", "--version", prog_name="memprof")
def group() -> None:
    """What there is to type; its help is `ABOUT`."""


def run_command(args: Sequence[str] | None = None) -> NoReturn:
    """Run the command line; the only place where a `MemprofError` becomes text and an exit code."""
    try:
        status = group.main(args=args, prog_name="memprof", standalone_mode=False)
    except MemprofError as error:
        _complain(error.message, error.hint)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        sys.exit(_EXIT_INTERRUPTED)
    except FileNotFoundError:
        if _has_folder():
            raise
        _complain("the folder that this was started in was removed", "`cd` to one that is there")
        sys.exit(MemprofError.exit_code)
    except BrokenPipeError:  # `memprof report x | head`: what is left to say has no reader
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(_EXIT_PIPE)
    sys.exit(status if isinstance(status, int) else 0)


def _has_folder() -> bool:
    """Whether the working directory is there still."""
    try:
        Path.cwd()
    except FileNotFoundError:
        return False
    return True


def _complain(message: str, hint: str) -> None:
    click.echo(click.style("error: ", fg="red", bold=True) + message, err=True)
    if hint:
        click.echo(click.style("hint:  ", fg="cyan") + hint, err=True)
