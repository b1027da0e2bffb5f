"""Applies the unified diffs that memprof offers, as `git apply` does."""

from __future__ import annotations


def patched(source: str, diff: str) -> str:
    """The source after a unified diff, applied strictly: every context line must be there."""
    old, new, at = source.splitlines(keepends=True), [], 0
    for line in diff.splitlines(keepends=True)[2:]:
        if line.startswith("@@"):
            start = int(line.split()[1].lstrip("-").split(",")[0]) - 1
            new += old[at:start]
            at = start
        elif line.startswith("+"):
            new.append(line[1:])
        else:
            assert old[at] == line[1:]
            new += [old[at]] if line.startswith(" ") else []
            at += 1
    return "".join(new + old[at:])
