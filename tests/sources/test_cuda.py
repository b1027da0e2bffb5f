"""The CUDA source against a small stand-in of torch's private calls; not a test of a GPU."""

from __future__ import annotations

import time
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="the labels of CUDA events come from torch's hooks")

from memprof.sources.boundaries import Boundaries
from memprof.sources.cuda import CudaSource
from memprof.sources.protocol import Interner
from memprof.trace import NOT_RECORDED, Action

FRAME = {"name": "forward", "filename": "model.py", "line": 7}


class Device:
    """One device's blocks, each in a segment of its own, and its ring of events."""

    def __init__(self) -> None:
        self.blocks: dict[int, int] = {}
        self.segments: dict[int, int] = {}
        self.events: list[dict] = []
        self.peak = self.reserved_peak = 0
        self.allocations = self.frees = 0

    @property
    def allocated(self) -> int:
        return sum(self.blocks.values())

    @property
    def reserved(self) -> int:
        return sum(self.segments.values())


class StandIn:
    """As much of torch as the source calls, with an allocator that is driven by hand."""

    def __init__(self, *, initialized=True, backend="native", devices=2, clear_history=True):
        self.devices = [Device() for _ in range(devices)]
        self.backend, self.initialized = backend, initialized
        self.recording: dict | None = None
        self.calls: list[object] = []
        self._C = SimpleNamespace(_cuda_isHistoryEnabled=lambda: self.recording is not None)
        self.version = SimpleNamespace(hip=None)
        record = (
            self._record
            if clear_history
            else lambda enabled="all", context="all", stacks="all", max_entries=0: self._record(
                enabled, context, stacks, max_entries
            )
        )
        self.cuda = SimpleNamespace(
            is_initialized=lambda: self.initialized,
            device_count=lambda: devices,
            memory_reserved=lambda i: self.devices[i].reserved,
            get_device_properties=lambda i: SimpleNamespace(
                name=f"Stub {i}", total_memory=1 << 30, uuid=f"uuid-{i}"
            ),
            get_allocator_backend=lambda: self.backend,
            memory_stats_as_nested_dict=self._stats,
            memory_snapshot=lambda include_traces=True: self._segments(),
            memory=SimpleNamespace(_record_memory_history=record, _snapshot=self._snapshot),
            _queued_calls=[],
        )
        self.cuda._lazy_call = lambda call: self.cuda._queued_calls.append((call, []))

    def initialize(self) -> None:
        for call, _ in self.cuda._queued_calls:
            call()
        self.initialized = True

    def alloc(self, address: int, size: int, device: int = 0, metadata: str = "") -> None:
        held = self.devices[device]
        held.blocks[address] = size
        held.segments.setdefault(address, 2 << 20)
        held.allocations += 1
        held.peak = max(held.peak, held.allocated)
        held.reserved_peak = max(held.reserved_peak, held.reserved)
        self._event(device, "alloc", address, size, metadata)

    def free(self, address: int, device: int = 0) -> None:
        size = self.devices[device].blocks.pop(address)
        self.devices[device].frees += 1
        self._event(device, "free_requested", address, size)
        self._event(device, "free_completed", address, size)

    def _event(self, device, action, address, size, metadata="") -> None:
        if self.recording is not None:
            now = time.time_ns() // 1000
            self.devices[device].events.append(
                {"action": action, "addr": address, "size": size, "stream": 0, "time_us": now,
                 "frames": [FRAME], "user_metadata": metadata}
            )  # fmt: skip

    def _record(
        self, enabled="all", context="all", stacks="all", max_entries=0, clear_history=False
    ):
        self.calls.append(enabled)
        if enabled is None or clear_history:
            for device in self.devices:
                device.events.clear()
        options = {"context": context, "stacks": stacks, "max_entries": max_entries}
        self.recording = None if enabled is None else options

    def _segments(self) -> list[dict]:
        return [
            {"device": i, "address": start, "total_size": size, "allocated_size": used,
             "stream": 0, "segment_type": "small", "segment_pool_id": (0, 0),
             "blocks": [{"address": start, "size": size, "requested_size": used,
                         "state": "active_allocated" if used else "inactive", "frames": [FRAME]}]}
            for i, device in enumerate(self.devices)
            for start, size in device.segments.items()
            for used in [device.blocks.get(start, 0)]
        ]  # fmt: skip

    def _snapshot(self) -> dict:
        return {
            "segments": self._segments(),
            "device_traces": [list(device.events) for device in self.devices],
        }

    def _stats(self, ordinal: int) -> dict:
        device = self.devices[ordinal]
        return {
            "allocated_bytes": {"all": {"current": device.allocated, "peak": device.peak}},
            "reserved_bytes": {"all": {"current": device.reserved, "peak": device.reserved_peak}},
            "active_bytes": {"all": {"current": device.allocated, "peak": device.peak}},
            "allocation": {
                "all": {
                    "current": len(device.blocks),
                    "allocated": device.allocations,
                    "freed": device.frees,
                }
            },
            "num_alloc_retries": 1,
            "num_ooms": 2,
        }


