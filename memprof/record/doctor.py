"""What can be recorded on this machine, and why not the rest; `memprof doctor` prints it.

It also describes the machine's own card for dry runs elsewhere.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import memprof
from memprof import native
from memprof.attach.checks import trace_scope
from memprof.attach.debugger import locate_debugger
from memprof.attach.server import can_serve
from memprof.dry_run.build import compiler, find_torch
from memprof.dry_run.cards import Card as SimulatedCard
from memprof.dry_run.cards import figures_of_capability
from memprof.errors import MissingError
from memprof.sources.nvml import NvmlDevice, cards, driver_version, processes_on
from memprof.units import format_bytes

__all__ = ["Diagnosis", "Fact", "describe_card", "diagnose"]

_OLDEST_TORCH = (2, 1)
_NEWEST_TORCH = (2, 15)
_LITTLE_DISK = 1 << 30


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing that was looked at: whether it is well, what was found, what to do if it is not.

    ``ok`` is None where something is neither right nor wrong, only so.
    """

    name: str
    ok: bool | None
    found: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All facts, and what can be recorded: ``cpu``, ``cuda``, ``nvml``, ``host``."""

    facts: tuple[Fact, ...]
    recordable: tuple[str, ...]


def diagnose(
    environment: Mapping[str, str] = os.environ,
    folder: str | Path = ".",
    import_torch: Callable[[], Any] | None = None,
) -> Diagnosis:
    """Look at Python, torch, CUDA, the driver, NVML, the allocator's settings and the disk.

    CUDA is asked how many devices there are, and is not initialised.
    """
    torch, torch_fact = _torch(import_torch or _import_torch)
    driver, listed = _driver()
    cuda = _cuda(torch, bool(listed))
    facts = (
        _python(),
        torch_fact,
        cuda,
        driver,
        *(_card(card) for card in listed),
        *_allocator(torch, environment),
        *_native_part(torch),
        *_dry_runs(torch),
        _start_hook(environment),
        _attach(),
        _disk(Path(folder)),
    )
    recordable = [
        *(["cpu"] if torch is not None else []),
        *(["cuda"] if cuda.ok else []),
        *(["nvml"] if driver.ok else []),
        "host",
    ]
    return Diagnosis(facts, tuple(recordable))


def _native_part(torch: Any) -> list[Fact]:
    if torch is None:
        return []
    if not native.available():
        hint = "memprof native builds it: windows cost less, and the CPU is seen whole"
        return [Fact("native part", None, "not built for this torch", hint)]
    parts = "CPU and CUDA" if native.has_cuda() else "CPU"
    unused = native.is_wanted() is False
    return [
        Fact(
            "native part",
            None if unused else True,
            f"built: {parts}{', not used' if unused else ''}",
            "MEMPROF_NATIVE=0 is set" if unused else "",
        )
    ]


def _dry_runs(torch: Any) -> list[Fact]:
    if torch is None or not torch.backends.cuda.is_built():
        return []
    try:
        find_torch()
        command = compiler()
    except MissingError as error:
        return [Fact("dry runs", None, error.message, error.hint)]
    compiler_name = "ziglang" if "ziglang" in command else command[0]
    return [Fact("dry runs", True, f"memprof dry-run works, compiled with {compiler_name}")]


def describe_card(number: int = 0, import_torch: Callable[[], Any] | None = None) -> SimulatedCard:
    """The card of this machine as `memprof dry-run --gpu FILE` takes it elsewhere.

    It makes a CUDA context, whose bytes are among the figures. What torch does not tell is taken
    from the card's compute capability.

    Raises:
        MissingError: torch sees no such card.
    """
    torch = (import_torch or _import_torch)()
    if not torch.cuda.is_available() or number >= torch.cuda.device_count():
        raise MissingError(
            f"torch sees no CUDA device {number}", "memprof doctor says what is missing"
        )
    properties = torch.cuda.get_device_properties(number)
    capability = f"{properties.major}.{properties.minor}"
    figures = {"l2_bytes": 0, "blocks_per_multiprocessor": 32, **figures_of_capability(capability)}
    figures |= {
        name: int(getattr(properties, attribute))
        for name, attribute in _TOLD_BY_TORCH.items()
        if hasattr(properties, attribute)
    }
    missing = sorted({*_TOLD_BY_TORCH} - {*figures})
    if missing:
        raise MissingError(
            f"torch {torch.__version__} does not tell {', '.join(missing)} of this card",
            "describe it with a newer torch",
        )
    return SimulatedCard(
        name=properties.name,
        capability=capability,
        context_bytes=_context_bytes(torch, number),
        integrated=int(getattr(properties, "is_integrated", 0)),
        assumed=(),
        sources={"all": f"told by torch {torch.__version__} on a machine with this card"},
        **figures,
    )


_TOLD_BY_TORCH = {
    "total_bytes": "total_memory",
    "multiprocessors": "multi_processor_count",
    "l2_bytes": "L2_cache_size",
    "threads_per_multiprocessor": "max_threads_per_multi_processor",
    "registers_per_multiprocessor": "regs_per_multiprocessor",
    "shared_bytes_per_multiprocessor": "shared_memory_per_multiprocessor",
    "shared_bytes_per_block_optin": "shared_memory_per_block_optin",
}
"""Figures of a card, and torch's properties that say them; older versions lack some."""


