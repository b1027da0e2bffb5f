"""The documentation pages about fixes, which every install carries; others show them."""

from __future__ import annotations

import difflib
from pathlib import Path

from memprof.advice.vocabulary import FIXES
from memprof.errors import MissingError, SettingsError

__all__ = ["explained_by", "page"]

_FOLDERS = (
    Path(__file__).with_name("fixes"),
    Path(__file__).resolve().parents[2] / "docs" / "fixes",
)
"""Where a wheel puts the pages, and where a checkout has them."""


def explained_by(fix: str) -> str:
    """What to type to read about a fix."""
    return f"memprof explain {fix}"


def page(fix: str) -> str:
    """The page about a fix, in Markdown.

    Raises:
        SettingsError: there is no such fix.
        MissingError: the install lacks its pages.
    """
    if fix not in FIXES:
        near = difflib.get_close_matches(fix, FIXES, 1)
        meant = f"did you mean {near[0]}? " if near else ""
        raise SettingsError(f"{fix} is no fix", f"{meant}memprof explain lists all of them")
    for folder in _FOLDERS:
        path = folder / f"{fix}.md"
        if path.is_file():
            return path.read_text(encoding="utf-8")
    raise MissingError(
        f"this install of memprof lacks its page about {fix}",
        "install it again: pip install --force-reinstall --no-deps cuda-memprof",
    )
