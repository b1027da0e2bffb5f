"""track() around real and fake sources: what lands in the file, what is left behind, what it costs."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

import pytest

import memprof
from memprof.records import DeviceInfo, Finding
from memprof.sources.protocol import Chunk, Counters, Reading
from memprof.trace import Action, Events, State
from memprof.tracker import active

torch = pytest.importorskip("torch", reason="there is nothing to record without torch")

ROOT = Path(__file__).resolve().parent.parent
PYTHONPATH = os.pathsep.join(str(ROOT / folder) for folder in (".", "cli", "dashboards"))


class FakeEvents:
    """An event source of the device ``cuda:0``; ``fails`` names the calls that raise."""

    name = "fake"

    def __init__(self, *, fails: Sequence[str] = ()) -> None:
        self.fails = set(fails)
        self.calls: list[str] = []
        self.waiting = 0
        self.made = 0
        self.allocated = 1000
        self.reserved = 4000
        self.late: dict[int, int] = {}

    def happen(self, count: int) -> None:
        """So many allocations."""
        self.waiting += count

    def devices(self) -> Sequence[DeviceInfo]:
        return [DeviceInfo("cuda:0", name="Fake", total_bytes=1 << 30)]

    def open(self) -> None:
        self._called("open")

    def close(self) -> None:
        self._called("close")

    def counters(self) -> Sequence[Counters]:
        self._called("counters")
        return [
            Counters(
                "cuda:0",
                allocated=self.allocated,
                peak_allocated=self.allocated + 500,
                reserved=self.reserved,
            )
        ]

    def begin_window(self) -> Mapping[str, State]:
        self._called("begin_window")
        self.made = self.waiting = 0
        return {"cuda:0": State()}

    def pending_events(self) -> int:
        return self.waiting

    def drain(self) -> Sequence[Chunk]:
        self._called("drain")
        count, self.waiting = self.waiting, 0
        numbers = range(self.made, self.made + count)
        self.made += count
        late, self.late = self.late, {}
        events = Events.build(
            count,
            action=[Action.ALLOC] * count,
            address=[512 * n for n in numbers],
            size=[100] * count,
            time_us=[1_000_000 + n for n in numbers],
        )
        return [Chunk("cuda:0", events, late_events=late)]

    def end_window(self) -> Mapping[str, State]:
        self._called("end_window")
        return {"cuda:0": State()}

    def notes(self) -> Sequence[str]:
        return []

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if name in self.fails:
            raise RuntimeError(f"{name} is broken")


class FakeReadings:
    """A reading source that counts its looks, and may fail at one of them."""

    name = "fake readings"

    def __init__(self, fails_at: int = -1) -> None:
        self.looks = 0
        self.is_open = False
        self.fails_at = fails_at

    def open(self) -> None:
        self.is_open = True

    def close(self) -> None:
        self.is_open = False

    def read(self) -> Sequence[Reading]:
        self.looks += 1
        if self.looks == self.fails_at:
            raise OSError("the wire is cut")
        return [Reading("host", 1_000 * self.looks, {"looks_count": self.looks})]


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "run.json"


def records(path: Path) -> list[dict]:
    return json.loads(path.read_text())


def flat(lists) -> list:
    return list(chain.from_iterable(lists))


def kinds(path: Path) -> list[str]:
    return [record["kind"] for record in records(path)]


def of_kind(path: Path, kind: str) -> list[dict]:
    return [record for record in records(path) if record["kind"] == kind]


def notes(path: Path) -> str:
    return "\n".join(f"{n['source']}: {n['message']}" for n in of_kind(path, "note"))


def python(code: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    plain = {n: v for n, v in os.environ.items() if not n.startswith("MEMPROF")}
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=plain | {"PYTHONPATH": PYTHONPATH, "OMP_NUM_THREADS": "1"} | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


# What is written.


def test_a_run_is_valid_json_from_header_to_footer(path):
    source = FakeEvents()
    with memprof.track(path, sources=[source]) as tracker:
        source.happen(3)
        tracker.step()
    assert kinds(path)[0] == "header"
    assert kinds(path)[-1] == "footer"
    assert of_kind(path, "trace")[0]["size"] == [100, 100, 100]
    assert [s["at"] for s in of_kind(path, "state")] == ["start", "end"]


def test_every_step_makes_a_row_with_the_counters_at_its_end(path):
    source = FakeEvents()
    with memprof.track(path, sources=[source]) as tracker:
        for allocated in (1000, 3000, 2000):
            source.allocated = allocated
            tracker.step()
    rows = [record["steps"] for record in of_kind(path, "steps")]
    assert flat(row["allocated"] for row in rows) == [1000, 3000, 2000]
    assert flat(row["first"] for row in rows) == [0, 1, 2]
    assert flat(row["window"] for row in rows) == [0, 0, 0]
    assert flat(row["reserved"] for row in rows) == [4000] * 3


def test_chunks_of_a_window_follow_one_another_without_a_gap(path, monkeypatch):
    monkeypatch.setattr("memprof.session._FLUSH_IN_WINDOW_US", 0)
    source = FakeEvents()
    with memprof.track(path, sources=[source]) as tracker:
        for count in (5, 0, 2, 7):
            source.happen(count)
            tracker.step()
        source.happen(1)
    chunks = [(c["first_event"], len(c["size"])) for c in of_kind(path, "trace")]
    assert sum(length for _, length in chunks) == 15
    assert [first for first, _ in chunks] == [
        sum(n for _, n in chunks[:i]) for i in range(len(chunks))
    ]
    assert of_kind(path, "footer")[0]["devices"][0]["events"] == 15


def test_categories_that_became_known_late_are_written_after_their_events(path):
    source = FakeEvents()
    with memprof.track(path, sources=[source]) as tracker:
        source.happen(2)
        source.late = {1: 5}
        tracker.step()
    (owners,) = of_kind(path, "owners")
    assert (owners["events"], owners["categories"]) == ([1], [5])
    assert kinds(path).index("owners") > kinds(path).index("trace")


def test_the_footer_sums_up_each_device(path):
    source = FakeEvents()
    with memprof.track(path, sources=[source]) as tracker:
        for allocated in (1000, 9000, 2000):
            source.allocated = allocated
            tracker.step()
    (footer,) = of_kind(path, "footer")
    (device,) = footer["devices"]
    assert footer["steps"] == 3
    assert footer["overhead_us"] > 0
    assert device["peak_allocated_bytes"] == 9500
    assert device["peak_step"] == 1
    assert device["allocated_bytes"] == 2000


def test_the_header_says_what_ran(path):
    with memprof.track(path, sources=["cpu"], budget=0.02):
        pass
    header = of_kind(path, "header")[-1]
    assert header["pid"] == os.getpid()
    assert header["argv"] == sys.argv
    assert header["torch_version"].startswith(sys.modules["torch"].__version__)
    assert header["options"]["budget"] == 0.02
    assert [d["device"] for d in header["devices"]] == ["cpu"]


def test_a_finding_is_written_and_told(path, caplog):
    told = []
    with memprof.track(path, sources=[], on_finding=told.append) as tracker:
        tracker.add_finding(Finding("holders", device="cpu", step=3, bytes=7))
    assert of_kind(path, "finding")[0]["bytes"] == 7
    assert [f.step for f in told] == [3]


def test_an_on_finding_that_raises_does_not_reach_the_job(path, caplog):
    def broken(finding):
        raise ValueError("not mine")

    with memprof.track(path, sources=[], on_finding=broken) as tracker:
        tracker.add_finding(Finding("holders"))
    assert "on_finding raised" in caplog.text


# Faces.


def test_a_decorated_function_is_recorded_and_returns_what_it_returns(path):
    @memprof.track(path, sources=[])
    def double(x, *, plus=0):
        assert active() is not None
        return 2 * x + plus

    assert double(4, plus=1) == 9
    assert double.__name__ == "double"
    assert kinds(path) == ["header", "header", "footer"]


def test_a_decorated_coroutine_is_recorded_while_it_runs(path):
    @memprof.track(path, sources=[])
    async def later():
        await asyncio.sleep(0)
        return active() is not None

    assert asyncio.run(later()) is True
    assert active() is None


def test_start_and_stop_do_the_same_as_a_block(path):
    tracker = memprof.start(path, sources=[])
    assert active() is tracker
    memprof.stop()
    memprof.stop()
    assert active() is None
    assert kinds(path)[-1] == "footer"


def test_steps_marks_a_step_for_each_item(path):
    with memprof.track(path, sources=["cpu"]):
        assert list(memprof.steps(range(4))) == [0, 1, 2, 3]
    assert of_kind(path, "footer")[0]["steps"] == 4


def test_steps_without_a_tracker_are_just_the_items():
    batches = memprof.steps([1, 2, 3])
    assert len(batches) == 3
    assert list(batches) == [1, 2, 3]
    memprof.step()


def test_a_second_tracker_records_nothing_and_passes_steps_on(path, caplog):
    source = FakeEvents()
    with memprof.track(path, sources=[source]) as outer:
        with memprof.track(path.with_name("inner.json")) as inner:
            inner.step()
        assert active() is outer
    assert not path.with_name("inner.json").exists()
    assert of_kind(path, "footer")[0]["steps"] == 1
    assert "inner.json" in notes(path)
    assert "already recording" in caplog.text


@pytest.mark.parametrize(
    "option",
    [
        {"budget": -1},
        {"budget": 2},
        {"sample_interval_s": 0},
        {"window_steps": 0},
        {"max_events": -1},
        {"allowance_s": -1},
        {"sources": ["gpu"]},
    ],
    ids=str,
)
def test_an_option_out_of_range_is_refused_by_name(option):
    with pytest.raises(memprof.SettingsError, match=next(iter(option)).rstrip("s")):
        memprof.track("run.json", **option)


# Files.


def test_an_existing_file_is_replaced_at_the_start_and_folders_are_made(tmp_path):
    path = tmp_path / "a" / "b" / "run.json"
    tracker = memprof.track(path, sources=[])
    assert not path.parent.exists()
    path.parent.mkdir(parents=True)
    path.write_text("old")
    with tracker:
        assert path.read_text().startswith("[")


def test_a_path_that_cannot_be_written_is_a_clear_error_at_the_start(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(memprof.MemprofError, match="cannot write"),
        memprof.track(tmp_path / "file" / "run.json", sources=[]),
    ):
        pytest.fail("the block must not begin")
    assert active() is None


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_ends_recording_and_not_the_job(tmp_path, caplog):
    full = tmp_path / "run.json"
    full.symlink_to("/dev/full")
    source = FakeEvents()
    with memprof.track(full, sources=[source], sample_interval_s=100) as tracker:
        for _ in range(3):
            source.happen(10)
            tracker.step()
            time.sleep(0.11)
    assert "recording has ended, the job goes on" in caplog.text
    assert caplog.text.count("recording has ended") == 1
    assert source.calls[-1] == "close"


def test_each_rank_writes_its_own_file(path, monkeypatch):
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with memprof.track(path, sources=[]) as tracker:
        assert tracker.path == str(path.with_name("run.rank2.json"))
    assert of_kind(path.with_name("run.rank2.json"), "header")[0]["world_size"] == 4


# Things that go wrong.


@pytest.mark.parametrize(
    "call", ["open", "counters", "begin_window", "drain", "end_window", "close"]
)
def test_a_source_that_fails_is_closed_with_a_note_and_the_others_go_on(path, caplog, call):
    broken, sound = FakeEvents(fails=[call]), FakeEvents()
    with memprof.track(path, sources=[broken, sound]) as tracker:
        for _ in range(3):
            sound.happen(2)
            tracker.step()
    assert f"{call} is broken" in notes(path)
    assert broken.calls.count("close") <= 2
    assert broken.calls[-1] == "close"
    assert sum(len(c["size"]) for c in of_kind(path, "trace")) == 6
    assert caplog.text.count("failed and was closed") == 1


def test_a_reading_source_that_fails_is_left_out_with_a_note(path, caplog):
    broken = FakeReadings(fails_at=2)
    with memprof.track(path, sources=[broken, FakeReadings()], sample_interval_s=0.01):
        time.sleep(0.2)
    assert "the wire is cut" in notes(path)
    assert sum(len(r["time_us"]) for r in of_kind(path, "readings")) > 5


def test_an_exception_of_the_block_passes_untouched_and_stands_in_the_footer(path):
    error = ValueError("mine")
    with pytest.raises(ValueError, match="mine") as raised, memprof.track(path, sources=[]):
        raise error
    assert raised.value is error
    assert of_kind(path, "footer")[0]["status"] == "ValueError: mine"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (SystemExit(0), "ok"),
        (SystemExit(3), "SystemExit: 3"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
    ],
)
def test_the_ways_a_program_ends_stand_in_the_footer(path, error, status):
    with pytest.raises(type(error)), memprof.track(path, sources=[]):
        raise error
    assert of_kind(path, "footer")[0].get("status", "ok") == status


def test_a_note_says_that_torch_was_never_imported(path):
    done = python("import sys, memprof\nwith memprof.track(sys.argv[1]): pass", path)
    assert done.returncode == 0, done.stderr
    assert "torch was never imported" in notes(path)
    assert of_kind(path, "readings")


def test_torch_imported_inside_the_block_is_recorded(path):
    code = """
