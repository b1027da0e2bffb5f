"""The documentation pages about rules and fixes, which every install carries."""

from __future__ import annotations

import difflib
from pathlib import Path

from memprof.errors import MissingError, SettingsError
from memprof.rules.fixes import FIXES
from memprof.rules.load_rules import rules

__all__ = ["explained_by", "page", "summaries"]

_HERE = Path(__file__)
FOLDERS = {
    kind: (_HERE.with_name(f"{kind}_pages"), _HERE.resolve().parents[2] / "docs" / kind)
    for kind in ("rules", "fixes")
}
"""Where a wheel puts the pages, and where a checkout has them."""


def explained_by(name: str) -> str:
    """What to type to read about a rule or a fix."""
    return f"memprof explain {name}"


def summaries() -> dict[str, dict[str, str]]:
    """One line about every rule and every fix, by name: ``{"rules": …, "fixes": …}``."""
    return {
        "rules": {rule.name: rule.summary for rule in rules()},
        "fixes": dict(FIXES),
    }


def page(name: str) -> str:
    """The page about a rule or a fix, in Markdown.

    Raises:
        SettingsError: there is neither of that name.
        MissingError: the install lacks its pages.
    """
    kinds = summaries()
    kind = next((kind for kind, names in kinds.items() if name in names), "")
    if not kind:
        near = difflib.get_close_matches(name, [*kinds["rules"], *kinds["fixes"]], 1)
        suggestion = f"did you mean {near[0]}? " if near else ""
        raise SettingsError(
            f"{name} is no rule and no fix", f"{suggestion}memprof explain lists all of them"
        )
    for folder in FOLDERS[kind]:
        path = folder / f"{name}.md"
        if path.is_file():
            return path.read_text(encoding="utf-8")
    raise MissingError(
        f"this install of memprof lacks its page about {name}",
        "install it again: pip install --force-reinstall --no-deps cuda-memprof",
    )
