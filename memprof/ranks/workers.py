"""Who does the work on the ranks: this process in turn, or an executor's workers anywhere."""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeVar

from memprof.errors import MemprofError
from memprof.ranks.report import LeftOut
from memprof.runfile.remote_file import Location
from memprof.version import __version__

__all__ = ["IN_TURN", "Progress", "Workers"]

R = TypeVar("R")

Progress = Callable[[Sequence[Location], str], Iterable[Location]]
"""Goes through files and may show how far it has come."""

MOST_AHEAD = 4_096
"""Tasks that are handed out before the first result is taken: enough for as many workers."""
_VERSION_S = 120
"""Seconds in which a worker must have said its version: a cluster may have to start one."""


def _silent(files: Sequence[Location], doing: str) -> Iterable[Location]:  # noqa: ARG001
    return files


@dataclass(frozen=True, slots=True)
class Workers:
    """Does a task for each file; without an executor in this process, one after another."""

    executor: Executor | None = None
    """Of processes here or on other machines; they need this version of memprof, and the files."""
    progress: Progress = _silent

    def check(self) -> None:
        """Ask a worker for its version.

        Raises:
            MemprofError: it has another one or none, or does not answer.
        """
        if self.executor is None:
            return
        install = f"pip install cuda-memprof=={__version__} where the workers run"
        try:
            theirs = self.executor.submit(memprof_version).result(_VERSION_S)
        # Each engine has errors of its own; here all of them mean that nothing can be done there.
        except Exception as error:
            raise MemprofError(
                f"the workers cannot run memprof: {_first_line(error)}", install
            ) from error
        if theirs != __version__:
            raise MemprofError(
                f"the workers have memprof {theirs}, and this is {__version__}", install
            )

    def results(
        self, task: Callable[[Location], R], files: Sequence[Location], doing: str, *, each: int = 1
    ) -> Iterator[tuple[Location, R | LeftOut]]:
        """Every file with what ``task`` returns for it, in order; a worker is handed ``each``.

        A file whose worker died is left out, as one that cannot be read is. Others that were
        handed to the same worker with it are handed out again, one by one.

        Raises:
            RuntimeError: a task failed of itself, which is a defect here.
        """
        if self.executor is None:
            for file in self.progress(files, doing):
                yield file, task(file)
            return
        outcomes = self._outcomes(self.executor, task, files, each)
        for file, outcome in zip(self.progress(files, doing), outcomes, strict=True):
            if not isinstance(outcome, _Failure):
                yield file, outcome
                continue
            raise RuntimeError(f"{doing} {file} failed on a worker:\n{outcome.traceback}")

    def _outcomes(
        self,
        executor: Executor,
        task: Callable[[Location], R],
        files: Sequence[Location],
        size: int,
    ) -> Iterator[R | LeftOut | _Failure]:
        chunks = (files[start : start + size] for start in range(0, len(files), size))
        ahead: deque[_Submitted[R]] = deque()
        try:
            while True:
                for chunk in islice(chunks, max(0, MOST_AHEAD - len(ahead))):
                    ahead.append(_submit(executor, task, chunk))
                if not ahead:
                    return
                first = ahead.popleft()
                if first.is_lost() and len(first.files) > 1:
                    first.cancel()
                    again = [_submit(executor, task, [file]) for file in first.files]
                    ahead.extendleft(reversed(again))
                    continue
                yield from first.outcomes()
        finally:
            for submitted in ahead:  # whoever asked wants no more of it
                submitted.cancel()


IN_TURN = Workers()


@dataclass(frozen=True, slots=True)
class _Failure:
    """An exception of the task itself, told apart from those of the engine."""

    traceback: str


@dataclass(frozen=True, slots=True)
class _Submitted(Generic[R]):
    files: Sequence[Location]
    future: Future[list[R | _Failure]] | None
    error: str

    def is_lost(self) -> bool:
        """Whether nothing will come of it; waits until that is known."""
        try:
            return self.future is None or self.future.exception() is not None
        except Exception:  # noqa: BLE001 - an engine may raise instead, of a task it has given up
            return True

    def outcomes(self) -> Iterator[R | LeftOut | _Failure]:
        error = self.error
        if self.future is not None:
            try:
                yield from self.future.result()
                return
            # Tasks catch their own errors: this is the engine's, of whatever class it has.
            except Exception as lost:  # noqa: BLE001
                error = _first_line(lost)
        for file in self.files:
            yield LeftOut(str(file), f"the worker that had it was lost: {error}")

    def cancel(self) -> None:
        if self.future is not None:
            self.future.cancel()


def _submit(
    executor: Executor, task: Callable[[Location], R], files: Sequence[Location]
) -> _Submitted[R]:
    try:
        return _Submitted(files, executor.submit(_do, task, files), "")
    except RuntimeError as error:  # a pool of which a process died takes no more
        return _Submitted(files, None, _first_line(error))


def _do(task: Callable[[Location], R], files: Sequence[Location]) -> list[R | _Failure]:
    """Run by a worker."""
    outcomes: list[R | _Failure] = []
    for file in files:
        try:
            outcomes.append(task(file))
        except Exception:  # noqa: BLE001 - it goes home as text: not every exception can be pickled
            outcomes.append(_Failure(traceback.format_exc()))
    return outcomes


def memprof_version() -> str:
    return __version__


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
