"""Device memory as the driver sees it, through NVML; the only file that names pynvml.

What a device or a driver cannot say is ``None``; once open, nothing here raises.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memprof.errors import MissingError
from memprof.sources.cuda.devices import USED, used, uuid_of
from memprof.sources.loop.main_thread import MainThread
from memprof.sources.protocol import Reading

__all__ = [
    "NvmlDevice",
    "NvmlSource",
    "ProcessUse",
    "cards",
    "cuda_uuids",
    "driver_version",
    "memory_by_process",
    "processes_on",
]

Uuids = Mapping[str, str]
"""``"cuda:0"`` to the UUID of the device, with or without its prefix ``GPU-`` or ``MIG-``."""

_MOST_NAMED = 16
"""Other processes that get a series of their own in one run; the sum has all."""
_PREFIXES = ("GPU-", "MIG-", "")


@dataclass(frozen=True, slots=True)
class NvmlDevice:
    """One device of the machine, whether this process uses it or not."""

    index: int
    name: str
    uuid: str
    total_bytes: int | None
    used_bytes: int | None


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """A process that has memory on a device; a container may show PIDs of another namespace."""

    pid: int
    name: str
    """The file that runs; empty where the driver does not say."""
    bytes: int | None
    own: bool


class NvmlSource:
    """Per CUDA device that this process uses: memory, load, temperature, power.

    ``used``, ``free`` and ``total`` are the device's bytes, ``process_used`` those of this process
    (with its CUDA context and every library), ``others_used`` those of all others, and ``used by
    python 4242`` those of one of them, for the first `_MOST_NAMED`; ``utilization_percent``,
    ``temperature_c``, ``power_w``. Of a MIG slice the last two are those of the whole card.
    """

    name = "nvml"

    def __init__(self, uuids: Callable[[], Uuids] | None = None) -> None:
        """``uuids`` says which devices to read; by default those that torch has memory on.

        These are asked for in the main thread, or handed over by the source of CUDA's events.
        """
        self._uuids = uuids or self._used
        self._main_thread: MainThread | None = None
        self._nvml: Any = None
        self._handles: dict[str, Any] = {}
        self._names: dict[int, str] = {}
        """The series of every process that was named."""

    def open(self) -> None:
        """Load the driver's library.

        Raises:
            MissingError: there is no driver, or it does not answer.
        """
        self._nvml = _start_nvml()
        self._main_thread = MainThread(_ask_torch)

    def close(self) -> None:
        """Let the library go; safe to call twice."""
        nvml, self._nvml = self._nvml, None
        self._handles.clear()
        if self._main_thread is not None:
            self._main_thread.close()
            USED.forget()
        if nvml is not None:
            _ask(nvml, nvml.nvmlShutdown)

    def read(self) -> Sequence[Reading]:
        """One reading per CUDA device that this process uses; none before CUDA is initialised."""
        if self._nvml is None:
            return ()
        # No tuple of a generator: a search that lists all objects meanwhile would end it with a
        # `SystemError` (`memprof.cpython.tracked_objects`).
        return [
            Reading(device, time.time_ns() // 1000, self._values(handle))
            for device, uuid in self._uuids().items()
            if (handle := self._handle(uuid)) is not None
        ]

    def _used(self) -> Uuids:
        if threading.current_thread() is threading.main_thread():
            _ask_torch()
        elif self._main_thread is not None:
            self._main_thread.request()  # for the next time
        return USED.uuids

    def _values(self, handle: Any) -> dict[str, float | int | None]:
        processes = _list_processes(self._nvml, handle)
        own = next((p for p in processes if p.own), None)
        values = _values(self._nvml, handle)
        values["process_used"] = own.bytes if own else None
        # Where this process is not listed, one of the others is this one under another PID.
        others = [p for p in processes if not p.own and p.bytes is not None] if own else []
        values["others_used"] = sum(p.bytes or 0 for p in others) if own else None
        for process in sorted(others, key=lambda p: -(p.bytes or 0)):
            name = self._name_of(process)
            if name:
                values[name] = process.bytes
        return values

    def _name_of(self, process: ProcessUse) -> str:
        """The series of a process; empty when there are too many."""
        if process.pid not in self._names and len(self._names) < _MOST_NAMED:
            program = process.name.replace("\\", "/").rpartition("/")[2] or "a process"
            self._names[process.pid] = f"used by {program} {process.pid}"
        return self._names.get(process.pid, "")

    def _handle(self, uuid: str) -> Any:
        if uuid not in self._handles:
            handle = _handle_of(self._nvml, uuid)
            if handle is None:
                return None
            self._handles[uuid] = handle
        return self._handles[uuid]


def cuda_uuids() -> Uuids:
    """The devices that torch holds memory on in this process; never initialises CUDA.

    To be asked for in a thread of the job only: it may wait for the allocator's lock.
    """
    torch = sys.modules.get("torch")
    # While torch is being imported on another thread it has no `cuda` yet.
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not getattr(cuda, "is_initialized", bool)():
        return {}
    return {f"cuda:{i}": uuid for i in used(torch) if (uuid := uuid_of(torch, i)) is not None}


def _ask_torch() -> None:
    USED.uuids = cuda_uuids()


def _uuid_of(device: str) -> str | None:
    """Of a device that nobody may have asked for yet; no allocator is asked."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if device in USED.uuids or cuda is None or not cuda.is_initialized():
        return USED.uuids.get(device)
    ordinal = int(device.removeprefix("cuda:"))
    return uuid_of(torch, ordinal) if ordinal < cuda.device_count() else None