import sys, memprof
with memprof.track(sys.argv[1], sources=["cpu"]) as tracker:
    import torch
    kept = torch.ones(1000)
    tracker.step()
assert not any(type(f).__module__.startswith("memprof") for f in sys.meta_path)
assert type(torch.__spec__.loader).__module__ == "_frozen_importlib_external", torch.__spec__
"""
    done = python(code, path)
    assert done.returncode == 0, done.stderr
    assert 4000 in flat(c["size"] for c in of_kind(path, "trace"))


def test_a_program_that_never_stops_its_recording_gets_a_footer_at_its_end(path):
    done = python("import sys, torch, memprof\nmemprof.start(sys.argv[1])", path)
    assert done.returncode == 0, done.stderr
    assert kinds(path)[-1] == "footer"


def test_a_program_that_leaves_by_os_exit_leaves_a_readable_file(path):
    code = """
import os, sys, torch, memprof
memprof.start(sys.argv[1], sources=["cpu"])
kept = torch.ones(1000)
memprof.step()
memprof.active = None
import time; time.sleep(0.12); memprof.step()
os._exit(7)
"""
    assert python(code, path).returncode == 7
    run = memprof.load(path)
    assert run.footer is None
    assert run.devices[0].device == "cpu"


def test_a_terminated_program_dies_as_it_would_without_us(path):
    code = """
