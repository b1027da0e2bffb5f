"""Entering a Python of 3.14 or later by its own door, ``sys.remote_exec``.

The interpreter that asks must be of the same version, so the target's own program is run for it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from memprof.attach.processes import Process
from memprof.errors import MissingError

__all__ = ["OLDEST", "replace_script", "run_script"]

OLDEST = (3, 14)
"""The first Python that can be asked to run a file."""
_CODE = "import sys; sys.remote_exec(int(sys.argv[1]), sys.argv[2])"
_PATIENCE_S = 20.0


def run_script(process: Process, script: Path) -> None:
    """Have a process run a file soon.

    Raises:
        MissingError: it is refused; the hint says why.
    """
    failure = _run_script(process, str(script))
    if failure:
        raise MissingError(
            f"sys.remote_exec refuses process {process.pid}: {failure}",
            "was it started with PYTHON_DISABLE_REMOTE_DEBUG or -X disable-remote-debug? "
            "--inject goes in by a debugger",
        )


def replace_script(process: Process) -> None:
    """Withdraw a file that has not been run yet: the process finds an empty one in its place."""
    _run_script(process, os.devnull)


def _run_script(process: Process, script: str) -> str:
    """What went wrong; empty if nothing did."""
    if sys.version_info[:2] == process.python and hasattr(sys, "remote_exec"):
        try:
            sys.remote_exec(process.pid, script)
        except (OSError, RuntimeError) as error:
            return str(error)
        return ""
    words = [str(_program(process)), "-I", "-S", "-c", _CODE, str(process.pid), script]
    try:
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE_S,
            check=False,
            env=_environment(process),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{words[0]} could not be run: {error}"
    last = done.stderr.strip().splitlines()
    return "" if done.returncode == 0 else (last or [f"exit status {done.returncode}"])[-1]


def _program(process: Process) -> Path:
    """The interpreter that the process runs."""
    try:
        return (process.proc / "exe").readlink()
    except OSError as error:
        raise MissingError(f"the program of process {process.pid} is not known") from error


def _environment(process: Process) -> dict[str, str]:
    """The own one, with what the target's interpreter needs to find its libraries."""
    path = process.environment.get("LD_LIBRARY_PATH")
    return {**os.environ, **({"LD_LIBRARY_PATH": path} if path else {})}