def processes_on(device: str, uuids: Callable[[], Uuids] | None = None) -> tuple[ProcessUse, ...]:
    """The processes on a CUDA device (``"cuda:0"``), this one among them; none where NVML is not.

    A driver that cannot say gives no processes: who asks is in the middle of a failure.
    """
    uuid = uuids().get(device) if uuids else _uuid_of(device)
    if uuid is None:
        return ()
    try:
        nvml = _start_nvml()
    except MissingError:
        return ()
    try:
        handle = _handle_of(nvml, uuid)
        return () if handle is None else _list_processes(nvml, handle)
    finally:
        _ask(nvml, nvml.nvmlShutdown)


def memory_by_process() -> dict[int, int | None]:
    """Bytes that each process holds on all cards of the machine together; None: it is not said.

    Raises:
        MissingError: there is no driver, or it does not answer.
    """
    nvml = _start_nvml()
    used: dict[int, int | None] = {}
    try:
        for index in range(_ask(nvml, nvml.nvmlDeviceGetCount) or 0):
            handle = _ask(nvml, nvml.nvmlDeviceGetHandleByIndex, index)
            for process in _list_processes(nvml, handle) if handle is not None else ():
                before = used.get(process.pid, 0)
                is_known = before is not None and process.bytes is not None
                used[process.pid] = (before or 0) + (process.bytes or 0) if is_known else None
    finally:
        _ask(nvml, nvml.nvmlShutdown)
    return used


def _list_processes(nvml: Any, handle: Any) -> tuple[ProcessUse, ...]:
    """Who computes or draws on a device; a process that does both counts once."""
    queries = (
        nvml.nvmlDeviceGetGraphicsRunningProcesses,
        nvml.nvmlDeviceGetComputeRunningProcesses,
    )
    processes = [p for query in queries for p in _ask(nvml, query, handle) or ()]
    return tuple({p.pid: _process(nvml, p) for p in processes}.values())


def _process(nvml: Any, process: Any) -> ProcessUse:
    name = _text(_ask(nvml, nvml.nvmlSystemGetProcessName, process.pid))
    used = _integer(process, "usedGpuMemory")
    return ProcessUse(process.pid, name, used, own=process.pid == os.getpid())


