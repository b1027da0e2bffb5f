"""The CUDA source against a stand-in of torch's private calls; not a test of a GPU."""

from __future__ import annotations

import time
from contextlib import ExitStack

import pytest

pytest.importorskip("torch", reason="the labels of CUDA events come from torch's hooks")

from memprof.sources.cuda.snapshot_source import CudaSource
from memprof.sources.loop.loop_watch import LoopWatch
from memprof.sources.protocol import Interner
from memprof.testing.cuda import StandInOutOfMemoryError, TorchStandIn
from memprof.trace import NOT_RECORDED, Action, BlockState

KIB, MIB = 1 << 10, 1 << 20


def source_on(torch: TorchStandIn) -> tuple[CudaSource, Interner]:
    interner = Interner()
    loop_watch = LoopWatch(interner)
    source = CudaSource(interner, loop_watch, torch)
    loop_watch.open(lambda step: None)
    source.open()
    return source, interner


@pytest.fixture(autouse=True)
def closed(monkeypatch):
    """Every source and its loop watch are closed after the test, whatever became of it."""
    with ExitStack() as made:
        for kind in (LoopWatch, CudaSource):

            def remembered(self, *args, init=kind.__init__, **kwargs):
                init(self, *args, **kwargs)
                made.callback(self.close)

            monkeypatch.setattr(kind, "__init__", remembered)
        yield


def allocated(chunks) -> list[list[int]]:
    """The sizes of the allocations in each of some chunks."""
    return [list(c.events.size[c.events.action == Action.ALLOC]) for c in chunks]


def in_use(state) -> list[int]:
    """The bytes that were asked for of every block in use."""
    blocks = state.blocks
    return list(blocks.requested[blocks.state == BlockState.ACTIVE_ALLOCATED])


def test_counters_are_those_of_the_devices_in_use():
    torch = TorchStandIn(devices=2, capacity=30 * MIB)
    torch.free(torch.alloc(20 * MIB, device=1), device=1)
    torch.alloc(24 * MIB, device=1)  # after a second try, once the cache was emptied
    with pytest.raises(StandInOutOfMemoryError):
        torch.alloc(20 * MIB, device=1)
    source, _ = source_on(torch)
    (counters,) = source.counters()
    assert counters.device == "cuda:1"
    assert (counters.allocated, counters.reserved) == (24 * MIB, 24 * MIB)
    assert (counters.retries, counters.ooms) == (2, 1)
    assert counters.inactive_split == NOT_RECORDED
    assert [d.uuid for d in source.devices()] == ["stand-in-1"]


def test_a_peak_is_known_only_when_it_was_raised_since_the_last_look():
    torch = TorchStandIn()
    torch.alloc(2 * KIB)
    source, _ = source_on(torch)
    assert source.counters()[0].peak_allocated == NOT_RECORDED
    torch.free(torch.alloc(KIB))
    assert source.counters()[0].peak_allocated == 3 * KIB
    assert source.counters()[0].peak_allocated == NOT_RECORDED


def test_a_window_has_its_start_its_events_and_its_end():
    torch = TorchStandIn()
    old = torch.alloc(1000)
    source, interner = source_on(torch)
    start = source.begin_window()["cuda:0"]
    torch.alloc(300)
    torch.free(old)
    (chunk,) = source.drain()
    end = source.end_window()["cuda:0"]
    assert list(chunk.events.action) == [Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED]
    assert list(chunk.events.size) == [300, 1000, 1000]
    assert interner.tables().stack(int(chunk.events.stack[0]))[0].filename == __file__
    assert (in_use(start), in_use(end)) == ([1000], [300])
    assert torch.recording is None


def test_a_second_drain_returns_only_what_is_new():
    torch = TorchStandIn()
    torch.alloc(1)
    source, _ = source_on(torch)
    source.begin_window()
    torch.alloc(2)
    assert source.pending_events() == 1
    assert allocated(source.drain()) == [[2]]
    assert source.pending_events() == 0
    torch.alloc(3)
    assert allocated(source.drain()) == [[3]]
    assert list(source.drain()) == []


def test_recording_uses_python_stacks_a_bound_and_a_clean_ring():
    torch = TorchStandIn()
    source, _ = source_on(torch)
    source.begin_window()
    told = torch.recording
    assert (told.context, told.stacks, told.max_entries) == ("alloc", "python", 75_000)
    torch.alloc(1)
    source.end_window()
    assert torch.recording is None
    assert torch.devices[0].ring.rows == []
    assert torch.calls["record_memory_history"] == 2


def test_an_older_torch_without_clear_history_records_too():
    torch = TorchStandIn("2.7")
    source, _ = source_on(torch)
    source.begin_window()
    torch.alloc(5)
    assert allocated(source.drain()) == [[5]]


def test_cuda_initialised_inside_a_window_is_recorded_from_its_first_byte():
    torch = TorchStandIn(initialized=False)
    source, _ = source_on(torch)
    assert source.begin_window() == {}
    assert source.counters() == ()
    torch.initialize()
    torch.alloc(700)
    assert [d.device for d in source.devices()] == ["cuda:0"]
    assert len(source.begin_window()["cuda:0"].blocks) == 0
    assert allocated(source.drain()) == [[700]]


def test_closing_before_cuda_was_initialised_leaves_nothing_queued():
    torch = TorchStandIn(initialized=False)
    source, _ = source_on(torch)
    assert len(torch.cuda._queued_calls) == 1
    source.close()
    source.close()
    assert torch.cuda._queued_calls == []
    assert torch.calls == {}


def test_events_bear_the_step_and_the_module_at_their_time():
    import torch as real

    torch = TorchStandIn()
    source, interner = source_on(torch)
    source.begin_window()

    class Net(real.nn.Module):
        def forward(self, x):
            torch.alloc(11)
            time.sleep(0.002)  # times are whole microseconds
            return x

    Net()(real.ones(1))
    time.sleep(0.002)
    torch.cuda.memory._set_memory_metadata("theirs")
    torch.alloc(22)
    (chunk,) = source.drain()
    made = chunk.events.label[chunk.events.action == Action.ALLOC]
    labels = [interner.tables().labels[row] for row in made]
    assert labels[0].module == "Net"
    assert labels[0].phase.name == "FORWARD"
    assert (labels[1].annotation, labels[1].step) == ("theirs", labels[0].step)
    assert labels[1].step >= 0
