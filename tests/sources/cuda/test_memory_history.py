"""torch's recorder when the program uses it too, and when a look at it would take too long."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator

import pytest

pytest.importorskip("torch", reason="the labels of CUDA events come from torch's hooks")

from memprof.sources.cuda.read_budget import ReadCost
from memprof.sources.cuda.snapshot_source import CudaSource
from memprof.sources.loop.loop_watch import LoopWatch
from memprof.sources.protocol import Interner
from memprof.testing.cuda import TorchStandIn
from memprof.trace import Action
from tests.clocks import set_clock

MIB = 1 << 20
VERSIONS = [f"2.{minor}" for minor in range(4, 16)]
NEW_AND_OLD = ("2.4", "2.7", "2.11", "2.15")


class Recorded:
    """A source on a stand-in, and the clock that it measures itself by."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, torch: TorchStandIn) -> None:
        self.torch = torch
        self.now_us = 0.0
        set_clock(monkeypatch, lambda: self.now_us, "sources.cuda.snapshot_source")
        self.paces: list[ReadCost] = []
        monkeypatch.setattr("memprof.sources.cuda.memory_history.ReadCost", self.pace)
        self.interner = Interner()
        self.loop_watch = LoopWatch(self.interner)
        self.loop_watch.open(lambda step: None)
        self._whole = torch.cuda.memory._snapshot
        self.source = CudaSource(self.interner, self.loop_watch, torch)
        self.source.open()

    def record(self, *args, **kwargs) -> None:
        self.torch.cuda.memory._record_memory_history(*args, **kwargs)

    def pace(self, *thought) -> ReadCost:
        self.paces.append(ReadCost(*thought))
        return self.paces[-1]

    def think(self, row_us: float) -> None:
        """A look at memprof's own recording has taken so long for each row."""
        own, _of_the_program = self.paces
        own.__init__(row_us)

    def sizes(self) -> list[int]:
        """Requested bytes of the allocations that a drain returns."""
        return [size for chunk in self.source.drain() for size in sizes_in(chunk)]

    def take_long(self, each_us: float) -> None:
        """From now on a snapshot takes so long for each entry and block."""
        whole = self._whole

        def slow(device=None):
            found = whole(device)
            rows = sum(map(len, found["device_traces"]))
            rows += sum(len(s["blocks"]) for s in found["segments"])
            self.now_us += rows * each_us
            return found

        self.torch.cuda.memory._snapshot = slow

    @property
    def ring(self) -> list:
        """The program's view of its history."""
        return self.torch.cuda.memory._snapshot()["device_traces"][0]


def wait_for(something) -> None:
    """A loop of Python, as a program has, until it is so or a minute has gone."""
    until = time.monotonic() + 60
    while not something() and time.monotonic() < until:
        pass


def sizes_in(chunk) -> list[int]:
    return chunk.events.size[chunk.events.action == Action.ALLOC].tolist()


@pytest.fixture
def recorded(monkeypatch) -> Iterator:
    """Makes a `Recorded`; closed after the test."""
    made: list[Recorded] = []

    def make(version: str = "2.13", **options) -> Recorded:
        made.append(Recorded(monkeypatch, TorchStandIn(version, **options)))
        return made[-1]

    yield make
    for one in made:
        one.source.close()
        one.loop_watch.close()


# -- the program records too -------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_a_history_that_runs_already_is_shared_and_goes_on(version, recorded):
    job = recorded(version)
    job.record("all", context="all", stacks="python", max_entries=1000)
    job.torch.alloc(MIB)
    assert job.source.begin_window() == {}
    kept = job.torch.alloc(2 * MIB)
    assert job.sizes() == [2 * MIB]
    job.torch.free(kept)
    job.torch.alloc(3 * MIB)
    assert job.sizes() == [3 * MIB]
    assert job.source.end_window()["cuda:0"].allocated == 4 * MIB
    job.source.close()
    assert job.torch._C._cuda_isHistoryEnabled()
    assert job.torch.calls["record_memory_history"] == 1
    assert [e["size"] for e in job.ring if e["action"] == "alloc"] == [MIB, 2 * MIB, 3 * MIB]
    assert "is shared" in " ".join(job.source.notes())


