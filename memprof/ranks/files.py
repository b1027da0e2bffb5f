"""The files of a job's ranks in, one report out: the ends of all files, the whole of a few.

What the figures mean is judged in `figures`; here files are found, read and left out.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from memprof.errors import MemprofError
from memprof.ranks.figures import choose_ranks, deviations, rank_rows, spreads
from memprof.ranks.group_by_launch import Launch, command_of, gaps, launches
from memprof.ranks.merge_findings import RankFinding, merged
from memprof.ranks.rank_tasks import RankFile, judge_rank, read_rank
from memprof.ranks.report import JobReport, JudgedRank, LeftOut, job_verdict, next_command
from memprof.ranks.workers import IN_TURN, Workers
from memprof.runfile.remote_file import Location, RemoteFile, location

__all__ = [
    "RankRecordings",
    "files_of",
    "gather_ranks",
    "job_report",
    "judged_each",
    "report_of",
]

_MANY = 8
"""Files of different jobs above which they are summed up together and not told one by one."""
_RANKED = ("*.rank*.json", "*.rank*.json.gz")
_READ_EACH = 32
"""Files whose ends a worker reads at once: they take a millisecond each."""
_JUDGING_TASKS, _MOST_JUDGED_EACH = 256, 32
"""Tasks into which judging is divided, so that 256 workers have something to do, unless there are
so many ranks that one is lost with too many others. A task alone takes Dask three milliseconds of
the process that asks, and judging a small recording takes fifteen of a worker."""
_CHILD = re.compile(r"\.pid\d+\.json")
"""What a second process of the same rank writes: ``run.rank0.pid4711.json``."""
_ANY = ("*.json", "*.json.gz", "*.pickle", "*.pickle.gz", "*.pkl")


@dataclass(frozen=True, slots=True)
class RankRecordings:
    """The files that are told together, and those that are not."""

    recordings: tuple[RankFile, ...]
    left_out: tuple[LeftOut, ...]
    launch: Launch | None
    """None where the files are of several jobs."""


# -- finding files ---------------------------------------------------------------------------------


def files_of(names: Sequence[Location]) -> tuple[Location, ...]:
    """The files that names, folders and quoted patterns (``run.rank*.json``) stand for, each once.

    Raises:
        MemprofError: a folder holds no recording, or a pattern matches nothing.
    """
    paths = [file for name in names for file in _files(name)]
    return tuple(dict.fromkeys(paths))


def _files(name: Location) -> Sequence[Location]:
    try:
        return _matching(name)
    except OSError as error:
        raise MemprofError(
            f"cannot read {name}: {error.strerror or error}", "name files, or a folder of them"
        ) from error


def _matching(name: Location) -> Sequence[Location]:
    if name.is_dir():
        files = _first_match(name, _RANKED) or _first_match(name, _ANY)
        if not files:
            raise MemprofError(
                f"{name} holds no recording", "name a folder with files like run.rank0.json"
            )
        return files
    if glob.has_magic(str(name)) and not name.is_file():
        files = _of_pattern(name)
        if not files:
            raise MemprofError(f"nothing matches {name}", "quote the pattern: 'run.rank*.json'")
        return files
    return [name]


def _of_pattern(pattern: Location) -> Sequence[Location]:
    if isinstance(pattern, RemoteFile):
        return pattern.matches()
    return sorted(Path(match) for match in glob.glob(str(pattern), recursive=True))  # noqa: PTH207 - a pattern may be absolute


def _first_match(folder: Location, patterns: Sequence[str]) -> Sequence[Location]:
    if isinstance(folder, RemoteFile):
        matches = (file for pattern in patterns for file in folder.matches(pattern))
        return sorted(matches, key=str)
    return sorted(file for pattern in patterns for file in folder.glob(pattern) if file.is_file())


# -- reading ---------------------------------------------------------------------------------------


def gather_ranks(
    files: Sequence[Location], *, by_name: bool, workers: Workers = IN_TURN
) -> RankRecordings | None:
    """The ranks of one job among ``files``, or all of them if they are many; else None.

    The job is the latest one that has two ranks or more. Where the user named (``by_name``) up to
    eight files and they are of different jobs, each wants to be told by itself.
    """
    recordings, left_out = [], []
    task = partial(read_rank, folder=Path.cwd())
    for _, one in workers.results(task, files, "reading", each=_READ_EACH):
        if isinstance(one, LeftOut):
            left_out.append(one)
        else:
            recordings.append(one)
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
        return RankRecordings(tuple(recordings), tuple(left_out), None)
    return None


def _of_child(one: RankFile) -> str:
    return f"a child process of rank {one.header.rank}, to be told by itself"


def _of_launch(
    recordings: Sequence[RankFile], left_out: Sequence[LeftOut], launch: Launch
) -> RankRecordings:
    members, repeated = set(launch.members), set(launch.repeated)
    others = [
        LeftOut(str(one.path), _why(one, is_repeated=number in repeated))
        for number, one in enumerate(recordings)
        if number not in members
    ]
    chosen_ones = tuple(recordings[number] for number in launch.members)
    return RankRecordings(chosen_ones, (*left_out, *others), launch)


def _why(one: RankFile, *, is_repeated: bool) -> str:
    if is_repeated:
        return f"an earlier recording of rank {one.header.rank}"
    return "of another job, or of an earlier launch"


# -- the report ------------------------------------------------------------------------------------


def report_of(
    names: Iterable[str | Location], *, executor: Executor | None = None, judge_all: bool = True
) -> JobReport:
    """The report of a job whose ranks' files, folder or pattern ``names`` are; URLs too.

    With an ``executor`` its workers read and judge the ranks; the answer is the same.

    Raises:
        MemprofError: there are no files, they are of no common job, or the workers cannot do it.
    """
    workers = Workers(executor)
    workers.check()
    job = gather_ranks(files_of([location(name) for name in names]), by_name=False, workers=workers)
    if job is None:
        raise MemprofError(
            "these are not the files of several ranks of one job",
            "memprof.load() reads a single recording",
        )
    return job_report(job, judge_all=judge_all, workers=workers, roots=[Path.cwd()])


def job_report(
    job: RankRecordings,
    *,
    judge_all: bool,
    workers: Workers = IN_TURN,
    roots: Sequence[Path] | None = None,
) -> JobReport:
    """Everything that is said of the files together; sources are looked for below ``roots``.

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
    reasons = dict.fromkeys(range(len(ranks)), "") if judge_all else choose_ranks(ranks, deviating)
    by_rank, unreadable = _judge({recordings[n].path: n for n in reasons}, workers, roots)
    judged_ranks = tuple(
        JudgedRank(ranks[n].name, ranks[n].file, why) for n, why in reasons.items() if n in by_rank
    )
    together = merged({ranks[n].name: ones for n, ones in sorted(by_rank.items())})
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


def judged_each(ranks: int) -> int:
    """How many of so many ranks a worker is handed at once to be judged."""
    return min(-(-ranks // _JUDGING_TASKS), _MOST_JUDGED_EACH) or 1


def _judge(
    places: Mapping[Location, int], workers: Workers, roots: Sequence[Path] | None
) -> tuple[dict[int, tuple[RankFinding, ...]], list[LeftOut]]:
    """The findings of the picked ranks, by their place; and what failed."""
    by_rank: dict[int, tuple[RankFinding, ...]] = {}
    failed = []
    absolute = None if roots is None else [root.absolute() for root in roots]
    task = partial(judge_rank, folder=Path.cwd(), roots=absolute)
    each = judged_each(len(places))
    for file, ones in workers.results(task, tuple(places), "judging", each=each):
        if isinstance(ones, LeftOut):
            failed.append(ones)
        else:
            by_rank[places[file]] = ones
    return by_rank, failed
