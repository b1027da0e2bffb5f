"""Several patches as one diff a file: their changes put together where they do not overlap."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from memprof.source_code.parse import syntax_tree
from memprof.source_code.patch import patched_file, unified
from memprof.source_code.program import lines_of, program_of

__all__ = ["MergedPatch", "merged"]

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? ")


@dataclass(frozen=True, slots=True)
class MergedPatch:
    """One diff for all files."""

    text: str
    patch_count: int
    """Patches that are in it."""
    left_out: int
    """Patches that change the same lines as one that is in it, in another way."""


@dataclass(frozen=True, slots=True, order=True)
class _Change:
    """Lines of a file, counted from 0, ``last`` not included, and what stands there instead."""

    first: int
    last: int
    lines: tuple[str, ...]

    def meets(self, other: _Change) -> bool:
        """True if both cannot be made, or not in an order that is sure."""
        if self == other:
            return False
        if self.first == self.last or other.first == other.last:  # lines that are only added
            return self.first <= other.last and other.first <= self.last
        return self.first < other.last and other.first < self.last


def merged(patches: Iterable[str], root: Path) -> MergedPatch:
    """Patches, the first ones first, as one text for ``git apply`` in ``root``.

    Files below ``root`` are named from there (``a/train.py``), others by their whole path.
    """
    by_file: dict[str, list[list[_Change]]] = {}
    for patch in dict.fromkeys(patches):
        by_file.setdefault(patched_file(patch), []).append(list(_changes(patch)))
    texts, count, left_out = [], 0, 0
    for filename, patch_text in by_file.items():
        program = program_of(filename)
        if program is None:
            continue
        earlier: list[_Change] = []
        text = program.text
        for changes in patch_text:
            all_changes = sorted({*earlier, *changes})
            made_of = (
                "" if _overlap(earlier, changes) else _apply_changes(program.text, all_changes)
            )
            if made_of and syntax_tree(made_of) is not None:
                earlier, text, count = all_changes, made_of, count + 1
            else:
                left_out += 1
        texts.append(unified(program.text, text, *_names(filename, root)))
    return MergedPatch("".join(texts), count, left_out)


def _names(filename: str, root: Path) -> tuple[str, str]:
    try:
        inside = Path(filename).resolve().relative_to(root.resolve()).as_posix()
    except ValueError:
        return filename, filename
    return f"a/{inside}", f"b/{inside}"


def _changes(patch: str) -> Iterator[_Change]:
    """The changed lines of a unified diff, neighbours together."""
    at, first, sign = 0, 0, ""
    new: list[str] = []
    for line in [*patch.split("\n")[2:-1], ""]:
        if line.startswith("\\"):  # the line before has no end
            new[-1:] = [one.removesuffix("\n") for one in new[-1:]]
            continue
        sign = line[:1]
        if sign == "+":
            new.append(f"{line[1:]}\n")
        elif sign == "-":
            at += 1
        else:
            if at > first or new:
                yield _Change(first, at, tuple(new))
            hunk = _HUNK.match(line)
            at = at + 1 if hunk is None else int(hunk[1]) - (hunk[2] != "0")
            first, new = at, []


def _overlap(earlier: Sequence[_Change], changes: Sequence[_Change]) -> bool:
    return any(one.meets(other) for one in earlier for other in changes)


def _apply_changes(text: str, changes: Sequence[_Change]) -> str:
    lines = lines_of(text)
    for change in reversed(changes):
        lines[change.first : change.last] = change.lines
    return "".join(lines)