def _context_bytes(torch: Any, number: int) -> int:
    """What is taken of a card beyond torch's own segments and other processes."""
    with torch.cuda.device(number):
        torch.zeros(1, device=f"cuda:{number}")
        free, total = torch.cuda.mem_get_info(number)
    others = sum(one.bytes or 0 for one in processes_on(f"cuda:{number}") if not one.own)
    return max(int(total - free - torch.cuda.memory_reserved(number) - others), 0)


def _import_torch() -> Any:
    import torch

    return torch


def _python() -> Fact:
    version = platform.python_version()
    is_supported = (3, 10) <= sys.version_info[:2] <= (3, 14)
    return Fact(
        "Python",
        is_supported,
        f"{version} on {platform.platform()}; memprof {memprof.__version__}",
        "" if is_supported else "memprof is tested on Python 3.10 to 3.14",
    )


def _torch(import_torch: Callable[[], Any]) -> tuple[Any, Fact]:
    try:
        torch = import_torch()
    except ImportError as error:
        hint = "pip install torch (recordings made elsewhere open without it)"
        if importlib.util.find_spec("torch") is not None:
            hint = "torch is there but does not load; run python -c 'import torch'"
        return None, Fact("torch", False, f"cannot be imported: {error}", hint)
    version = str(torch.__version__)
    number = _numbers(version)
    if number < _OLDEST_TORCH:
        return torch, Fact("torch", False, version, "memprof needs torch 2.1 or newer")
    if number > _NEWEST_TORCH:
        return torch, Fact("torch", None, version, "newer than any that memprof was read against")
    return torch, Fact("torch", True, f"{version}: CPU tensors are recorded")


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.split("+", maxsplit=1)[0].split(".")[:2]
    return tuple(int(part) for part in parts if part.isdigit())


def _cuda(torch: Any, has_cards: bool) -> Fact:
    if torch is None:
        return Fact("CUDA", False, "no torch, so no CUDA tensors")
    if getattr(torch.version, "hip", None):
        return Fact(
            "CUDA", True, f"ROCm {torch.version.hip}", "not verified on ROCm: please report"
        )
    if not torch.backends.cuda.is_built():
        hint = "install a CUDA build of torch: https://pytorch.org/get-started" if has_cards else ""
        return Fact("CUDA", False, "this torch was built without CUDA", hint)
    count = torch.cuda.device_count()
    if count == 0:
        return Fact(
            "CUDA",
            False,
            f"CUDA {torch.version.cuda}, but torch sees no device",
            "check nvidia-smi, CUDA_VISIBLE_DEVICES, and that the driver is new enough",
        )
    return Fact("CUDA", True, f"CUDA {torch.version.cuda}, {count} device(s)")