@pytest.mark.parametrize("version", VERSIONS)
def test_a_history_that_starts_in_a_window_takes_over_without_a_gap(version, recorded):
    job = recorded(version)
    job.source.begin_window()
    job.torch.alloc(MIB)
    job.record("all", stacks="python", max_entries=500)
    job.torch.alloc(2 * MIB)
    assert job.sizes() == [MIB, 2 * MIB]
    job.source.end_window()
    assert job.torch._C._cuda_isHistoryEnabled()
    job.torch.alloc(3 * MIB)
    # As without memprof: it holds what happened since it was turned on, and nothing older.
    assert [e["size"] for e in job.ring if e["action"] == "alloc"] == [2 * MIB, 3 * MIB]
    assert not job.source.is_over()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_history_that_stops_in_a_window_is_taken_over_without_a_gap(version, recorded):
    job = recorded(version)
    job.record("all", max_entries=500)
    job.source.begin_window()
    job.torch.alloc(MIB)
    job.record(None)
    job.torch.alloc(2 * MIB)
    assert job.sizes() == [MIB, 2 * MIB]
    assert job.source.end_window()["cuda:0"].allocated == 3 * MIB
    assert not job.source.is_over()
    assert not job.torch._C._cuda_isHistoryEnabled()


def test_turning_off_what_the_program_never_turned_on_does_not_end_the_window(recorded):
    job = recorded()
    job.source.begin_window()
    job.torch.alloc(MIB)
    job.record(None)
    job.torch.alloc(2 * MIB)
    assert job.sizes() == [MIB, 2 * MIB]


def test_the_old_way_of_calling_the_recorder_is_noticed_too(recorded):
    job = recorded()
    job.source.begin_window()
    job.torch.alloc(MIB)
    job.record(True)
    job.torch.alloc(2 * MIB)
    job.source.drain()
    job.source.end_window()
    assert job.torch._C._cuda_isHistoryEnabled()


@pytest.mark.parametrize("first", ["program", "memprof"])
def test_a_dump_in_the_middle_of_a_window_changes_nothing(first, recorded):
    job = recorded()
    if first == "program":
        job.record("all", max_entries=1000)
    job.source.begin_window()
    job.torch.alloc(MIB)
    assert job.torch.cuda.memory._snapshot()["segments"]
    job.torch.alloc(2 * MIB)
    assert job.sizes() == [MIB, 2 * MIB]
    assert not job.source.is_over()


def test_a_history_that_is_started_afresh_in_a_window_loses_nothing(recorded):
    job = recorded()
    job.record("all", max_entries=1000)
    job.source.begin_window()
    job.torch.alloc(MIB)
    job.record("all", max_entries=200, clear_history=True)
    job.torch.alloc(2 * MIB)
    assert job.sizes() == [MIB, 2 * MIB]
    assert not job.source.is_over()


@pytest.mark.parametrize("version", NEW_AND_OLD)
def test_a_small_ring_is_followed_by_time_as_long_as_it_drops_nothing_unseen(version, recorded):
    job = recorded(version)
    job.record("all", max_entries=12)
    job.source.begin_window()
    seen = []
    for number in range(1, 30):
        job.torch.free(job.torch.alloc(number * 1024))
        seen += job.sizes()
    assert seen == [number * 1024 for number in range(1, 30)]
    assert not job.source.is_over()


def test_a_small_ring_that_dropped_entries_is_told_and_ends_the_window(recorded):
    job = recorded()
    job.record("all", max_entries=6)
    job.source.begin_window()
    job.torch.alloc(MIB)
    assert job.sizes() == [MIB]
    for _ in range(10):
        job.torch.free(job.torch.alloc(MIB))
    assert job.sizes() == []
    assert job.source.is_over()
    assert job.source.end_window()["cuda:0"].allocated == MIB  # it fits the events before the gap
    assert "the program's own memory history overflowed" in " ".join(job.source.notes())
    assert job.source.begin_window() == {}
    assert not job.source.is_over()
    job.torch.alloc(5 * MIB)
    assert job.sizes() == [5 * MIB]


