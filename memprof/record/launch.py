"""Runs a script or a module as plain ``python`` would, while it is recorded.

``python -m memprof.record.launch '{"path": "run.json"}' train.py --epochs 3``: the first argument
holds the options of `track` as JSON, the rest is the program. `memprof run` is the face of it.
"""

from __future__ import annotations

import builtins
import io
import json
import os
import runpy
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.machinery import SourceFileLoader
from pathlib import Path
from pkgutil import read_code
from types import CodeType, ModuleType, TracebackType
from typing import Any

from memprof.errors import MemprofError
from memprof.record.process import is_dry_run
from memprof.record.tracker import Tracker, active, status_of, track

__all__ = ["main", "say_what_next", "without_our_frames"]

_OUR_FILES = (__file__, runpy.__file__, "<frozen runpy>")
_CANNOT_OPEN = 2
"""The exit status of ``python missing.py``."""


def main(arguments: Sequence[str]) -> None:
    """Record a program; ``arguments`` are the options as JSON, then ``[-m] program [its own]``."""
    options, *program = arguments
    settings = json.loads(options)
    quiet = bool(settings.pop("quiet", False))
    steps = int(settings.pop("steps", 0))
    if program[0] != "-m":
        _check_readable(program[0])
    tracker = _start_tracker(settings, steps)
    note = _dry_run(tracker) if is_dry_run() else None
    try:
        _run(program)
    except BaseException as error:
        if note is not None:
            note()
        tracker.failed(error)
        tracker.stop(status_of(error), error, is_over=True)
        say = partial(say_what_next, tracker, quiet=quiet)
        if isinstance(error, SystemExit):
            say()
        else:  # Python itself prints the traceback and finds the exit status
            sys.excepthook = partial(_excepthook, sys.excepthook, say)
        raise
    if note is not None:
        note()
    tracker.stop(is_over=True)
    say_what_next(tracker, quiet=quiet)


def _dry_run(tracker: Tracker) -> Callable[[], None]:
    from memprof.record.dry_run import begin  # nothing that a usual run needs

    return begin(tracker)


def _start_tracker(settings: dict[str, Any], steps: int) -> Tracker:
    try:
        tracker = track(**settings)
        tracker.end_program_after(steps)
        return tracker.start()
    except MemprofError as error:
        print(f"error: {error.message}\nhint:  {error.hint}", file=sys.stderr)  # noqa: T201
        raise SystemExit(error.exit_code) from None


def say_what_next(tracker: Tracker, *, quiet: bool = False) -> None:
    """Name the file that was written, and the command that reads it, on standard error."""
    if quiet or not tracker.path or active() is not None or sys.stderr is None:
        return
    text = f"memprof: recorded {tracker.path}; next: memprof report {tracker.path}"
    try:
        print(text, file=sys.stderr)  # noqa: T201 - the face of a command
    except (OSError, ValueError):  # the script closed it
        return


def _excepthook(
    theirs: Callable[..., object],
    then: Callable[[], None],
    kind: type[BaseException],
    error: BaseException,
    traceback: TracebackType | None,
) -> None:
    error.__traceback__ = without_our_frames(traceback)
    theirs(kind, error, error.__traceback__)
    then()


def without_our_frames(traceback: TracebackType | None) -> TracebackType | None:
    """A traceback from the program's own first frame on."""
    while traceback is not None and traceback.tb_frame.f_code.co_filename in _OUR_FILES:
        traceback = traceback.tb_next
    return traceback


def _run(program: Sequence[str]) -> None:
    main_module = ModuleType("__main__")
    main_module.__dict__["__builtins__"] = builtins
    # The module that runs this code must not be taken apart while it does.
    main_module.__dict__.pop("__doc__", None)
    earlier_main = sys.modules["__main__"]
    sys.modules["__main__"] = main_module
    try:
        if program[0] == "-m":
            _run_module(program[1], program[2:])
        else:
            _run_script(program[0], program[1:], main_module)
    finally:
        _EARLIER_MAINS.append(earlier_main)


_EARLIER_MAINS: list[ModuleType] = []


def _run_module(name: str, arguments: Sequence[str]) -> None:
    sys.argv = ["-m", *arguments]  # as Python has it while it looks for the module
    runpy._run_module_as_main(name)  # type: ignore[attr-defined]


def _run_script(path: str, arguments: Sequence[str], main_module: ModuleType) -> None:
    sys.argv = [path, *arguments]
    file = Path(path)
    if file.is_dir() or _is_archive(path):
        _set_first_path(os.path.abspath(path))  # noqa: PTH100 - a Path would resolve links
        runpy._run_module_as_main("__main__", alter_argv=False)  # type: ignore[attr-defined]
        return
    code = _code_of(path)
    _set_first_path(os.path.dirname(os.path.realpath(path)))  # noqa: PTH120 - as Python does it
    absolute = os.path.abspath(path)  # noqa: PTH100 - a Path would resolve links
    main_module.__dict__.update(
        __doc__=None,
        __file__=absolute,
        __loader__=SourceFileLoader("__main__", absolute),
        __package__=None,
        __spec__=None,
        __cached__=None,
    )
    exec(code, main_module.__dict__)  # noqa: S102 - this is what running a script is


def _set_first_path(folder: str) -> None:
    if not getattr(sys.flags, "safe_path", False) and sys.path:
        sys.path[0] = folder


def _is_archive(path: str) -> bool:
    import zipfile

    return Path(path).is_file() and not path.endswith(".py") and zipfile.is_zipfile(path)


def _code_of(path: str) -> CodeType:
    absolute = os.path.abspath(path)  # noqa: PTH100 - a Path would resolve links
    with io.open_code(absolute) as file:
        compiled: CodeType | None = read_code(file)  # a .pyc
        if compiled is not None:
            return compiled
        file.seek(0)
        source = file.read()
    return compile(source, absolute, "exec", dont_inherit=True)


def _check_readable(path: str) -> None:
    """As Python does it, before anything is recorded."""
    absolute = os.path.abspath(path)  # noqa: PTH100 - a Path would resolve links
    try:
        if not Path(absolute).is_dir():
            Path(absolute).open("rb").close()
    except OSError as error:
        why = f"[Errno {error.errno}] {error.strerror}"
        print(f"{sys.executable}: can't open file {absolute!r}: {why}", file=sys.stderr)  # noqa: T201
        raise SystemExit(_CANNOT_OPEN) from None


if __name__ == "__main__":
    main(sys.argv[1:])
