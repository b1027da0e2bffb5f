"""The work on one rank as tasks that any process can do: read its ends, judge its recording.

They take and return what can be pickled, and reach nothing but the file and the program's source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from memprof.errors import MemprofError
from memprof.loading import load, looks_like_run
from memprof.ranks.figures import footer_of
from memprof.ranks.merge_findings import RankFinding, of_rank
from memprof.ranks.report import LeftOut
from memprof.records import Footer, Header
from memprof.rules.ranked_findings import findings
from memprof.runfile.head_and_tail import read_ends
from memprof.runfile.remote_file import Location, RemoteFile
from memprof.source_code.locate import located

__all__ = ["RankFile", "judge_rank", "read_rank"]


@dataclass(frozen=True, slots=True)
class RankFile:
    """One file that could be read."""

    path: Location
    header: Header
    footer: Footer
    is_closed: bool


def read_rank(file: Location, *, folder: Path) -> RankFile | LeftOut:
    """What a file's two ends say, or why it is left out; relative paths start from ``folder``."""
    place = _place(file, folder)
    try:
        return _recording(file, place)
    except MemprofError as error:
        return _left_out(file, place, error, "")


def judge_rank(
    file: Location, *, folder: Path, roots: Sequence[Path] | None
) -> tuple[RankFinding, ...] | LeftOut:
    """The findings of a whole recording, without what makes them large, or why there are none.

    The program's source is looked for below ``roots``, and with None not at all.
    """
    place = _place(file, folder)
    try:
        run = load(place)
        return of_rank(findings(run if roots is None else located(run, roots)))
    except MemprofError as error:
        return _left_out(file, place, error, "its findings are not judged: ")


def _place(file: Location, folder: Path) -> Location:
    """Where a file lies for this process, which may run in another folder."""
    if isinstance(file, RemoteFile) or folder == Path.cwd():
        return file
    return folder / file


def _left_out(file: Location, place: Location, error: MemprofError, prefix: str) -> LeftOut:
    return LeftOut(str(file), prefix + error.message.replace(str(place), str(file)))


def _recording(file: Location, place: Location) -> RankFile:
    if not looks_like_run(place):
        run = load(place)
        return RankFile(file, run.header, footer_of(run), is_closed=True)
    ends = read_ends(place)
    if ends.summary is not None:
        return RankFile(file, ends.header, ends.summary, ends.is_closed)
    run = load(place)
    return RankFile(file, ends.header, footer_of(run), is_closed=run.footer is not None)
