"""A stand-in of the parts of torch that the CUDA source calls, driven by the allocator model.

It has the signatures, the schema and the traps of each torch version, and counts every call. It
says nothing about a GPU: what torch does there is the model's and the stand-in's reading of it.
"""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from memprof.testing.devices import Devices, RecorderSettings, StandInOutOfMemoryError
from memprof.testing.snapshots import SNAPSHOT_VERSIONS, snapshot

__all__ = ["StandInOutOfMemoryError", "TorchStandIn"]

_UNBOUNDED = sys.maxsize
_RECORD_SINCE = {
    "clear_history": 8,
    "compile_context": 8,
    "global_record_annotations": 8,
    "skip_actions": 11,
    "record_pinned_host_memory": 14,
    "record_cuda": 14,
}
"""The 2.x that brought each argument of ``_record_memory_history`` beyond the first four."""
_NOTHING = {"all": {"current": 0, "peak": 0, "allocated": 0, "freed": 0}}
_UNCOUNTED: dict[str, Any] = dict.fromkeys(
    ("allocated_bytes", "reserved_bytes", "active_bytes", "allocation"), _NOTHING
)
"""What torch counts with ``PYTORCH_NO_CUDA_MEMORY_CACHING``."""


class TorchStandIn(Devices):
    """As much of the ``torch`` module as the CUDA source uses.

    ::

        torch = TorchStandIn("2.7", capacity=1 << 30)
        address = torch.alloc(4096)
        torch.free(address)
        torch.calls["empty_cache"]      # 0: nobody called it

    Args:
        version: ``"2.4"`` to ``"2.15"``.
        devices: how many the process sees.
        capacity: bytes that this process can have on each.
        outside: bytes of each device that contexts and other processes hold.
        initialized: whether CUDA is; else see `initialize`.
        backend: ``native``, ``cudaMallocAsync``, ``pluggable`` or ``uncached``; only the first
            records, and only the first two count.
        hip: the version of ROCm that torch was built for, if it was.
        settings: in the grammar of ``PYTORCH_CUDA_ALLOC_CONF``.
    """

    def __init__(
        self,
        version: str = "2.13",
        *,
        devices: int = 1,
        capacity: int = 8 << 30,
        outside: int = 512 << 20,
        initialized: bool = True,
        backend: str = "native",
        settings: str = "",
        hip: str | None = None,
    ) -> None:
        super().__init__(version, devices, capacity, outside, settings)
        self.calls: Counter[str] = Counter()
        self.OutOfMemoryError = StandInOutOfMemoryError
        self._since = SNAPSHOT_VERSIONS.index(version)
        self._version, self._backend = version, backend
        self._initialized, self._initializing = initialized, False
        self._records_host = False
        self.pinned: list[dict[str, Any]] = []
        self._lazy_calls: list[Any] = []
        self.version = SimpleNamespace(hip=hip, cuda=None if hip else "12.8")
        self.clock_error_us: Callable[[], int] = lambda: 0
        """By how much the times of the next snapshot are off: torch converts them anew for each."""
        self.autocast = ""
        """The format that autocast computes in; empty where it is off."""
        self.is_autocast_enabled = lambda _device: bool(self.autocast)
        self.get_autocast_dtype = lambda _device: f"torch.{self.autocast}"
        self.cuda = self._cuda()
        self._C = self._private()

    def initialize(self) -> None:
        """CUDA is used for the first time: torch runs what was queued, and keeps it in its list.

        Only then does it say that it is initialised; what is asked for meanwhile is run at once.
        """
        self._initializing = True
        for call, _ in self.cuda._queued_calls:
            call()
        self._initializing, self._initialized = False, True

    def pin(self, size: int) -> None:
        """The program takes pinned host memory, which 2.14 and later can record."""
        if self._records_host:
            self.pinned.append({"action": "alloc", "addr": 1 << 40, "size": size, "stream": 0})

    # -- torch.cuda ----------------------------------------------------------------------------

    def _cuda(self) -> SimpleNamespace:
        cuda = SimpleNamespace(
            is_initialized=lambda: self._initialized,
            device_count=lambda: len(self.devices),
            memory_reserved=lambda i=0: self._stats(i)["reserved_bytes"]["all"]["current"],
            memory_allocated=lambda i=0: self._stats(i)["allocated_bytes"]["all"]["current"],
            get_device_properties=self._properties,
            get_allocator_backend=self._backend_name,
            memory_stats_as_nested_dict=self._stats,
            memory_snapshot=self._for_version(self._segments, {"include_traces": 11}),
            memory=SimpleNamespace(
                _record_memory_history=self._for_version(self._record_python, _RECORD_SINCE),
                _snapshot=self._snapshot,
            ),
            set_per_process_memory_fraction=self.limit,
            current_device=self._current_device,
            set_device=self._set_device,
            device=self._on_device,
            reset_peak_memory_stats=self._reset_peaks,
            _queued_calls=self._lazy_calls,
            _lazy_call=self._lazy_call,
            OutOfMemoryError=StandInOutOfMemoryError,
        )
        for name in ("synchronize", "empty_cache", "init"):
            setattr(cuda, name, lambda *_, name=name: self.calls.update([name]))
        if self._since >= 6:
            cuda.get_per_process_memory_fraction = self._fraction
        if self._since >= 10:
            cuda.memory._set_memory_metadata = self._set_metadata
            cuda.memory._get_memory_metadata = lambda: getattr(self._thread, "metadata", "")
        return cuda

    def _private(self) -> SimpleNamespace:
        return SimpleNamespace(
            _cuda_isHistoryEnabled=lambda: self.recording is not None,
            _cuda_attach_out_of_memory_observer=self._attach,
            _cuda_hasPrimaryContext=lambda i: self.devices[i].counts["allocated"] > 0,
            _cuda_record_memory_history=self._record,
            _cuda_record_memory_history_legacy=self._record_legacy,
        )

    def _backend_name(self) -> str:
        return "native" if self._backend == "uncached" else self._backend

    def _for_version(
        self, function: Callable[..., Any], since: dict[str, int]
    ) -> Callable[..., Any]:
        """The function without the arguments that this version does not know yet."""
        whole = inspect.signature(function)
        parameters = [p for p in whole.parameters.values() if since.get(p.name, 0) <= self._since]
        signature = whole.replace(parameters=parameters)

        def call(*args: Any, **kwargs: Any) -> Any:
            arguments = signature.bind(*args, **kwargs)
            return function(*arguments.args, **arguments.kwargs)

        call.__signature__ = signature  # type: ignore[attr-defined]
        return call

    def _lazy_call(self, call: Callable[[], None]) -> None:
        if self._initialized or self._initializing:
            call()
        else:
            self._lazy_calls.append((call, []))

    def _properties(self, ordinal: int) -> SimpleNamespace:
        total = self.devices[ordinal].total
        return SimpleNamespace(
            name=f"Stand-in {ordinal}", total_memory=total, uuid=f"stand-in-{ordinal}"
        )

    def _stats(self, ordinal: int = 0) -> dict[str, Any]:
        self.calls["memory_stats"] += 1
        if self._backend == "pluggable":
            raise RuntimeError("CUDAPluggableAllocator does not yet support getDeviceStats.")
        if self._backend == "uncached":
            return _UNCOUNTED
        device, model = self.devices[ordinal], self.devices[ordinal].model
        requested = sum(b.requested for b in model.live.values())
        allocated = {"current": model.allocated, "peak": model.peak_allocated}
        reserved = {"current": model.reserved, "peak": model.peak_reserved}
        return {
            "allocated_bytes": {"all": allocated},
            "reserved_bytes": {"all": reserved},
            "active_bytes": {"all": {"current": model.allocated + model.pending}},
            "requested_bytes": {"all": {"current": requested}},
            "allocation": {
                "all": {
                    "current": device.counts["allocated"] - device.counts["freed"],
                    "allocated": device.counts["allocated"],
                    "freed": device.counts["freed"],
                }
            },
            "num_alloc_retries": model.retries,
            "num_ooms": model.ooms,
        }

    def _reset_peaks(self, ordinal: int = 0) -> None:
        self.calls["reset_peak_memory_stats"] += 1
        model = self.devices[ordinal].model
        model.peak_allocated, model.peak_reserved = model.allocated, model.reserved

    def _attach(self, observer: Callable[[int, int, int, int], None]) -> None:
        self.calls["attach_oom_observer"] += 1
        self._only_native("attachOutOfMemoryObserver")
        self.observers.append(observer)

    def _set_device(self, ordinal: int) -> None:
        self._thread.device = ordinal

    @contextmanager
    def _on_device(self, ordinal: int) -> Iterator[None]:
        before = self._current_device()
        self._set_device(ordinal)
        try:
            yield
        finally:
            self._set_device(before)

    def _current_device(self) -> int:
        return int(getattr(self._thread, "device", 0))

    def _fraction(self, ordinal: int = 0) -> float:
        self._set_device(ordinal)  # as torch 2.7 does
        return self.devices[ordinal].fraction

    def _set_metadata(self, text: str) -> None:
        self._thread.metadata = text

    # -- the recorder --------------------------------------------------------------------------

    def _record_python(  # noqa: PLR0917 - torch's own order
        self,
        enabled: str | bool | None = "all",
        context: str | None = "all",
        stacks: str = "all",
        max_entries: int = _UNBOUNDED,
        device: Any = None,  # noqa: ARG002 - accepted and ignored, as torch does
        clear_history: bool = False,
        compile_context: bool = False,
        global_record_annotations: bool = False,
        skip_actions: list[str] | None = None,
        record_pinned_host_memory: bool = False,
        record_cuda: bool = True,
    ) -> None:
        """What a program calls; it goes through torch's C function, as all of torch does."""
        if isinstance(enabled, bool):
            self._C._cuda_record_memory_history_legacy(enabled)
            return
        newer = (
            *(clear_history, compile_context, global_record_annotations, skip_actions or []),
            *(record_pinned_host_memory, record_cuda),
        )
        since = self._since
        arguments = newer[: 6 if since >= 14 else 4 if since >= 11 else 3 if since >= 8 else 0]
        self._C._cuda_record_memory_history(enabled, context, stacks, max_entries, *arguments)

    def _record(  # noqa: PLR0917 - torch's own order
        self,
        enabled: str | None,
        context: str | None,
        stacks: str,
        max_entries: int,
        clear_history: bool = False,
        compile_context: bool = False,  # noqa: ARG002
        global_record_annotations: bool = False,  # noqa: ARG002
        skip_actions: Sequence[str] = (),
        record_pinned_host_memory: bool = False,
        record_cuda: bool = True,
    ) -> None:
        self.calls["record_memory_history"] += 1
        self._only_native("recordHistory")
        if stacks not in {"python", "all"}:
            raise RuntimeError("expected stacks to be 'python', or 'all'")
        if 5 <= self._since <= 7:  # torch adds a hook on annotations and never takes it away
            self.calls["hooks_left"] += 1
        self._records_host = enabled is not None and record_pinned_host_memory
        if not self._records_host:  # any other call stops what is recorded there
            self.pinned.clear()
        enabled = enabled if record_cuda else None
        if enabled is None or clear_history:
            for device in self.devices:
                device.ring.clear()
        if enabled is None:
            self.recording = None
            return
        entries = 1 if enabled == "state" else max_entries
        self.recording = RecorderSettings(context, stacks, entries, frozenset(skip_actions))

    def _record_legacy(self, enabled: bool, *_: Any) -> None:
        self._record("all" if enabled else None, "state", "python", 1)

    def _snapshot(self, device: Any = None) -> dict[str, Any]:  # noqa: ARG002 - torch ignores it
        self.calls["snapshot"] += 1
        self._only_native("snapshot")
        shift_us = self.clock_error_us()
        rings = [one.ring.entries() for one in self.devices]
        traces = [self._trace(i, ring, shift_us) for i, ring in enumerate(rings)]
        self.write_looks()
        record = snapshot(*traces, torch=self._version)
        return record | {"host_traces": list(self.pinned)} if self._since >= 14 else record

    def _segments(self, mempool_id: Any = None, include_traces: bool = True) -> list[Any]:  # noqa: ARG002
        self.calls["memory_snapshot"] += 1
        self._only_native("snapshot")
        traces = [self._trace(i, range(0)) for i in range(len(self.devices))]
        self.write_looks()
        segments: list[Any] = snapshot(*traces, torch=self._version)["segments"]
        return segments

    def _only_native(self, what: str) -> None:
        if self._backend != "native":
            raise RuntimeError(f"{self._backend} does not yet support {what}.")
