"""What the CPU's allocator tells when the native part listens to it."""

from __future__ import annotations

import copy
import gc
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import numpy as np
import pytest

import memprof
from memprof import native
from memprof.loading import load
from memprof.report.recording_gaps import recording_gaps
from memprof.sources.cpu.allocator_source import BLOCK_ROW
from memprof.sources.loop.main_thread import Beat
from memprof.sources.native_rows import RowAlarm
from memprof.trace import Action, Category, Phase
from memprof.views.examination import examine

torch = pytest.importorskip("torch", reason="the allocator is torch's")
nn = torch.nn

ROOT = Path(__file__).resolve().parents[3]
PATHS = os.pathsep.join(str(ROOT / folder) for folder in ("", "cli", "dashboards"))

pytestmark = pytest.mark.usefixtures("with_native")


@pytest.fixture
def cpu_rows():
    """The native part while it writes rows of the CPU."""
    part = native.load()
    part.cpu_start()
    part.cpu_begin()
    yield part
    part.cpu_end()
    part.cpu_stop()


def recorded(path, program, **options):
    """The CPU's trace of one window around a program, and the run."""
    gc.collect()  # what other tests left must not die in the window
    options = {"allowance_s": 600.0, **options}  # one window, however busy the machine is
    with memprof.track(path, sources=("cpu",), **options) as tracker:
        program(tracker)
    run = load(path)
    (device,) = run.devices
    (trace,) = device.windows
    return run, trace


def allocations(trace):
    """Size, phase, module and category of each allocation."""
    events, labels = trace.events, trace.tables.labels
    made = np.flatnonzero(events.action == Action.ALLOC)
    return [
        (
            int(events.size[row]),
            labels[events.label[row]].phase,
            labels[events.label[row]].module,
            Category(events.category[row]),
        )
        for row in made
    ]


def test_every_allocation_is_there_with_its_line(tmp_path):
    kept = []

    def program(_tracker):
        kept.append(torch.empty(1000))
        torch.empty(2000)

    _, trace = recorded(tmp_path / "run.json", program)
    events = trace.events
    assert events.size[events.action == Action.ALLOC].tolist() == [4000, 8000]
    assert events.size[events.action == Action.FREE_COMPLETED].tolist() == [8000]
    (first, second) = events.stack[events.action == Action.ALLOC]
    lines = [trace.tables.frames[trace.tables.stacks[row][0]].line for row in (first, second)]
    start = program.__code__.co_firstlineno
    assert lines == [start + 1, start + 2]


def test_whoever_waits_is_woken_by_every_8192_rows(cpu_rows):
    asked = threading.Semaphore(0)
    beat = Beat(asked.release, interval_ms=3_600_000)
    beat.start(RowAlarm(cpu_rows))
    try:
        for _ in range(2):
            for _ in range(4095):
                torch.empty(8)  # comes and goes: two rows
            assert cpu_rows.cpu_pending() % 8192 == 8190
            assert not asked.acquire(timeout=0.05)
            torch.empty(8)
            assert asked.acquire(timeout=30)
        assert not asked.acquire(blocking=False)
    finally:
        beat.close()


def test_the_file_says_that_the_allocator_itself_was_listened_to(tmp_path):
    run, _ = recorded(tmp_path / "run.json", lambda _: torch.ones(1000))
    assert run.devices[0].info.recorder == "allocator"
    assert not any("operators" in one for one in recording_gaps(examine(run)))


