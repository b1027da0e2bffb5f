"""How every command prints its results as JSON: typed records in, one text out."""

from __future__ import annotations

import json
from dataclasses import dataclass

import click
import msgspec

__all__ = ["StackFrame", "known_or_none", "print_json"]


@dataclass(frozen=True, slots=True)
class StackFrame:
    """One frame of a stack."""

    name: str
    filename: str
    line: int


def print_json(result: object) -> None:
    """Print a result, a dataclass or struct or a mapping of such, as indented JSON.

    The text is ASCII: it goes through any pipe, and names of files may hold bytes that are no
    UTF-8, which `msgspec.json` would refuse.
    """
    click.echo(json.dumps(msgspec.to_builtins(result), indent=2))


def known_or_none(number: int) -> int | None:
    """A number, or None where it is negative: ``null`` says that it was not recorded."""
    return number if number >= 0 else None