def test_a_small_ring_that_overflowed_once_is_read_before_it_does_so_again(recorded):
    job = recorded()
    job.record("all", max_entries=20)
    for expected in ([], [number * 1024 for number in range(1, 30)]):
        job.source.begin_window()
        for number in range(1, 30):
            job.torch.free(job.torch.alloc(number * 1024))
            job.source.counters()
        assert job.sizes() == expected
        job.source.end_window()


def test_after_three_windows_that_overflowed_others_are_tried_ever_more_rarely(recorded):
    job = recorded()
    job.record("state")  # keeps one entry

    def window() -> bool:
        """Whether one was recorded, and overflowed."""
        looks = job.torch.calls["snapshot"]
        job.source.begin_window()
        for _ in range(3):
            job.torch.alloc(MIB)
        assert job.sizes() == []
        was_recorded = job.torch.calls["snapshot"] > looks
        assert job.source.is_over() is was_recorded
        job.source.end_window()
        return was_recorded

    assert [window() for _ in range(6)] == [True, True, True, False, False, False]
    assert "3 windows overflowed" in " ".join(job.source.notes())
    for gap_s in (10, 20, 40):
        job.now_us += gap_s * 1e6 - 1
        assert not window()
        job.now_us += 1
        assert [window() for _ in range(3)] == [True, False, False]
    job.record(None)
    job.now_us += 80e6
    job.source.begin_window()
    job.torch.alloc(2 * MIB)
    assert job.sizes() == [2 * MIB]


def test_a_window_that_could_not_keep_up_is_over_when_another_may_be_tried(recorded):
    job = recorded()
    job.record("state")
    for _ in range(3):
        job.source.begin_window()
        for _ in range(3):
            job.torch.alloc(MIB)
        job.sizes()
        job.source.end_window()
    job.source.begin_window()
    assert not job.source.is_over()
    job.now_us += 10e6
    assert job.source.is_over()


def test_a_loop_that_crosses_nothing_is_read_before_the_ring_is_full(recorded, monkeypatch):
    monkeypatch.setattr("memprof.sources.cuda.memory_history.LEAST_ENTRIES", 1)
    monkeypatch.setattr("memprof.sources.cuda.snapshot_source.PASSING_US", 0)
    monkeypatch.setattr("memprof.sources.cuda.snapshot_source.BEAT_MS", 1)
    job = recorded()
    job.think(row_us=300.0)  # a ring of a thousand entries
    job.source.begin_window()
    number = looks = 0
    while looks < 5 and number < 5000:
        number += 1
        job.torch.free(job.torch.alloc(512))
        looks = job.torch.calls["snapshot"]
        if number % 200 == 0:
            wait_for(lambda before=looks: job.torch.calls["snapshot"] > before)
    assert looks == 5
    assert len(job.sizes()) == number
    assert not job.source.is_over()
    assert job.source.take_spent_us() >= 0
    job.source.end_window()
    looks = job.torch.calls["snapshot"]
    assert not any(job.torch.calls["snapshot"] > looks for _ in range(10_000))


def test_counters_that_the_program_sets_to_zero_do_not_hide_that_the_ring_fills(
    recorded, monkeypatch
):
    monkeypatch.setattr("memprof.sources.cuda.memory_history.LEAST_ENTRIES", 1)
    job = recorded()
    job.think(row_us=300.0)
    for _ in range(200):
        job.torch.free(job.torch.alloc(512))
    job.source.begin_window()
    made = job.torch.devices[0].counts
    for number in range(1, 700):
        job.torch.free(job.torch.alloc(number * 1024))
        job.source.counters()
        if number % 100 == 0:  # reset_accumulated_memory_stats()
            made["allocated"], made["freed"] = made["allocated"] - made["freed"], 0
            job.source.counters()
    assert job.sizes() == [number * 1024 for number in range(1, 700)]
    assert not job.source.is_over()


