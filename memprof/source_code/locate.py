"""A run whose source files are named as they lie on this machine, each known by its digest.

A job may have run elsewhere, under other paths, and a path that is here may hold another text.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import msgspec

from memprof.records import Finding, Holder
from memprof.reference_chain import Link
from memprof.run import Run
from memprof.runfile.source_digests import MOST_BYTES, digest_of
from memprof.source_code.frame_kind import FrameKind, frame_kind
from memprof.trace import Frame, Tables, Trace

__all__ = ["located", "not_here"]

_WithFilename = TypeVar("_WithFilename", Holder, Link)


def located(run: Run, roots: Sequence[Path]) -> Run:
    """``run`` with files that are not here as they ran named as those below ``roots`` that are.

    A file below a root is the recorded one when it has its digest and lies there under the last
    parts of its path, the more of them the better. Where there is none, and another text lies under
    the recorded name, the frames say so. Files without a digest keep their names.
    """
    folders = [root.absolute() for root in roots]
    paths = {name: _locate_file(name, digest, folders) for name, digest in run.digests.items()}
    names = {name: path for name, path in paths.items() if path not in ("", name)}
    changed = {name for name, path in paths.items() if not path and Path(name).exists()}
    return _with_located_files(run, names, changed) if names or changed else run


def not_here(run: Run) -> list[str]:
    """The program's files with a digest that are not on this machine as they ran."""
    return [
        name
        for name, digest in run.digests.items()
        if frame_kind(name) is FrameKind.USER and not _is(Path(name), digest)
    ]


def _locate_file(name: str, digest: str, folders: Sequence[Path]) -> str:
    """The name of the file with that digest; empty where there is none."""
    if frame_kind(name) is not FrameKind.USER:
        return ""
    if _is(Path(name), digest):
        return name
    return next((str(path) for path in _candidates(name, folders) if _is(path, digest)), "")


def _candidates(name: str, folders: Sequence[Path]) -> Iterator[Path]:
    """``/home/me/project/train.py`` as ``project/train.py`` and ``train.py`` below each folder."""
    parts = posixpath.normpath(name.replace("\\", "/")).split("/")
    for first in range(len(parts)):
        if parts[first] not in ("", ".."):
            yield from (folder.joinpath(*parts[first:]) for folder in folders)


def _is(path: Path, digest: str) -> bool:
    try:
        if not path.is_file() or path.stat().st_size > MOST_BYTES:
            return False
        return digest_of(path.read_bytes()) == digest
    except (OSError, ValueError):  # ValueError: no file can have such a name
        return False


# -- the same run, told of other files ---------------------------------------------------------


def _with_located_files(run: Run, names: dict[str, str], changed: set[str]) -> Run:
    tables: dict[int, Tables] = {}
    for device in run.devices:
        for trace in device.windows:
            if id(trace.tables) not in tables:
                tables[id(trace.tables)] = _tables(trace.tables, names, changed)
    return replace(
        run,
        devices=tuple(
            replace(device, windows=tuple(_trace(trace, tables) for trace in device.windows))
            for device in run.devices
        ),
        findings=tuple(_finding(finding, names) for finding in run.findings),
        digests={names.get(name, name): digest for name, digest in run.digests.items()},
    )


def _tables(tables: Tables, names: dict[str, str], changed: set[str]) -> Tables:
    frames = (
        Frame(f.name, names.get(f.filename, f.filename), f.line, f.filename in changed)
        for f in tables.frames
    )
    return replace(tables, frames=tuple(frames))


def _trace(trace: Trace, tables: dict[int, Tables]) -> Trace:
    return replace(trace, tables=tables[id(trace.tables)])


def _finding(finding: Finding, names: dict[str, str]) -> Finding:
    return msgspec.structs.replace(finding, holders=[_holder(h, names) for h in finding.holders])


def _holder(holder: Holder, names: dict[str, str]) -> Holder:
    links = [_with_name(link, names) for link in holder.links]
    return msgspec.structs.replace(_with_name(holder, names), links=links)


def _with_name(record: _WithFilename, names: dict[str, str]) -> _WithFilename:
    filename = names.get(record.filename, record.filename)
    renamed: _WithFilename = msgspec.structs.replace(record, filename=filename)
    return renamed
