"""The CUDA source against torch's private calls of every version, as the stand-in models them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="the labels of CUDA events come from torch's hooks")

from memprof.sources.cuda.devices import backend as backend_of
from memprof.sources.cuda.devices import uuid_of
from memprof.sources.cuda.oom_observer import Exhausted
from memprof.sources.cuda.snapshot_source import CudaSource
from memprof.sources.loop.loop_watch import LoopWatch
from memprof.sources.nvml import cuda_uuids
from memprof.sources.protocol import Interner
from memprof.testing.cuda import StandInOutOfMemoryError, TorchStandIn
from memprof.trace import Action, BlockState
from tests.clocks import set_clock

MIB = 1 << 20
VERSIONS = [f"2.{minor}" for minor in range(4, 16)]
FORBIDDEN = ("synchronize", "empty_cache", "reset_peak_memory_stats", "init")


@pytest.fixture
def sources() -> Iterator[ExitStack]:
    """What closes the sources made in a test."""
    with ExitStack() as made:
        yield made


def source_on(
    torch: TorchStandIn, made: ExitStack, on_oom: Callable[[Exhausted], None] | None = None
) -> tuple[CudaSource, Interner]:
    interner = Interner()
    loop_watch = LoopWatch(interner)
    loop_watch.open(lambda step: None)
    made.callback(loop_watch.close)
    source = CudaSource(interner, loop_watch, torch)
    source.on_oom = on_oom
    source.open()
    made.callback(source.close)
    return source, interner


@pytest.mark.parametrize("version", VERSIONS)
def test_a_window_holds_every_event_in_every_version(version, sources):
    torch = TorchStandIn(version)
    old = torch.alloc(3 * MIB)
    source, interner = source_on(torch, sources)
    start = source.begin_window()["cuda:0"]
    new = torch.alloc(1000)
    torch.free(old)
    (chunk,) = source.drain()
    end = source.end_window()["cuda:0"]
    wanted = [Action.SEGMENT_ALLOC, Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED]
    assert list(chunk.events.action) == wanted
    assert list(chunk.events.address[1:]) == [new, old, old]
    assert interner.tables().stack(int(chunk.events.stack[1]))[0].filename == __file__
    assert (start.allocated, end.allocated) == (3 * MIB, 1024)
    assert end.reserved == torch.cuda.memory_reserved(0)
    assert list(end.blocks.requested[end.blocks.state == BlockState.ACTIVE_ALLOCATED]) == [1000]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_second_window_does_not_repeat_the_first(version, sources):
    torch = TorchStandIn(version)
    torch.alloc(MIB)
    source, _ = source_on(torch, sources)
    for size in (2 * MIB, 3 * MIB):
        source.begin_window()
        torch.alloc(size)
        (chunk,) = source.drain()
        assert list(chunk.events.size[chunk.events.action == Action.ALLOC]) == [size]
        source.end_window()


class Touched:
    """Passes everything on, and remembers what was asked for."""

    def __init__(self, namespace, names: set[str], prefix: str = "") -> None:
        self.__dict__.update(_namespace=namespace, _names=names, _prefix=prefix)

    def __getattr__(self, name: str):
        found = getattr(self._namespace, name)
        if name == "memory":
            return Touched(found, self._names, "memory.")
        self._names.add(self._prefix + name)
        return found


def a_whole_job(torch: TorchStandIn, made: ExitStack) -> None:
    """Everything that the tracker asks of the source, and a failed allocation."""
    source, _ = source_on(torch, made, on_oom=lambda what: None)
    source.counters()
    for _ in range(2):
        source.begin_window()
        torch.alloc(MIB, device=1)
        source.drain()
        with pytest.raises(StandInOutOfMemoryError):
            torch.alloc(1 << 40)
        source.counters()
        source.end_window()
        source.devices()
    source.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_nothing_of_torch_is_called_but_what_is_listed(version, sources):
    torch = TorchStandIn(version, devices=2)
    torch.alloc(MIB)
    names: set[str] = set()
    torch.cuda = Touched(torch.cuda, names)
    a_whole_job(torch, sources)
    listed = {
        "device_count",
        "get_allocator_backend",
        "get_device_properties",
        "is_initialized",
        "memory._record_memory_history",
        "memory._snapshot",
        "memory_reserved",
        "memory_snapshot",
        "memory_stats_as_nested_dict",
        "_queued_calls",
    }
    if VERSIONS.index(version) >= 2:
        listed |= {"get_per_process_memory_fraction", "current_device", "device"}
    assert names == listed  # none of them waits for the device or initialises it
    assert [torch.calls[name] for name in FORBIDDEN] == [0, 0, 0, 0]
    assert not torch._C._cuda_isHistoryEnabled()


@pytest.mark.parametrize("version", VERSIONS)
def test_the_current_device_stays_the_programs(version, sources):
    torch = TorchStandIn(version, devices=2)
    torch.alloc(MIB)
    a_whole_job(torch, sources)
    assert torch.cuda.current_device() == 0


def test_before_the_job_uses_cuda_it_is_only_asked_whether_it_does(sources):
    torch = TorchStandIn(initialized=False)
    names: set[str] = set()
    torch.cuda = Touched(torch.cuda, names)
    source, _ = source_on(torch, sources)
    source.begin_window()
    for _ in range(3):
        source.counters()
        source.devices()
        source.drain()
    source.end_window()
    source.close()
    assert names == {"is_initialized", "_lazy_call", "_queued_calls"}
    assert torch.calls == {}


@pytest.mark.parametrize("version", ["2.5", "2.7"])
def test_hooks_that_torch_leaves_at_every_start_are_few(version, sources, monkeypatch):
    set_clock(monkeypatch, lambda: 0.0, "sources.cuda.snapshot_source")  # no look is slow
    torch = TorchStandIn(version)
    torch.alloc(MIB)
    source, _ = source_on(torch, sources)
    for _ in range(3):
        source.begin_window()
        for _ in range(20):
            torch.free(torch.alloc(MIB))
            source.drain()
        source.end_window()
    assert torch.calls["hooks_left"] == 2 * 3


def _peaks(torch: TorchStandIn) -> tuple[int, int]:
    stats = torch.cuda.memory_stats_as_nested_dict(0)
    return stats["allocated_bytes"]["all"]["peak"], stats["reserved_bytes"]["all"]["peak"]


def test_the_peaks_of_the_program_are_read_and_never_reset(sources):
    torch = TorchStandIn()
    source, _ = source_on(torch, sources)
    torch.free(torch.alloc(64 * MIB))
    for _ in range(3):
        source.counters()
    source.begin_window()
    source.drain()
    source.end_window()
    assert _peaks(torch) == (64 * MIB, 64 * MIB)
    torch.cuda.reset_peak_memory_stats()  # by the program: its peaks begin anew, as on a GPU
    assert _peaks(torch) == (0, 64 * MIB)


def test_every_device_and_stream_that_is_used_is_in_the_window(sources):
    torch = TorchStandIn(devices=3)
    torch.alloc(MIB, device=0)
    source, _ = source_on(torch, sources)
    source.begin_window()
    torch.alloc(5 * MIB, device=2, stream=7)
    torch.alloc(MIB, device=0, stream=0)
    chunks = {chunk.device: chunk for chunk in source.drain()}
    assert sorted(chunks) == ["cuda:0", "cuda:2"]
    assert set(chunks["cuda:2"].events.stream) == {7}
    assert list(chunks["cuda:0"].events.size) == [MIB]  # from the free half of its segment


def test_a_block_that_waits_for_a_stream_is_pending_at_the_windows_end(sources):
    torch = TorchStandIn()
    source, _ = source_on(torch, sources)
    source.begin_window()
    address = torch.alloc(2 * MIB)
    torch.free(address, complete=False)
    source.drain()
    end = source.end_window()["cuda:0"]
    assert (end.allocated, end.active) == (0, 2 * MIB)


def test_allocations_of_the_backward_threads_have_no_stack_and_no_metadata(sources):
    torch = TorchStandIn()
    source, interner = source_on(torch, sources)
    source.begin_window()
    torch.cuda.memory._set_memory_metadata("mine")
    torch.alloc(MIB)
    with torch.backward_thread():
        torch.alloc(MIB)
    (chunk,) = source.drain()
    allocs = chunk.events.take(chunk.events.action == Action.ALLOC)
    labels = [interner.tables().labels[row].annotation for row in allocs.label]
    assert labels == ["mine", ""]
    assert [bool(row) for row in allocs.stack] == [True, False]


@pytest.mark.parametrize("backend", ["cudaMallocAsync", "rocm"])
def test_another_allocator_gives_counters_and_a_note(backend, sources):
    is_rocm = backend == "rocm"
    torch = TorchStandIn(backend="native" if is_rocm else backend, hip="6.4" if is_rocm else None)
    torch.alloc(MIB)
    source, _ = source_on(torch, sources)
    source.on_oom = lambda what: None
    source.begin_window()
    assert list(source.drain()) == []
    assert source.counters()[0].allocated == MIB
    assert source.devices()[0].backend == backend
    assert f"allocator '{backend}': counters only" in " ".join(source.notes())
    assert torch.calls["record_memory_history"] == 0
    assert torch.calls["snapshot"] == 0


@pytest.mark.parametrize("backend", ["pluggable", "uncached"])
def test_an_allocator_without_counters_leaves_the_devices_to_the_driver(
    backend, sources, monkeypatch
):
    if backend == "uncached":
        monkeypatch.setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")
    torch = TorchStandIn(backend=backend, devices=2)
    torch.alloc(MIB, device=1)
    source, _ = source_on(torch, sources)
    source.begin_window()
    assert list(source.drain()) == []
    assert source.end_window() == {}
    assert source.counters() == ()
    assert [(d.device, d.backend) for d in source.devices()] == [("cuda:1", backend)]
    assert f"allocator '{backend}': the driver's figures only" in " ".join(source.notes())
    assert torch.calls["record_memory_history"] == 0


def test_a_closed_source_is_not_called_when_cuda_is_initialised_again_or_late(sources):
    torch = TorchStandIn(initialized=False)
    source, _ = source_on(torch, sources)
    seen = []
    torch.cuda._lazy_call(lambda: seen.append(torch.cuda.is_initialized()))
    source.begin_window()
    torch.initialize()
    assert seen == [False]  # as in torch: what was queued runs first
    assert torch.calls["record_memory_history"] == 1
    assert len(torch.cuda._queued_calls) == 2  # and stays in its list
    source.close()
    assert len(torch.cuda._queued_calls) == 1


def test_cuda_that_is_initialised_later_is_recorded_from_its_first_byte(sources):
    torch = TorchStandIn(initialized=False)
    source, _ = source_on(torch, sources)
    assert source.begin_window() == {}
    assert torch.calls["init"] == 0
    torch.initialize()
    torch.alloc(700)
    assert [d.device for d in source.devices()] == ["cuda:0"]
    source.begin_window()
    (chunk,) = source.drain()
    assert list(chunk.events.size) == [2 * MIB, 700]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_failed_allocation_is_in_the_window_and_told_before_the_error(version, sources):
    torch = TorchStandIn(version, capacity=64 * MIB, outside=MIB)
    torch.alloc(40 * MIB)
    told = []
    source, _ = source_on(torch, sources, on_oom=told.append)
    source.begin_window()
    torch.alloc(4 * MIB)
    with pytest.raises(StandInOutOfMemoryError, match="Tried to allocate"):
        torch.alloc(30 * MIB)
    (what,) = told
    assert (what.device, what.requested) == ("cuda:0", 30 * MIB)
    assert __file__ in {filename for _, filename, _ in what.frames}
    assert what.facts["allocated"] == 44 * MIB
    assert what.facts["reserved"] == 60 * MIB
    assert what.facts["device_free"] == 4 * MIB
    assert what.facts["device_total"] == 65 * MIB
    assert what.facts["largest_free"] == 16 * MIB
    assert sum(what.live.values()) == 4 * MIB  # the rest was there before stacks were recorded
    (chunk,) = source.drain()
    assert chunk.events.action[-1] == Action.OOM
    assert (chunk.events.size[-1], chunk.events.address[-1]) == (30 * MIB, 4 * MIB)


def test_a_closed_source_hears_nothing_and_an_error_of_ours_never_replaces_torchs(sources):
    torch = TorchStandIn(capacity=8 * MIB)
    told = []

    def broken(what):
        told.append(what)
        raise ValueError("ours")

    source, _ = source_on(torch, sources, on_oom=broken)
    for _ in range(2):
        with pytest.raises(StandInOutOfMemoryError):
            torch.alloc(64 * MIB)
        source.close()
    assert len(told) == 1
    assert torch.calls["attach_oom_observer"] == 1


@pytest.mark.parametrize(
    ("visible", "told", "uuid"),
    [
        ("", "11112222-aaaa", "11112222-aaaa"),
        ("GPU-9999", "11112222-aaaa", "11112222-aaaa"),  # an abbreviation, which NVML knows not
        ("MIG-77778888-cccc", "11112222-aaaa", "MIG-77778888-cccc"),
        ("1,GPU-9999", None, None),
        ("GPU-99990000-bbbb,1", None, "GPU-99990000-bbbb"),
    ],
)
def test_a_visible_device_is_known_by_its_uuid(visible, told, uuid):
    torch = TorchStandIn()
    properties = SimpleNamespace(uuid=told) if told else SimpleNamespace()
    torch.cuda.get_device_properties = lambda ordinal: properties
    assert uuid_of(torch, 0, {"CUDA_VISIBLE_DEVICES": visible}) == uuid


@pytest.mark.parametrize("backend", ["native", "pluggable", "uncached"])
def test_the_driver_is_asked_for_the_devices_that_are_used(backend, monkeypatch):
    if backend == "uncached":
        monkeypatch.setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")
    torch = TorchStandIn(backend=backend, devices=3)
    torch.alloc(MIB, device=2)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert cuda_uuids() == {"cuda:2": "stand-in-2"}


@pytest.mark.parametrize(
    ("version", "value", "expected"),
    [
        ("2.4.1+cu121", "0", "uncached"),
        ("2.4.1+cu121", "", "uncached"),
        ("2.4.1+cu121", None, "native"),
        ("2.7.1+cu126", "0", "native"),
        ("2.15.0+cu132", "", "native"),
        ("2.15.0+cu132", "1", "uncached"),
    ],
)
def test_a_switch_against_caching_is_read_as_torch_reads_it(version, value, expected):
    torch = TorchStandIn()
    torch.__version__ = version
    environment = {} if value is None else {"PYTORCH_NO_CUDA_MEMORY_CACHING": value}
    assert backend_of(torch, environment) == expected


def test_a_fraction_that_the_program_sets_later_is_seen(monkeypatch):
    torch = TorchStandIn()
    torch.alloc(MIB)
    source = CudaSource(interner := Interner(), LoopWatch(interner), torch)
    source.open()
    assert [info.memory_fraction for info in source.devices()] == [1.0]
    torch.cuda.set_per_process_memory_fraction(0.5)
    for _ in range(60):
        source.counters()
    assert [info.memory_fraction for info in source.devices()] == [0.5]
    source.close()


def test_a_device_is_entered_only_where_it_is_not_the_current_one():
    torch = TorchStandIn(devices=2)
    torch.alloc(MIB, device=0)
    torch.alloc(MIB, device=1)
    entered = []
    real = torch.cuda.device
    torch.cuda.device = lambda ordinal: entered.append(ordinal) or real(ordinal)
    source = CudaSource(interner := Interner(), LoopWatch(interner), torch)
    source.open()
    source.close()
    assert entered == [1]
    assert torch.cuda.current_device() == 0