def source_on(torch: StandIn) -> tuple[CudaSource, Interner]:
    interner = Interner()
    boundaries = Boundaries(interner)
    source = CudaSource(interner, boundaries, torch)
    boundaries.open(lambda step: None)
    source.open()
    return source, interner


@pytest.fixture(autouse=True)
def closed(monkeypatch):
    """Every source and its boundaries are closed after the test, whatever became of it."""
    with ExitStack() as made:
        for kind in (Boundaries, CudaSource):

            def remembered(self, *args, init=kind.__init__, **kwargs):
                init(self, *args, **kwargs)
                made.callback(self.close)

            monkeypatch.setattr(kind, "__init__", remembered)
        yield


def test_counters_are_those_of_the_devices_in_use():
    torch = StandIn()
    torch.alloc(4096, 1000, device=1)
    source, _ = source_on(torch)
    (counters,) = source.counters()
    assert counters.device == "cuda:1"
    assert (counters.allocated, counters.reserved) == (1000, 2 << 20)
    assert (counters.retries, counters.ooms) == (1, 2)
    assert counters.inactive_split == NOT_RECORDED
    assert [d.uuid for d in source.devices()] == ["uuid-1"]


def test_a_peak_is_known_only_when_it_was_raised_since_the_last_look():
    torch = StandIn()
    torch.alloc(0, 1000)
    source, _ = source_on(torch)
    assert source.counters()[0].peak_allocated == NOT_RECORDED
    torch.alloc(1 << 22, 500)
    torch.free(1 << 22)
    assert source.counters()[0].peak_allocated == 1500
    assert source.counters()[0].peak_allocated == NOT_RECORDED


def test_a_window_has_its_start_its_events_and_its_end():
    torch = StandIn(devices=1)
    torch.alloc(0, 1000)
    source, interner = source_on(torch)
    start = source.begin_window()["cuda:0"]
    torch.alloc(4 << 20, 300)
    torch.free(0)
    (chunk,) = source.drain()
    end = source.end_window()["cuda:0"]
    assert list(chunk.events.action) == [Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED]
    assert list(chunk.events.size) == [300, 1000, 1000]
    assert interner.tables().stack(int(chunk.events.stack[0]))[0].filename == "model.py"
    assert (list(start.blocks.requested), list(end.blocks.requested)) == ([1000], [0, 300])
    assert torch.recording is None


def test_a_second_drain_returns_only_what_is_new():
    torch = StandIn(devices=1)
    torch.alloc(0, 1)
    source, _ = source_on(torch)
    source.begin_window()
    torch.alloc(4 << 20, 2)
    assert source.pending_events() == 1
    assert [list(c.events.size) for c in source.drain()] == [[2]]
    assert source.pending_events() == 0
    torch.alloc(8 << 20, 3)
    assert [list(c.events.size) for c in source.drain()] == [[3]]
    assert list(source.drain()) == []


def test_recording_uses_python_stacks_a_bound_and_a_clean_ring():
    torch = StandIn()
    source, _ = source_on(torch)
    source.begin_window()
    assert torch.recording == {"context": "alloc", "stacks": "python", "max_entries": 75_000}
    source.end_window()
    assert torch.calls == ["all", None]


def test_an_older_torch_without_clear_history_records_too():
    torch = StandIn(clear_history=False)
    source, _ = source_on(torch)
    source.begin_window()
    torch.alloc(0, 5)
    assert [list(c.events.size) for c in source.drain()] == [[5]]


def test_cuda_initialised_inside_a_window_is_recorded_from_its_first_byte():
    torch = StandIn(initialized=False, devices=1)
    source, _ = source_on(torch)
    assert source.begin_window() == {}
    assert source.counters() == ()
    torch.initialize()
    torch.alloc(0, 700)
    assert [d.device for d in source.devices()] == ["cuda:0"]
    assert len(source.begin_window()["cuda:0"].blocks) == 0
    assert [list(c.events.size) for c in source.drain()] == [[700]]


def test_closing_before_cuda_was_initialised_leaves_nothing_queued():
    torch = StandIn(initialized=False)
    source, _ = source_on(torch)
    assert len(torch.cuda._queued_calls) == 1
    source.close()
    source.close()
    assert torch.cuda._queued_calls == []
    assert torch.calls == []


def test_events_bear_the_step_and_the_module_at_their_time():
    import torch as real

    torch = StandIn(devices=1)
    source, interner = source_on(torch)
    source.begin_window()

    class Net(real.nn.Module):
        def forward(self, x):
            torch.alloc(0, 11)
            time.sleep(0.002)  # times are whole microseconds
            return x

    Net()(real.ones(1))
    time.sleep(0.002)
    torch.alloc(4 << 20, 22, metadata="theirs")
    (chunk,) = source.drain()
    labels = [interner.tables().labels[row] for row in chunk.events.label]
    assert labels[0].module == "Net"
    assert labels[0].phase.name == "FORWARD"
    assert (labels[1].annotation, labels[1].step) == ("theirs", labels[0].step)
    assert labels[1].step >= 0
