"""What is watched: a run file, the file of a process, or the files of a job's ranks; polled."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import psutil

from memprof.errors import MemprofError
from memprof.live.live_run import LiveRun
from memprof.runfile.follow import FollowedFile

__all__ = ["WatchedRuns", "files_of_process"]

_SUFFIXES = (".json", ".json.gz", ".gz")
_HEADER = b'{"kind":"header"'
_RANKED = ("*.rank*.json", "*.rank*.json.gz")
_ANY = ("*.json", "*.json.gz")
_MOST_FILES = 4096


class WatchedRuns:
    """Every run that a name stands for, each followed; files that come later are taken in."""

    def __init__(self, name: str | os.PathLike[str]) -> None:
        """``name``: a run file, a folder of them, or the PID of a process that is recorded.

        Raises:
            MemprofError: there is no such file, folder or process, or it writes no run file.
        """
        self.name = os.fspath(name)
        self._folder: Path | None = None
        self.runs: list[LiveRun] = []
        self._files: dict[Path, tuple[FollowedFile, LiveRun]] = {}
        path = Path(self.name)
        if path.is_dir():
            self._folder = path
        elif path.exists() or not self.name.isdecimal():
            if not path.exists():
                raise MemprofError(
                    f"{path} is not there", "name a run file, a folder of them, or a PID"
                )
            self._take(path)
        else:
            for file in files_of_process(int(self.name)):
                self._take(file)
        self._look_for_more()
        if not self.runs:
            raise MemprofError(
                f"{path} holds no run file yet", "name a folder with files like run.rank0.json"
            )

    def poll(self) -> int:
        """Read what is new of every file; how many records there were."""
        self._look_for_more()
        count = 0
        for file, figures in list(self._files.values()):
            if file.was_replaced():
                with figures.lock:
                    figures.clear()
            count += figures.add_all(file.new())
        self.runs.sort(key=lambda one: (one.rank, one.source))
        return count

    def _look_for_more(self) -> None:
        if self._folder is None:
            return
        for pattern in (_RANKED, _ANY) if not self._files else (_RANKED,):
            files = sorted(file for one in pattern for file in self._folder.glob(one))
            for file in files:
                if file not in self._files and len(self._files) < _MOST_FILES and _is_run(file):
                    self._take(file)
            if self._files:
                return

    def _take(self, path: Path) -> None:
        figures = LiveRun(str(path))
        self._files[path] = FollowedFile(path), figures
        self.runs.append(figures)


def files_of_process(pid: int) -> Sequence[Path]:
    """The run files that a process has open, its children's among them.

    Raises:
        MemprofError: there is no such process, it may not be looked at, or it writes none.
    """
    try:
        process = psutil.Process(pid)
        processes = [process, *process.children(recursive=True)]
        opened = [Path(file.path) for one in processes for file in _open_files(one, process)]
    except psutil.NoSuchProcess as error:
        raise MemprofError(f"there is no process {pid}", "`ps` lists those that run") from error
    except psutil.AccessDenied as error:
        raise MemprofError(
            f"process {pid} is somebody else's", "name its run file instead"
        ) from error
    files = [path for path in opened if path.name.endswith(_SUFFIXES) and _is_run(path)]
    if not files:
        raise MemprofError(
            f"process {pid} writes no run file",
            "record it with `memprof run`, `MEMPROF=run.json` or memprof.track()",
        )
    return tuple(dict.fromkeys(files))


def _open_files(one: psutil.Process, target: psutil.Process) -> Sequence[psutil._common.popenfile]:
    try:
        return list(one.open_files())
    except psutil.Error:  # a child that ended, or of another user
        if one == target:
            raise
        return ()


def _is_run(path: Path) -> bool:
    """Whether a file begins as a run file does; one that is still empty may become one."""
    from memprof.loading import looks_like_run

    try:
        if path.stat().st_size == 0:
            return True
        if path.name.endswith(".gz"):
            return looks_like_run(path)
        with path.open("rb") as file:
            return _HEADER in file.read(64)
    except (OSError, MemprofError):
        return False