import os, signal, sys, torch, memprof
memprof.start(sys.argv[1])
os.kill(os.getpid(), signal.SIGTERM)
"""
    assert python(code, path).returncode == -signal.SIGTERM


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_neither_records_nor_writes_to_the_file(path):
    code = """
import os, sys, torch, memprof
from memprof.tracker import active
with memprof.track(sys.argv[1], sources=["cpu"]) as tracker:
    kept = torch.ones(10)
    tracker.step()
    pid = os.fork()
    if pid == 0:
        assert active() is None
        assert not torch.utils._python_dispatch._get_current_dispatch_mode_stack()
        lost = torch.ones(77)
        memprof.step()
        tracker.stop()
        sys.exit(5)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
    tracker.step()
"""
    done = python(code, path)
    assert done.returncode == 0, done.stderr
    assert of_kind(path, "footer")[0]["steps"] == 2
    assert len(of_kind(path, "footer")) == 1
    assert 308 not in flat(c["size"] for c in of_kind(path, "trace"))


def test_steps_may_end_on_any_thread(path):
    source = FakeEvents()
    with memprof.track(path, sources=[source]) as tracker:

        def work():
            for _ in range(50):
                tracker.step()

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert of_kind(path, "footer")[0]["steps"] == 200


# The job comes first.

TRAIN = """
import sys, torch
torch.manual_seed(0)
def train(steps=12):
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Dropout(0.1), torch.nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    for _ in range(steps):
        loss = model(torch.randn(8, 16)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
    return losses
"""


def test_losses_are_equal_bit_for_bit_with_and_without(path):
    code = (
        TRAIN
        + """
import memprof
plain = train()
torch.manual_seed(0)
with memprof.track(sys.argv[1]):
    recorded = train()
torch.manual_seed(0)
with memprof.track(sys.argv[1], max_events=0):
    counted = train()
assert plain == recorded == counted
"""
    )
    done = python(code, path)
    assert done.returncode == 0, done.stderr
    assert of_kind(path, "footer")[0]["steps"] == 12


def test_steps_are_found_by_themselves_and_a_real_run_loads(path):
    done = python(TRAIN + "import memprof\nwith memprof.track(sys.argv[1]): train()", path)
    assert done.returncode == 0, done.stderr
    run = memprof.load(path)
    cpu = run.device("cpu")
    assert list(cpu.steps.first) == list(range(12))
    assert cpu.windows[0].start is not None
    assert cpu.windows[0].end is not None
    assert run.footer.steps == 12


def test_nothing_of_the_job_is_kept_alive(path):
    with memprof.track(path, sources=["cpu"]) as tracker:
        tensor = torch.ones(1000)
        seen = weakref.ref(tensor.untyped_storage()), weakref.ref(tensor)
        tracker.step()
        del tensor
        gc.collect()
        assert [ref() for ref in seen] == [None, None]


def test_a_step_that_goes_on_for_long_reaches_the_disk_before_its_end(path, monkeypatch):
    monkeypatch.setattr("memprof.session._FLUSH_IN_WINDOW_US", 0)
    monkeypatch.setattr("memprof.recording._DRAIN_SHARE", 1e9)  # however long a drain takes
    layer = torch.nn.Linear(4, 4)
    with memprof.track(path, sources=["cpu"], sample_interval_s=100) as tracker:
        tracker.step()
        before = path.stat().st_size
        for _ in range(5):
            layer(torch.ones(2, 4))
        assert path.stat().st_size > before


@pytest.mark.slow
def test_killed_at_any_moment_every_flushed_record_comes_back(tmp_path):
    code = """
import sys, time
from memprof.records import Header, StepColumns, StepsRecord
from memprof.runfile import RunWriter
writer = RunWriter(sys.argv[1], Header((1, 0), 1))
print("go", flush=True)
for number in range(10**9):
    columns = StepColumns(first=[number], last=[number], allocated=[number * 4096])
    writer.write(StepsRecord("cpu", columns))
    writer.flush()
    sys.stdout.write(f"{number}\\n")
    sys.stdout.flush()
"""
    for attempt in range(100):
        path = tmp_path / f"run{attempt}.json"
        job = subprocess.Popen(
            [sys.executable, "-c", code, path],
            env=os.environ | {"PYTHONPATH": PYTHONPATH},
            stdout=subprocess.PIPE,
        )
        assert job.stdout.readline() == b"go\n"
        time.sleep((attempt % 17) * 0.001)
        job.kill()
        told = job.communicate()[0].split(b"\n")[:-1]
        steps = memprof.load(path).devices[0].steps if told else None
        if steps is not None:
            assert len(steps) >= len(told)
            assert list(steps.allocated) == [4096 * n for n in range(len(steps))]


@pytest.mark.slow
def test_a_recorded_job_killed_at_any_moment_leaves_a_readable_run(tmp_path):
    code = (
        TRAIN
        + """
import memprof
memprof.start(sys.argv[1])
train(5)  # a first optimizer imports half of torch
print("go", flush=True)
train(10**9)
"""
    )
    for attempt in range(8):
        path = tmp_path / f"run{attempt}.json"
        job = subprocess.Popen(
            [sys.executable, "-c", code, path],
            env=os.environ | {"PYTHONPATH": PYTHONPATH, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
        )
        assert job.stdout.readline() == b"go\n"
        time.sleep(0.5 + attempt * 0.037)
        job.kill()
        job.communicate()
        run = memprof.load(path)
        cpu = run.device("cpu")
        assert cpu.events > 0
        assert list(cpu.steps.first) == list(range(len(cpu.steps)))
        assert run.footer is None


def test_the_sampler_reads_at_its_start_and_at_its_end(path):
    readings = FakeReadings()
    with memprof.track(path, sources=[readings], sample_interval_s=100):
        assert readings.is_open
    assert readings.looks == 2
    assert not readings.is_open
    assert flat(r["values"]["looks_count"] for r in of_kind(path, "readings")) == [1, 2]