def test_gradients_that_meet_are_added_in_place_as_without_memprof(tmp_path):
    weight = nn.Parameter(torch.ones(1 << 16))

    def program(tracker):
        for _ in range(3):
            x = weight * 1.0
            sum((x * float(i)).sum() for i in range(1, 5)).backward()
            weight.grad = None
            tracker.step()

    run, trace = recorded(tmp_path / "run.json", program)
    before = int(trace.start.blocks.requested.sum())
    peaks = examine(run).devices[0].steps.peak_allocated.tolist()
    # x, the gradient that is summed and the one that comes: with a dispatch mode, a fourth.
    assert [(peak - before) // (4 << 16) for peak in peaks[:3]] == [3, 3, 3]


def test_gradients_are_equal_to_the_last_bit(tmp_path):
    def gradients():
        torch.manual_seed(0)
        x = torch.rand(64, 32, requires_grad=True)
        (x.prod(1).sum() + x.cumprod(0).sum() + (x * x + x).sin().sum()).backward()
        return x.grad.clone()

    plain = gradients()
    seen = []
    recorded(tmp_path / "run.json", lambda _: seen.append(gradients()))
    assert torch.equal(plain, seen[0])


def test_the_peak_is_that_of_torch_s_profiler(tmp_path):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 4, 5))
    optimizer = torch.optim.Adam(net.parameters())

    def train():
        for _ in range(2):
            loss = net(torch.ones(4, 3, 32, 32)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            del loss

    train()
    with torch.profiler.profile(profile_memory=True) as profiler:
        train()
    now = peak = 0
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            peak = max(peak, now)
    _, trace = recorded(tmp_path / "run.json", lambda _: train())
    events = trace.events
    signs = np.zeros(len(events), dtype=np.int64)
    signs[events.action == Action.ALLOC] = 1
    signs[events.action == Action.FREE_COMPLETED] = -1
    assert int((signs * events.size).cumsum().max()) == peak


def test_places_in_a_training_step_are_those_of_the_program(tmp_path):
    net = nn.Sequential(nn.Linear(8, 100), nn.ReLU(), nn.Linear(100, 7))
    optimizer = torch.optim.Adam(net.parameters(), foreach=False)

    def program(_tracker):
        for _ in range(3):
            nn.functional.mse_loss(net(torch.ones(5, 8)), torch.ones(5, 7)).backward()
            optimizer.step()
            optimizer.zero_grad()

    _, trace = recorded(tmp_path / "run.json", program)
    made = allocations(trace)
    hidden = 5 * 100 * 4
    assert (hidden, Phase.FORWARD, "Sequential.0", Category.ACTIVATION) in made or (
        hidden,
        Phase.FORWARD,
        "Sequential.0",
        Category.TEMPORARY,
    ) in made
    assert (hidden, Phase.FORWARD, "Sequential.1", Category.ACTIVATION) in made
    gradients = [one for one in made if one[3] == Category.GRADIENT]
    assert {(one[0], one[1], one[2]) for one in gradients} == {
        (8 * 100 * 4, Phase.BACKWARD, "Sequential.0"),
        (100 * 4, Phase.BACKWARD, "Sequential.0"),
        (700 * 4, Phase.BACKWARD, "Sequential.2"),
        (7 * 4, Phase.BACKWARD, "Sequential.2"),
    }
    states = [one for one in made if one[3] == Category.OPTIMIZER_STATE]
    assert {one[1] for one in states} == {Phase.OPTIMIZER}
    assert sum(one[0] for one in states) == 2 * 4 * (800 + 100 + 700 + 7) + 4 * 4


def test_what_comes_after_the_backward_pass_is_no_part_of_the_loss(tmp_path):
    net = nn.Linear(4, 4)

    def program(_tracker):
        net(torch.ones(1, 4)).sum().backward()
        torch.empty(12345)

    _, trace = recorded(tmp_path / "run.json", program)
    (phase,) = [phase for size, phase, _, _ in allocations(trace) if size == 4 * 12345]
    assert phase == Phase.OTHER


def test_tensors_of_other_threads_have_stacks_and_holders(tmp_path):
    cache = {}

    def serve(number):
        cache[number] = torch.ones(1000)

    def program(tracker):
        with ThreadPoolExecutor(2) as pool:
            for number in range(40):
                pool.submit(serve, number).result()
                tracker.step()

    run, trace = recorded(tmp_path / "run.json", program)
    stacks = trace.events.stack[(trace.events.action == Action.ALLOC) & (trace.events.size == 4000)]
    names = {trace.tables.frames[trace.tables.stacks[row][0]].name for row in stacks}
    assert len(stacks) == 40
    assert {name.rpartition(".")[2] for name in names} == {"serve"}
    holders = [f for f in run.findings if f.finding == "holders" and f.holders]
    assert any("cache" in str(link) for f in holders for link in f.holders[0].links)


def test_numpy_s_memory_counts_while_a_tensor_shows_it(tmp_path):
    shown = [torch.from_numpy(np.ones(5000, dtype=np.float32))]
    _, trace = recorded(tmp_path / "run.json", lambda _: shown.clear())
    assert trace.start.blocks.requested.tolist().count(20000) == 1
    freed = trace.events.action == Action.FREE_COMPLETED
    assert trace.events.size[freed].tolist().count(20000) == 1


def test_afterwards_torch_s_own_allocator_is_back(tmp_path, with_native):
    survivor = []
    recorded(tmp_path / "run.json", lambda _: survivor.append(torch.ones(100)))
    assert not with_native.cpu_is_installed()
    assert with_native.cpu_pending() == 0
    recorded(tmp_path / "again.json", lambda _: survivor.clear())  # made before, gone within
    assert with_native.cpu_counters()[0] == 0


def test_a_forked_child_records_nothing(tmp_path):
    def program(_tracker):
        kept = torch.ones(10)
        child = os.fork()
        if child == 0:
            torch.empty(77777)  # to fill it would ask OpenMP's threads, which a fork leaves behind
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        del kept

    _, trace = recorded(tmp_path / "run.json", program)
    assert 4 * 77777 not in trace.events.size.tolist()


def test_more_rows_than_there_is_room_for_end_the_window(tmp_path, with_native):
    with_native.cpu_start()
    try:
        with_native.cpu_begin()
        for _ in range(500_000):
            torch.empty(1)
        lost = with_native.cpu_counters()[2]
        assert with_native.cpu_pending() == (64 << 20) // 80
        assert lost == 1_000_000 - (64 << 20) // 80
        with_native.cpu_end()
    finally:
        with_native.cpu_stop()


def test_threads_that_allocate_side_by_side_lose_nothing(tmp_path):
    def work():
        for _ in range(500):
            torch.empty(333)

    def program(_tracker):
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    _, trace = recorded(tmp_path / "run.json", program)
    mine = trace.events.size == 4 * 333
    assert int((mine & (trace.events.action == Action.ALLOC)).sum()) == 2000
    assert int((mine & (trace.events.action == Action.FREE_COMPLETED)).sum()) == 2000


def test_a_thread_has_no_label_of_an_earlier_recording(tmp_path):
    layer = nn.Linear(8, 8).requires_grad_(False)  # a thread that trains has a note of its own

    def called(pool, tracker):
        for _ in range(12):  # rows of labels that the next recording does not have
            pool.submit(torch.no_grad()(layer), torch.ones(4, 8)).result()
            tracker.step()

    with ThreadPoolExecutor(1) as pool:
        recorded(tmp_path / "first.json", lambda tracker: called(pool, tracker))
        run, trace = recorded(
            tmp_path / "run.json", lambda _tracker: pool.submit(torch.empty, 777).result()
        )
    assert [note.message for note in run.notes if note.source == "cpu"] == []
    made = [
        trace.tables.labels[row]
        for row, size in zip(trace.events.label, trace.events.size, strict=True)
        if size == 4 * 777
    ]
    assert {(label.step, label.module) for label in made} == {(0, "")}


def test_without_a_compiler_the_recording_goes_on_and_says_so(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("import torch\nkept = torch.ones(1000)\n")
    environment = {
        **os.environ,
        "PYTHONPATH": PATHS,
        "MEMPROF_NATIVE": "1",
        "MEMPROF_CACHE": str(tmp_path / "cache"),
        "CXX": str(tmp_path / "no-compiler"),
        "CC": str(tmp_path / "no-compiler"),
    }
    command = [sys.executable, "-m", "memprof_cli", "run", "-o", "run.json", str(program)]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    run = load(tmp_path / "run.json")
    (note,) = [note for note in run.notes if note.source == "native"]
    assert "could not be built" in note.message
    assert [device.device for device in run.devices] == ["cpu"]


def test_the_blocks_in_use_are_exact_however_many_come_and_in_whatever_order_they_go():
    part = native.load()
    part.cpu_start()
    try:
        before, *_ = part.cpu_counters()
        random, living, expected = Random(11), {}, 0
        for round_ in range(20_000):
            if living and random.random() < (0.2 if round_ < 10_000 else 0.7):
                address = random.choice(list(living)) if len(living) < 50 else next(iter(living))
                expected -= living.pop(address).nbytes
            else:
                block = torch.empty(random.randrange(1, 200), dtype=torch.uint8)
                living[block.data_ptr()] = block
                expected += block.nbytes
        now, peak, *_ = part.cpu_counters()
        assert now - before == expected
        assert peak - before > expected
        listed = np.frombuffer(part.cpu_living(), BLOCK_ROW)
        ours = listed[np.isin(listed["address"], list(living))]
        assert {int(b["address"]): int(b["size"]) for b in ours} == {
            address: block.nbytes for address, block in living.items()
        }
        assert len(ours) == len(living) > 1000
        block = None
        living.clear()
        assert part.cpu_counters()[0] == before
    finally:
        part.cpu_stop()


def test_what_deepcopy_clones_is_recorded_where_it_is_made(tmp_path):
    """It takes memory of torch's default allocator, whichever one is set."""
    weights, copies = torch.ones(1000), []

    def program(_tracker):
        copies.append(copy.deepcopy(weights))
        torch.empty(2000)

    _, trace = recorded(tmp_path / "run.json", program)
    events = trace.events
    made = np.flatnonzero((events.action == Action.ALLOC) & (events.size >= 4000))
    assert events.size[made].tolist() == [4000, 8000]
    stack = trace.tables.stack(int(events.stack[made[0]]))
    assert next(one.name for one in stack if one.filename == __file__).endswith("program")
    assert "clone" not in vars(torch.UntypedStorage)
    copies.clear()


def test_a_storage_that_cannot_be_looked_at_is_cloned_all_the_same(tmp_path, monkeypatch):
    weights, copies = torch.arange(1000.0), []

    def raises(*_arguments):
        raise RuntimeError("it is somebody else's")

    monkeypatch.setattr(native.load(), "cpu_foreign", raises)
    recorded(tmp_path / "run.json", lambda _: copies.append(copy.deepcopy(weights)))
    assert torch.equal(copies[0], weights)


def test_a_clone_that_goes_is_given_back(tmp_path):
    weights = torch.ones(1000)

    def program(_tracker):
        for _ in range(3):
            copy.deepcopy(weights)

    _, trace = recorded(tmp_path / "run.json", program)
    freed = (trace.events.action == Action.FREE_COMPLETED) & (trace.events.size == 4000)
    assert int(freed.sum()) == 3
