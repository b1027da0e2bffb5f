"""What a run file's header says about its process, and the name of the file; records no memory."""

from __future__ import annotations

import os
import platform
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from memprof.records import SCHEMA_VERSION, DeviceInfo, DryRun, Header
from memprof.version import __version__

__all__ = [
    "DEFAULT_PATH",
    "Rank",
    "header",
    "is_dry_run",
    "is_path_of_launch",
    "now_us",
    "path_of_process",
    "path_of_rank",
]

DEFAULT_PATH = "memprof-run.json"

# (rank, local rank, world size) under torchrun, Open MPI, MPICH and Intel MPI, and srun.
_LAUNCHERS = (
    ("RANK", "LOCAL_RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS"),
)
_SUFFIXES = (".json.gz", ".json", ".gz")


class Rank(NamedTuple):
    """The place of this process among those that a launcher started; -1 where there is none."""

    rank: int = -1
    local_rank: int = -1
    world_size: int = 1

    @staticmethod
    def of(environment: Mapping[str, str]) -> Rank:
        """From the environment variables of the common launchers, torchrun's first."""
        for rank, local, size in _LAUNCHERS:
            candidate = Rank(
                _integer(environment, rank, -1),
                _integer(environment, local, -1),
                _integer(environment, size, 1),
            )
            # srun and mpirun set their variables for a single process too; torchrun means it.
            if candidate.rank >= 0 and (candidate.world_size > 1 or rank == "RANK"):
                return candidate
        return Rank()


def _integer(environment: Mapping[str, str], name: str, missing: int) -> int:
    try:
        return int(environment.get(name, missing))
    except ValueError:
        return missing


def path_of_rank(path: str, rank: int) -> str:
    """``run.json`` as ``run.rank3.json``; unchanged outside a launcher (-1)."""
    return _insert(path, f".rank{rank}") if rank >= 0 else path


def path_of_process(path: str, pid: int) -> str:
    """``run.json`` as ``run.pid4711.json``: the file of a child process."""
    return _insert(path, f".pid{pid}")


def is_path_of_launch(path: str, name: str) -> bool:
    """Whether a process of a launch into ``path`` may have written the file ``name``."""
    suffix = next((s for s in _SUFFIXES if path.endswith(s)), "")
    stem = Path(path).name.removesuffix(suffix)
    mark = r"(?:\.rank\d+)?(?:\.pid\d+)?"
    return re.fullmatch(re.escape(stem) + mark + re.escape(suffix), name) is not None


def _insert(path: str, text: str) -> str:
    suffix = next((s for s in _SUFFIXES if path.endswith(s)), "")
    stem = path[: len(path) - len(suffix)]
    return f"{stem}{text}{suffix}"


def now_us() -> int:
    """Microseconds since the Unix epoch, the clock of torch's own recorder."""
    return time.time_ns() // 1000


def header(devices: Sequence[DeviceInfo], options: Mapping[str, object], created_us: int) -> Header:
    """What this process is, as far as it is known now; torch's version only once it is imported."""
    rank = Rank.of(os.environ)
    torch = sys.modules.get("torch")
    return Header(
        schema=SCHEMA_VERSION,
        created_us=created_us,
        memprof_version=__version__,
        torch_version=str(getattr(torch, "__version__", "")),
        python_version=platform.python_version(),
        platform=_platform(),
        argv=list(getattr(sys, "argv", None) or sys.orig_argv),
        cwd=_working_directory(),
        pid=os.getpid(),
        rank=rank.rank,
        local_rank=rank.local_rank,
        world_size=rank.world_size,
        devices=list(devices),
        options=dict(options),
        dry_run=_dry_run(os.environ),
    )


def is_dry_run(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process runs on a card of `memprof dry-run`: named, and its library loaded."""
    preloaded = environment.get("LD_PRELOAD", "").replace(":", " ").split()
    ours = any(Path(library).parent.parent.name == "dry-run" for library in preloaded)
    return ours and "MEMPROF_DRY_RUN_CARD" in environment


def _dry_run(environment: Mapping[str, str]) -> DryRun | None:
    if not is_dry_run(environment):
        return None
    lines = environment["MEMPROF_DRY_RUN_CARD"].splitlines()
    card = dict(line.split("=", 1) for line in lines if "=" in line)
    return DryRun(
        card=card.get("name", ""),
        total_bytes=_integer(card, "total_bytes", 0),
        context_bytes=_integer(card, "context_bytes", 0),
        capability=f"{card.get('major', '')}.{card.get('minor', '')}",
        multiprocessors=_integer(card, "multiprocessors", 0),
    )


def _platform() -> str:
    """The system, its version and the processor; `platform.platform` starts a process for it."""
    about = platform.uname()
    return f"{about.system}-{about.release}-{about.machine}"


def _working_directory() -> str:
    try:
        return str(Path.cwd())
    except OSError:  # the folder was removed under the job
        return ""