@pytest.mark.parametrize("version", VERSIONS)
def test_what_torch_hooks_for_named_ranges_can_be_taken_away_by_any_thread(version, recorded):
    job = recorded(version)
    asked: list[bool] = []
    real = job.torch._C._cuda_record_memory_history

    def record(enabled, context, stacks, max_entries, *newer):
        if enabled is not None and newer:
            asked.append(newer[2])
        return real(enabled, context, stacks, max_entries, *newer)

    job.torch._C._cuda_record_memory_history = record
    job.source.begin_window()
    job.source.end_window()
    assert asked == ([True] if VERSIONS.index(version) >= VERSIONS.index("2.8") else [])


def test_a_ring_that_was_resized_is_read_in_the_order_of_time(recorded):
    job = recorded("2.7")
    job.record("all", max_entries=4)
    for number in range(1, 7):
        job.torch.alloc(number * 1024)
    job.record("all", max_entries=100)  # what is added now lies between its entries
    job.source.begin_window()
    time.sleep(0.002)
    job.torch.alloc(MIB)
    times = [e["time_us"] for e in job.ring]
    assert times != sorted(times)
    assert job.sizes() == [MIB]


def test_stacks_that_only_blocks_have_are_given_to_their_allocations(recorded):
    job = recorded()
    job.record("all", context="state", max_entries=1000)
    job.source.begin_window()
    job.torch.alloc(MIB)
    job.torch.free(job.torch.alloc(2 * MIB))
    (chunk,) = job.source.drain()
    made = chunk.events.take(chunk.events.action == Action.ALLOC)
    assert [bool(row) for row in made.stack] == [True, False]
    frames = job.interner.tables().stack(int(made.stack[0]))
    assert frames[0].filename == __file__


def test_frees_bear_their_own_stacks_where_the_program_asked_for_them(recorded):
    def drop(address: int) -> None:
        job.torch.free(address)

    job = recorded()
    job.record("all", context="all", max_entries=1000)
    job.source.begin_window()
    drop(job.torch.alloc(MIB))
    (chunk,) = job.source.drain()
    freed = chunk.events.stack[chunk.events.action == Action.FREE_REQUESTED][0]
    assert job.interner.tables().stack(int(freed))[0].name == "drop"


def test_a_history_that_skips_what_is_needed_is_not_taken_for_the_whole(recorded):
    job = recorded()
    job.record("all", max_entries=1000, skip_actions=["free_requested"])
    job.source.begin_window()
    job.torch.free(job.torch.alloc(MIB))
    assert job.sizes() == []
    assert job.source.is_over()


def test_torchs_function_is_replaced_in_a_window_only(recorded):
    job = recorded()
    before = job.torch._C._cuda_record_memory_history
    job.source.begin_window()
    assert job.torch._C._cuda_record_memory_history is not before
    job.source.drain()
    job.source.end_window()
    assert job.torch._C._cuda_record_memory_history == before
    job.source.begin_window()
    job.source.close()
    assert job.torch._C._cuda_record_memory_history == before


def test_a_recorder_that_is_stopped_behind_everyones_back_ends_the_window(recorded):
    job = recorded()
    job.source.begin_window()
    job.torch.recording = None
    assert list(job.source.drain()) == []
    assert job.source.is_over()
    assert "stopped in the middle" in " ".join(job.source.notes())


# -- how long a look takes ---------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_the_ring_is_cleared_after_a_long_look_and_nothing_is_lost(version, recorded, monkeypatch):
    monkeypatch.setattr("memprof.sources.cuda.memory_history.LEAST_ENTRIES", 1)
    job = recorded(version)
    job.think(row_us=3000.0)
    job.source.begin_window()
    seen = []
    for number in range(1, 60):
        job.torch.free(job.torch.alloc(number * 1024))
        seen += job.sizes()
        assert len(job.torch.devices[0].ring.rows) < 40
    assert seen == [number * 1024 for number in range(1, 60)]
    assert not job.source.is_over()