def driver_version() -> str:
    """The driver's version, such as ``550.54.14``.

    Raises:
        MissingError: there is no driver, or it does not answer.
    """
    nvml = _start_nvml()
    try:
        return _text(_ask(nvml, nvml.nvmlSystemGetDriverVersion))
    finally:
        _ask(nvml, nvml.nvmlShutdown)


def cards() -> tuple[NvmlDevice, ...]:
    """Every device of the machine.

    Raises:
        MissingError: there is no driver, or it does not answer.
    """
    nvml = _start_nvml()
    try:
        count = _ask(nvml, nvml.nvmlDeviceGetCount) or 0
        return tuple(_card(nvml, index) for index in range(count))
    finally:
        _ask(nvml, nvml.nvmlShutdown)


def _card(nvml: Any, index: int) -> NvmlDevice:
    handle = _ask(nvml, nvml.nvmlDeviceGetHandleByIndex, index)
    memory = _ask(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    return NvmlDevice(
        index=index,
        name=_text(_ask(nvml, nvml.nvmlDeviceGetName, handle)),
        uuid=_text(_ask(nvml, nvml.nvmlDeviceGetUUID, handle)),
        total_bytes=_integer(memory, "total"),
        used_bytes=_integer(memory, "used"),
    )


def _start_nvml() -> Any:
    try:
        import pynvml
    except ImportError as error:
        raise MissingError(
            "pynvml is not installed, so nothing can be asked of the NVIDIA driver",
            "pip install nvidia-ml-py",
        ) from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise MissingError(
            f"no NVIDIA driver answers ({error})",
            "device memory outside torch is not seen; on a GPU machine check `nvidia-smi`",
        ) from error
    return pynvml


def _handle_of(nvml: Any, uuid: str) -> Any:
    bare = uuid.removeprefix("GPU-").removeprefix("MIG-")
    for prefix in _PREFIXES:
        handle = _ask(nvml, nvml.nvmlDeviceGetHandleByUUID, prefix + bare)
        if handle is not None:
            return handle
    return None


def _values(nvml: Any, handle: Any) -> dict[str, float | int | None]:
    memory = _ask(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    load = _ask(nvml, nvml.nvmlDeviceGetUtilizationRates, handle)
    card = _card_of(nvml, handle)
    milliwatts = _ask(nvml, nvml.nvmlDeviceGetPowerUsage, card)
    return {
        "used": _integer(memory, "used"),
        "free": _integer(memory, "free"),
        "total": _integer(memory, "total"),
        "utilization_percent": _integer(load, "gpu"),
        "temperature_c": _ask(nvml, nvml.nvmlDeviceGetTemperature, card, nvml.NVML_TEMPERATURE_GPU),
        "power_w": None if milliwatts is None else milliwatts / 1000,
    }


def _card_of(nvml: Any, handle: Any) -> Any:
    """The card that a MIG slice is of; any other device itself."""
    if not _ask(nvml, nvml.nvmlDeviceIsMigDeviceHandle, handle):
        return handle
    return _ask(nvml, nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, handle) or handle


def _ask(nvml: Any, query: Callable[..., Any], *arguments: Any) -> Any:
    """The answer, or None where the device, the driver or its version cannot say."""
    try:
        return query(*arguments)
    # pynvml decodes names as UTF-8 and reads structs by size: a broken driver breaks those too. Of
    # an older driver that lacks a function's newest form it complains in a way of its own.
    except (nvml.NVMLError, _mismatch(nvml), UnicodeDecodeError, ValueError, TypeError):
        return None


def _mismatch(nvml: Any) -> type[Exception]:
    kind: type[Exception] = getattr(nvml, "NVMLLibraryMismatchError", nvml.NVMLError)
    return kind


def _integer(answer: Any, field: str) -> int | None:
    value = getattr(answer, field, None)
    return None if value is None else int(value)


def _text(answer: Any) -> str:
    """pynvml answers in str; before version 11.5 it was bytes."""
    return answer.decode(errors="replace") if isinstance(answer, bytes) else str(answer or "")
