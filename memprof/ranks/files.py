"""The files of a job's ranks in, one report out: the ends of all files, the whole of a few.

What the figures mean is judged in `figures`; here files are found, read and left out.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from memprof.errors import MemprofError
from memprof.loading import load, looks_like_run
from memprof.ranks.figures import RankFigures, chosen, deviations, footer_of, rank_rows, spreads
from memprof.ranks.group_by_launch import Launch, command_of, gaps, launches
from memprof.ranks.merge_findings import shared
from memprof.ranks.report import JobReport, Judged, LeftOut, job_verdict, next_command
from memprof.records import Footer, Header
from memprof.rules.finding import Evidence, Found
from memprof.rules.ranked_findings import findings
from memprof.run import Run
from memprof.runfile.head_and_tail import read_ends

__all__ = ["Gathered", "RankFile", "files_of", "gathered", "job_report"]

_MANY = 8
"""Files of different jobs above which they are summed up together and not told one by one."""
_RANKED = ("*.rank*.json", "*.rank*.json.gz")
_CHILD = re.compile(r"\.pid\d+\.json")
"""What a second process of the same rank writes: ``run.rank0.pid4711.json``."""
_ANY = ("*.json", "*.json.gz", "*.pickle", "*.pickle.gz", "*.pkl")

Each = Callable[[Sequence[Path], str], Iterable[Path]]
"""Goes through files and may show how far it has come."""


@dataclass(frozen=True, slots=True)
class RankFile:
    """One file that could be read."""

    path: Path
    header: Header
    footer: Footer
    is_closed: bool


@dataclass(frozen=True, slots=True)
class Gathered:
    """The files that are told together, and those that are not."""

    recordings: tuple[RankFile, ...]
    left_out: tuple[LeftOut, ...]
    launch: Launch | None
    """None where the files are of several jobs."""


# -- finding files ---------------------------------------------------------------------------------


def files_of(names: Sequence[Path]) -> tuple[Path, ...]:
    """The files that names, folders and quoted patterns (``run.rank*.json``) stand for, each once.

    Raises:
        MemprofError: a folder holds no recording, or a pattern matches nothing.
    """
    paths = [file for name in names for file in _files(name)]
    return tuple(dict.fromkeys(paths))


def _files(name: Path) -> Sequence[Path]:
    if name.is_dir():
        files = _first_match(name, _RANKED) or _first_match(name, _ANY)
        if not files:
            raise MemprofError(
                f"{name} holds no recording", "name a folder with files like run.rank0.json"
            )
        return files
    if glob.has_magic(str(name)) and not name.exists():
        files = sorted(Path(match) for match in glob.glob(str(name), recursive=True))  # noqa: PTH207 - a pattern may be absolute
        if not files:
            raise MemprofError(f"nothing matches {name}", "quote the pattern: 'run.rank*.json'")
        return files
    return [name]


def _first_match(folder: Path, patterns: Sequence[str]) -> list[Path]:
    return sorted(file for pattern in patterns for file in folder.glob(pattern) if file.is_file())


# -- reading ---------------------------------------------------------------------------------------


def gathered(files: Sequence[Path], *, by_name: bool, each: Each) -> Gathered | None:
    """The ranks of one job among ``files``, or all of them if they are many; else None.

    The job is the latest one that has two ranks or more. Where the user named (``by_name``) up to
    eight files and they are of different jobs, each wants to be told by itself.
    """
    recordings, left_out = [], []
    for file in each(files, "reading"):
        try:
            recordings.append(_recording(file))
        except MemprofError as error:
            left_out.append(LeftOut(str(file), error.message))
    children = [one for one in recordings if _CHILD.search(one.path.name)]
    rank_files = [one for one in recordings if not _CHILD.search(one.path.name)]
    all_launches = launches([one.header for one in rank_files])
    alone = bool(all_launches) and len(all_launches[0].members) + len(
        all_launches[0].repeated
    ) == len(rank_files)
    if all_launches and (alone or not by_name or len(files) > _MANY):
        left_out += [LeftOut(str(one.path), _of_child(one)) for one in children]
        return _of_launch(rank_files, left_out, all_launches[0])
    if len(files) > _MANY and recordings:
        return Gathered(tuple(recordings), tuple(left_out), None)
    return None


def _of_child(one: RankFile) -> str:
    return f"a child process of rank {one.header.rank}, to be told by itself"


def _recording(file: Path) -> RankFile:
    if not looks_like_run(file):
        run = load(file)
        return RankFile(file, run.header, footer_of(run), is_closed=True)
    ends = read_ends(file)
    if ends.summary is not None:
        return RankFile(file, ends.header, ends.summary, ends.is_closed)
    run = load(file)
    return RankFile(file, ends.header, footer_of(run), is_closed=run.footer is not None)


def _of_launch(
    recordings: Sequence[RankFile], left_out: Sequence[LeftOut], launch: Launch
) -> Gathered:
    members, repeated = set(launch.members), set(launch.repeated)
    others = [
        LeftOut(str(one.path), _why(one, is_repeated=number in repeated))
        for number, one in enumerate(recordings)
        if number not in members
    ]
    chosen_ones = tuple(recordings[number] for number in launch.members)
    return Gathered(chosen_ones, (*left_out, *others), launch)


def _why(one: RankFile, *, is_repeated: bool) -> str:
    if is_repeated:
        return f"an earlier recording of rank {one.header.rank}"
    return "of another job, or of an earlier launch"


# -- the report ------------------------------------------------------------------------------------


def job_report(
    job: Gathered, *, judge_all: bool, each: Each, open_run: Callable[[Path], Run] = load
) -> JobReport:
    """Everything that is said of the files together; ``open_run`` reads a whole recording.

    Findings take the whole recording: they are looked for on each of up to eight ranks, else on a
    few that stand for the rest, or on each with ``judge_all``.
    """
    recordings = job.recordings
    ranks = rank_rows(
        [str(one.path) for one in recordings],
        [one.header for one in recordings],
        [one.footer for one in recordings],
        [one.is_closed for one in recordings],
    )
    deviating = deviations(ranks)
    reasons = dict.fromkeys(range(len(ranks)), "") if judge_all else chosen(ranks, deviating)
    by_rank, unreadable = _judge(ranks, reasons, each, open_run)
    judged_ranks = tuple(
        Judged(ranks[n].name, ranks[n].file, why) for n, why in reasons.items() if n in by_rank
    )
    together = shared({ranks[n].name: ones for n, ones in sorted(by_rank.items())})
    header, launch = recordings[0].header, job.launch
    return JobReport(
        command=tuple(command_of(header.argv)) if launch else (),
        started_us=header.created_us if launch else 0,
        world_size=launch.world_size if launch else 0,
        missing=tuple(gaps((r.rank for r in ranks), launch.world_size)) if launch else (),
        left_out=(*job.left_out, *unreadable),
        verdict=job_verdict(ranks, deviating, together, judged_ranks),
        spreads=spreads(ranks),
        deviations=deviating,
        judged=judged_ranks,
        findings=together,
        ranks=ranks,
        next=next_command(ranks, deviating, together),
    )


def _judge(
    ranks: Sequence[RankFigures],
    reasons: Iterable[int],
    each: Each,
    open_run: Callable[[Path], Run],
) -> tuple[dict[int, tuple[Found, ...]], list[LeftOut]]:
    """The findings of the picked ranks, without what makes them large; and what failed."""
    by_rank: dict[int, tuple[Found, ...]] = {}
    failed = []
    places = {Path(ranks[place].file): place for place in reasons}
    for file in each(tuple(places), "judging"):
        try:
            ones = findings(open_run(file))
        except MemprofError as error:
            failed.append(LeftOut(str(file), f"its findings are not judged: {error.message}"))
            continue
        by_rank[places[file]] = tuple(
            replace(one, series=None, evidence=Evidence(), stack=()) for one in ones
        )
    return by_rank, failed