def test_a_ring_that_overflowed_is_said_and_gives_no_false_trace(recorded, monkeypatch):
    monkeypatch.setattr("memprof.sources.cuda.memory_history.LEAST_ENTRIES", 1)
    job = recorded()
    job.think(row_us=10_000.0)
    job.source.begin_window()
    for _ in range(20):
        job.torch.free(job.torch.alloc(MIB))
    assert list(job.source.drain()) == []
    assert job.source.is_over()
    assert job.source.end_window() == {}
    assert "torch's recorder overflowed on cuda:0" in " ".join(job.source.notes())


def test_a_filling_ring_is_read_at_a_boundary_in_the_middle_of_a_step(recorded, monkeypatch):
    monkeypatch.setattr("memprof.sources.cuda.memory_history.LEAST_ENTRIES", 1)
    monkeypatch.setattr("memprof.sources.cuda.snapshot_source.PASSING_US", 0)
    job = recorded()
    job.think(row_us=5000.0)
    job.source.begin_window()
    for number in range(1, 100):
        job.torch.free(job.torch.alloc(number * 1024))
        for cross in job.loop_watch.crossings:
            cross()
    assert job.sizes() == [number * 1024 for number in range(1, 100)]
    assert not job.source.is_over()


def test_a_filling_ring_is_read_at_a_steps_end_though_a_drain_is_not_due(recorded, monkeypatch):
    monkeypatch.setattr("memprof.sources.cuda.memory_history.LEAST_ENTRIES", 1)
    job = recorded()
    job.torch.alloc(MIB)
    job.think(row_us=5000.0)
    job.source.begin_window()
    for number in range(1, 100):
        job.torch.free(job.torch.alloc(number * 1024))
        job.source.counters()
    assert job.sizes() == [number * 1024 for number in range(1, 100)]
    assert not job.source.is_over()


def test_a_forked_child_leaves_the_parents_recording_and_puts_torch_back(recorded, monkeypatch):
    job = recorded()
    before = job.torch._C._cuda_record_memory_history
    job.source.begin_window()
    monkeypatch.setattr("memprof.sources.cuda.snapshot_source.os.getpid", lambda: -1)
    job.source.close()
    assert job.torch.calls["record_memory_history"] == 1
    assert job.torch._C._cuda_isHistoryEnabled()
    assert job.torch._C._cuda_record_memory_history == before


def test_a_heap_of_too_many_blocks_is_not_looked_at(recorded):
    job = recorded()
    for _ in range(30):
        job.torch.alloc(1024)
    job.think(row_us=20_000.0)
    assert job.source.begin_window() == {}
    assert list(job.source.drain()) == []
    assert job.torch.calls["snapshot"] == job.torch.calls["memory_snapshot"] == 0
    assert "30 blocks are in use, and a look at them and at some events would hold" in " ".join(
        job.source.notes()
    )
    assert job.source.counters()[0].allocated == 30 * 1024


def test_what_was_too_dear_is_tried_again_ever_more_rarely(recorded):
    job = recorded()
    job.torch.alloc(1024)
    job.think(row_us=20_000.0)
    for gap_s in (10, 20, 40):
        assert job.source.begin_window() == {}
        assert not job.source.is_over()
        job.now_us += gap_s * 1e6
        assert job.source.is_over()
        job.source.end_window()
    job.think(row_us=10.0)
    assert job.source.begin_window()["cuda:0"].allocated == 1024
    job.now_us += 1e9
    assert not job.source.is_over()


def test_looks_grow_shorter_when_they_turn_out_to_be_slow(recorded):
    job = recorded()
    job.take_long(100.0)
    job.source.begin_window()
    first = job.torch.recording.max_entries
    for _ in range(400):
        job.torch.free(job.torch.alloc(1024))
    job.sizes()
    job.source.end_window()
    job.source.begin_window()
    assert first == 75_000
    assert job.torch.recording.max_entries <= 300_000 / 100
    assert job.now_us < 500_000


