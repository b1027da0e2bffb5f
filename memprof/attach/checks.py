"""What must hold of a process before anything is done to it; what is in doubt is refused."""

from __future__ import annotations

import importlib.machinery
import os
import platform
import pwd
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from memprof.attach.processes import Process
from memprof.errors import MissingError

__all__ = ["check_may_trace", "check_supported", "lent_packages", "trace_scope"]

OLDEST_PYTHON, NEWEST_PYTHON = (3, 10), (3, 14)
OLDEST_TORCH = (2, 1)
_MACHINES = {"x86_64": 62, "aarch64": 183}
_NEEDED = ("numpy", "msgspec", "psutil", "pynvml")
"""What memprof imports inside a job, beside torch."""


def check_supported(process: Process) -> None:
    """See that memprof can work in a process.

    Raises:
        MissingError: it has no torch, or a Python or a torch that memprof does not work with; or it
            has ended, is stopped or debugged, or lives in another container.
    """
    _check_state(process)
    if process.maps is None:
        raise _not_permitted(process)
    if not process.has_torch or process.python is None:
        what = "has not loaded torch" if _is_python(process) else "is no Python process"
        raise MissingError(
            f"process {process.pid} {what}: {_brief(process)}",
            "memprof attach, without a number, lists the processes that use torch",
        )
    version = ".".join(map(str, process.python))
    if not OLDEST_PYTHON <= process.python <= NEWEST_PYTHON or process.is_free_threaded:
        free = ", free-threaded" if process.is_free_threaded else ""
        raise MissingError(
            f"process {process.pid} runs Python {version}{free}", "memprof works in 3.10 to 3.14"
        )
    if _numbers(process.torch_version) < OLDEST_TORCH:
        raise MissingError(
            f"process {process.pid} runs torch {process.torch_version or 'of an unknown version'}",
            "memprof needs torch 2.1 or newer",
        )


def check_may_trace(process: Process) -> None:
    """See that this process may write into the memory of another, as a debugger does.

    The kernel is asked as a debugger would ask it, without stopping the process.

    Raises:
        MissingError: it may not; or the process is debugged, or lives in another container, or is
            of another architecture.
    """
    if process.tracer_pid:
        raise MissingError(
            f"process {process.pid} is being debugged by process {process.tracer_pid}",
            "end the debugger first",
        )
    for namespace, name in (("pid", "numbers of processes"), ("mnt", "files")):
        is_other = process.is_elsewhere(namespace)
        if is_other or (namespace == "mnt" and process.has_other_root):
            raise MissingError(
                f"process {process.pid} lives in another container: its {name} are not these",
                "run memprof attach inside it (docker exec, kubectl exec), or start the job with "
                "MEMPROF=standby",
            )
    expected = _MACHINES.get(platform.machine())
    if expected is None or process.architecture != (2, expected):
        raise MissingError(
            f"process {process.pid} is not built for {platform.machine()} with 64 bits"
        )
    try:
        os.close(os.open(process.proc / "mem", os.O_RDWR))
    except OSError as error:
        raise _not_permitted(process) from error


def lent_packages(process: Process) -> dict[str, str]:
    """Packages that memprof needs and can lend to a process, with a folder that has each.

    memprof itself is always among them. Of the others the process uses its own where it has them.

    Raises:
        MissingError: one is missing there, and the one here is not for its Python.
    """
    lent = {"memprof": str(Path(__file__).resolve().parents[2])}
    theirs = process.root / process.site_packages.lstrip("/")
    for name in _NEEDED:
        folder = _own_folder(name)
        if folder is not None and _is_for(Path(folder, name), process):
            lent[name] = folder
        elif not ((theirs / name).exists() or (theirs / f"{name}.py").exists()):
            version = ".".join(map(str, process.python or ()))
            raise MissingError(
                f"the environment of process {process.pid} lacks {name}, and the one of memprof "
                f"here is not for Python {version}",
                f"pip install cuda-memprof into {process.site_packages}: the job goes on meanwhile",
            )
    return lent


def _own_folder(name: str) -> str | None:
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        return None
    origin = Path(spec.origin)
    return str(origin.parent.parent if origin.stem == "__init__" else origin.parent)


def _is_for(package: Path, process: Process) -> bool:
    """Whether a package has no compiled part, or one for the process's Python."""
    parts = [path.name for path in package.rglob("*.so")] if package.is_dir() else []
    tag = ".cpython-{}{}-".format(*(process.python or (0, 0)))
    bare = importlib.machinery.EXTENSION_SUFFIXES[-1]
    return all(tag in p or ".abi3." in p or p.count(".") == bare.count(".") for p in parts)


def _check_state(process: Process) -> None:
    if process.pid == os.getpid():
        raise MissingError(f"process {process.pid} is memprof itself")
    if process.state in "ZX":
        raise MissingError(f"process {process.pid} has ended")
    if process.state in "Tt":
        raise MissingError(
            f"process {process.pid} is stopped: {_brief(process)}",
            f"let it go on first: kill -CONT {process.pid}",
        )


def _is_python(process: Process) -> bool:
    with suppress(OSError):
        if (process.proc / "exe").readlink().name.startswith("python"):
            return True
    return b"/libpython3" in (process.maps or b"")


def trace_scope() -> int:
    """What Yama allows: 0 own processes, 1 children only, 2 root only, 3 nobody; 0 without it."""
    try:
        return int(Path("/proc/sys/kernel/yama/ptrace_scope").read_text())
    except (OSError, ValueError):
        return 0


def _not_permitted(process: Process) -> MissingError:
    what = f"process {process.pid} may not be looked into"
    if os.geteuid() not in (0, process.user_id):
        return MissingError(
            f"{what}: it belongs to {_user(process.user_id)}", "run memprof attach as that user"
        )
    standby = "or start the job with MEMPROF=standby, which needs no permission"
    if trace_scope() == 3:
        return MissingError(f"{what}: kernel.yama.ptrace_scope is 3, until the next boot", standby)
    if trace_scope():
        return MissingError(
            f"{what}: kernel.yama.ptrace_scope is {trace_scope()}",
            f"run memprof attach as root (sudo), {standby}",
        )
    return MissingError(
        f"{what}: the kernel refuses it, as in containers without SYS_PTRACE",
        f"docker run --cap-add SYS_PTRACE, {standby}",
    )


def _user(user_id: int) -> str:
    try:
        return pwd.getpwuid(user_id).pw_name
    except KeyError:
        return f"user {user_id}"


def _brief(process: Process) -> str:
    return " ".join(process.command)[:80] or "it has no command line"


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.split("+", maxsplit=1)[0].split(".")[:2]
    return tuple(int(part) for part in parts if part.isdigit())
