"""Recording because the environment says so: what the start hook calls when MEMPROF is set.

Loaded at the start of every Python in that environment, so it imports next to nothing until torch
is imported. How a recording goes is `tracker`'s matter.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from memprof.cpython.import_hook import ImportWatch
from memprof.log import LOG

if TYPE_CHECKING:
    from memprof.record.tracker import Tracker

__all__ = ["STEPS", "claim", "start_from_environment"]

_ON = ("", "1", "true", "yes", "on")
_OFF = ("0", "false", "no", "off")
_STANDBY = "standby"
_SINCE = "MEMPROF_SINCE"
"""Set by the first process of a launch for those below it: when the launch began (in ns)."""

_DRY_RUN = "MEMPROF_DRY_RUN_CARD"
STEPS = "MEMPROF_DRY_RUN_STEPS"
"""Set by `memprof dry-run`: a process that it records ends after so many steps; 0: by itself."""


def start_from_environment() -> None:
    """Record this process into the file that ``MEMPROF`` names, once it has imported torch.

    ``1``, ``true``, ``yes`` and ``on`` mean the default name, their opposites no recording, and
    ``standby`` none until `memprof attach` asks for one.
    """
    if _DRY_RUN in os.environ:
        _prepare_dry_run()
    if os.environ.get("MEMPROF", "").lower() in _OFF:
        return
    os.environ.setdefault(_SINCE, str(time.time_ns()))
    ImportWatch("torch", _torch_imported).start()


def _prepare_dry_run() -> None:
    from memprof.record.process import is_dry_run  # nothing that a usual run needs

    if is_dry_run():  # a child may have been given the machine's own cards again
        from memprof.dry_run.absent_ranks import prepare

        prepare()


def _torch_imported() -> None:
    from memprof.errors import MemprofError
    from memprof.record.options import Options
    from memprof.record.process import DEFAULT_PATH
    from memprof.record.tracker import Tracker, active

    if active() is not None:  # `memprof run` records already
        return
    setting = os.environ.get("MEMPROF", "")
    path = DEFAULT_PATH if setting.lower() in _ON else setting
    try:
        options = Options.of(os.environ)
        if setting.lower() == _STANDBY:
            from memprof.record.standby import Standby

            Standby(options=options).open()
            return
        tracker = Tracker(path, options, lazy_path=lambda: _path_of_this_process(path))
        # It runs after the recording has ended: what is registered first is called last.
        atexit.register(_say_what_next, tracker)
        _start(tracker)
    except MemprofError as error:  # the job goes on as if nothing had been asked for
        LOG.warning("this job is not recorded: %s", error)


def _say_what_next(tracker: Tracker) -> None:
    """Name the file to whoever sits at the terminal; what another program reads stays as it is."""
    if sys.stderr is None or not sys.stderr.isatty():
        return
    from memprof.record.launch import say_what_next

    say_what_next(tracker)


def _start(tracker: Tracker) -> None:
    from memprof.record.process import is_dry_run

    if not is_dry_run():
        tracker.start()
        return
    from memprof.record.dry_run import begin  # nothing that a usual run needs

    tracker.end_program_after(int(os.environ.get(STEPS) or 0))
    tracker.start()
    atexit.register(begin(tracker))  # before the tracker's own, which ends the recording


def _path_of_this_process(path: str) -> str:
    """The name of the file: that of the rank, and of the process where a relative has taken it."""
    from memprof.record.process import Rank, path_of_process, path_of_rank

    rank_path = path_of_rank(path, Rank.of(os.environ).rank)
    if "://" in rank_path or claim(rank_path, int(os.environ.get(_SINCE) or time.time_ns())):
        return rank_path
    return path_of_process(rank_path, os.getpid())


def claim(path: str, since_ns: int) -> bool:
    """Take a file name for this process, unless another process of this launch has taken it.

    A file that is older than the launch is left over from another one and may be replaced. An empty
    file is left as the sign that the name is taken.
    """
    file = Path(path)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with _lock(file.parent):
            if file.exists() and file.stat().st_mtime_ns >= since_ns:
                return False
            file.write_bytes(b"")
    except OSError:  # whoever opens the file for good will say what is wrong
        return True
    return True


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """One process at a time in this block, where the system has file locks."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some network file systems have no locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