def test_ranges_that_the_program_names_count_among_what_a_look_reads(recorded):
    job = recorded()
    whole = job.torch.cuda.memory._snapshot

    def snapshot(device=None):
        job.now_us += 60_000
        return {**whole(device), "external_annotations": [{}] * 50_000}

    job.torch.cuda.memory._snapshot = snapshot
    for _ in range(2):
        job.source.begin_window()
        job.torch.alloc(1024)
        assert job.sizes() == [1024]
        job.source.end_window()
    job.source.begin_window()
    assert job.torch.recording.max_entries > 70_000  # and not 5,000, by 60 µs an entry


def test_looks_that_wait_for_the_processor_are_not_thought_slow(recorded, monkeypatch):
    job = recorded()
    job.take_long(100.0)
    clock = sys.modules["memprof.sources.cuda.snapshot_source"].time
    monkeypatch.setattr(clock, "thread_time_ns", lambda: int(job.now_us * 10))  # a hundredth
    job.source.begin_window()
    for _ in range(400):
        job.torch.free(job.torch.alloc(1024))
    job.sizes()
    job.source.end_window()
    job.source.begin_window()
    assert job.now_us > 100_000
    assert job.torch.recording.max_entries > 70_000


def test_a_program_with_a_long_history_is_not_held_up_by_reading_it(recorded):
    job = recorded()
    job.take_long(1000.0)
    job.record("all", max_entries=100_000)
    for _ in range(4000):
        job.torch.free(job.torch.alloc(1024))
    job.source.begin_window()
    assert list(job.source.drain()) == []
    assert job.torch.calls["snapshot"] == 0
    assert job.now_us == 0
    assert not job.source.is_over()
    assert "too long to be read" in " ".join(job.source.notes())


def test_a_history_that_was_seen_to_begin_late_is_known_to_be_short(recorded):
    job = recorded()
    for _ in range(4000):
        job.torch.free(job.torch.alloc(1024))
    job.source.devices()
    job.source.counters()  # between windows: the program does not record yet
    job.record("all", max_entries=100_000)
    job.source.begin_window()
    job.torch.alloc(MIB)
    assert job.sizes() == [MIB]


def test_a_history_that_took_too_long_once_is_said_and_not_read_again(recorded):
    job = recorded()
    job.take_long(300.0)
    job.record("all", stacks="all", max_entries=100_000)
    job.source.begin_window()
    for _ in range(600):
        job.torch.free(job.torch.alloc(1024))
    assert len(job.sizes()) == 600
    assert job.now_us > 500_000
    stalled = job.now_us
    assert "held the job up for" in " ".join(job.source.notes())
    job.torch.alloc(MIB)
    assert job.sizes() == []
    assert job.source.is_over()
    job.source.end_window()
    job.source.begin_window()
    assert job.now_us == stalled


def test_names_that_take_long_to_find_once_are_forgiven(recorded):
    job = recorded()
    job.record("all", stacks="all", max_entries=1000)
    job.source.begin_window()
    job.torch.alloc(MIB)
    job.take_long(100_000.0)
    assert job.sizes() == [MIB]
    job.take_long(0.0)
    job.torch.alloc(2 * MIB)
    assert job.sizes() == [2 * MIB]


@pytest.mark.parametrize("most", [14, 1000])
@pytest.mark.parametrize("shift_us", [1, -1, 3, 200])
def test_times_that_torch_converts_anew_at_each_look_repeat_and_lose_nothing(
    shift_us, most, recorded
):
    job = recorded()
    errors = itertools.cycle([0, shift_us, 2 * shift_us])
    job.torch.clock_error_us = lambda: next(errors)
    job.record("all", max_entries=most)
    job.source.begin_window()
    seen = []
    for number in range(1, 30):
        job.torch.free(job.torch.alloc(number * 1024))
        job.torch.free(job.torch.alloc(1024))
        seen += job.sizes()
    assert seen == [size for number in range(1, 30) for size in (number * 1024, 1024)]
    assert not job.source.is_over()