def _driver() -> tuple[Fact, tuple[NvmlDevice, ...]]:
    try:
        version, listed = driver_version(), cards()
    except MissingError as error:
        return Fact("NVIDIA driver, NVML", False, error.message, error.hint), ()
    return Fact("NVIDIA driver, NVML", True, f"driver {version}, {len(listed)} card(s)"), listed


def _card(card: NvmlDevice) -> Fact:
    used = "?" if card.used_bytes is None else format_bytes(card.used_bytes)
    total = "?" if card.total_bytes is None else format_bytes(card.total_bytes)
    has_figures = None not in (card.used_bytes, card.total_bytes)
    hint = "" if has_figures else "the driver does not say; the container may lack permissions"
    return Fact(f"card {card.index}", has_figures, f"{card.name}, {used} of {total} in use", hint)


def _allocator(torch: Any, environment: Mapping[str, str]) -> list[Fact]:
    if torch is None or not torch.backends.cuda.is_built():
        return []
    names = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
    settings = [
        Fact("allocator settings", None, f"{name}={environment[name]}")
        for name in names
        if environment.get(name)
    ]
    return [_backend(torch, environment), *settings]


def _backend(torch: Any, environment: Mapping[str, str]) -> Fact:
    if environment.get("PYTORCH_NO_CUDA_MEMORY_CACHING"):
        return Fact(
            "allocator",
            False,
            "caching is off, so torch neither counts nor records",
            "unset PYTORCH_NO_CUDA_MEMORY_CACHING",
        )
    backend = str(torch.cuda.get_allocator_backend())
    if backend != "native":
        return Fact(
            "allocator",
            False,
            f"{backend}: counters only, torch's recorder does not work with it",
            "remove backend: from PYTORCH_CUDA_ALLOC_CONF to record single allocations",
        )
    return Fact("allocator", True, "native: every allocation can be recorded")


def _start_hook(environment: Mapping[str, str]) -> Fact:
    is_installed = any((Path(p) / "cuda_memprof.pth").is_file() for p in sys.path if p)
    if not is_installed:
        return Fact(
            "MEMPROF variable",
            False,
            "its start hook is not in site-packages",
            "pip install cuda-memprof, or use memprof run or memprof.track",
        )
    value = environment.get("MEMPROF")
    return Fact("MEMPROF variable", True, f"set to {value}" if value else "works, is not set")


def _attach() -> Fact:
    """Whether `memprof attach` can go into processes of this user that do not stand by."""
    if not can_serve():
        return Fact("attach", False, "works on Linux only", "use memprof run or memprof.track")
    ways = ["processes that stand by (MEMPROF=standby)"]
    missing: list[str] = []
    scope = trace_scope()
    may_trace = scope == 0 or (os.geteuid() == 0 and scope < 3)
    if may_trace:
        ways.append("Python 3.14")
    else:
        missing.append(f"kernel.yama.ptrace_scope is {scope}: other processes need root (sudo)")
    try:
        locate_debugger()
    except MissingError as error:
        missing.append(f"{error.message}: {error.hint}")
    else:
        ways += ["with --inject every other"] if may_trace else []
    return Fact("attach", None if missing else True, ", ".join(ways), "; ".join(missing))


def _disk(folder: Path) -> Fact:
    if not os.access(folder, os.W_OK):
        return Fact(
            "disk", False, f"{folder.resolve()} cannot be written to", "name another file with -o"
        )
    free = shutil.disk_usage(folder).free
    enough = free >= _LITTLE_DISK
    return Fact(
        "disk",
        enough,
        f"{format_bytes(free)} free in {folder.resolve()}",
        "" if enough else "a long recording may need up to a few hundred MiB",
    )
