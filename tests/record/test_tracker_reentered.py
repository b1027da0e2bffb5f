"""The program's own code in the middle of ours: finalizers, signal handlers, threads, callbacks."""

from __future__ import annotations

import gc
import json
import signal
import threading
from pathlib import Path

import pytest

import memprof
from memprof.loading import load
from memprof.record.sampler import Sampler
from memprof.sources.protocol import Interner
from tests import forks
from tests.tracked import notes

torch = pytest.importorskip("torch", reason="there is nothing to record without torch")

# Hangs, if it does, with a traceback.
GUARD = "import faulthandler; faulthandler.dump_traceback_later(1200, exit=True)\n"
FINALIZED = """
import gc, sys, torch, memprof

class Node:
    def __init__(self):
        self.me = self

    def __del__(self):  # a stack that was never seen before
        exec(compile("import torch\\nt = torch.zeros(8)", f"gen{id(self)}.py", "exec"))

lin = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(lin.parameters(), 0.1)
with memprof.track(sys.argv[1], sample_interval_s=60):
    for step in range(60):
        for i in range(300):
            exec(compile("t = torch.zeros(8)", f"f{step}_{i}.py", "exec"))
        gc.collect()
        for _ in range(50):
            Node()
        lin(torch.randn(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
INTERRUPTED = """
import signal, sys, torch, memprof

handled = 0
lin = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(lin.parameters(), 0.1)

def handler(*_):
    global handled
    handled += 1
    code = "t = {k: v.clone() for k, v in lin.state_dict().items()}"
    exec(compile(code, f"h{handled}.py", "exec"), {"lin": lin})

signal.signal(signal.SIGALRM, handler)
with memprof.track(sys.argv[1], sample_interval_s=60):
    signal.setitimer(signal.ITIMER_REAL, 0.002, 0.001)
    for step in range(1000):
        exec(compile("t = torch.zeros(8)", f"f{step}.py", "exec"))
        lin(torch.randn(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    signal.setitimer(signal.ITIMER_REAL, 0)
assert handled > 10
"""


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "run.json"


@pytest.mark.parametrize(
    "script",
    [
        FINALIZED,
        pytest.param(
            INTERRUPTED,
            marks=pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="needs SIGALRM"),
        ),
    ],
    ids=["finalizers", "a signal handler"],
)
def test_tensors_made_in_the_midst_of_our_writing_neither_hang_nor_damage(path, script):
    done = forks.run(GUARD + script, path)
    assert done.returncode == 0, done.stderr
    run = load(path)
    assert run.footer is not None
    assert "damaged" not in " ".join(note.message for note in run.notes)
    (cpu,) = run.devices
    files = {frame.filename for trace in cpu.windows for frame in trace.tables.frames}
    made = [name for name in files if name.startswith(("gen", "h")) and name.endswith(".py")]
    assert made


def test_rows_are_numbered_without_gaps_by_many_threads():
    interner = Interner()
    rows: list[dict[int, int]] = [{} for _ in range(4)]

    def intern(mine: dict[int, int]) -> None:
        for line in range(2000):
            mine[line] = interner.frame("f", "train.py", line)

    threads = [threading.Thread(target=intern, args=(mine,)) for mine in rows]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert rows[0] == rows[1] == rows[2] == rows[3]
    assert sorted(rows[0].values()) == list(range(2000))
    record = interner.take_new()
    assert record is not None
    assert [rows[0][line] for _, _, line in record.frames] == list(range(2000))
    assert interner.take_new() is None


def modes() -> int:
    return int(torch._C._len_torch_dispatch_stack())


def trained_elsewhere() -> None:
    """In a thread: thirty steps, which end the window that the block began."""

    def train() -> None:
        lin = torch.nn.Linear(4, 4)
        optimizer = torch.optim.SGD(lin.parameters(), 0.1)
        for _ in range(30):
            lin(torch.randn(2, 4)).sum().backward()
            optimizer.step()

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()


def test_a_window_that_ends_in_another_thread_leaves_no_mode_behind(path):
    with memprof.track(path, sample_interval_s=60, allowance_s=0.0):
        assert modes() == 1
        trained_elsewhere()
    assert modes() == 0
    assert "a window was ended in another thread" in notes(path)


def test_a_recording_that_another_thread_ends_leaves_no_mode_behind(path):
    with memprof.track(path, sample_interval_s=60):
        thread = threading.Thread(target=memprof.stop)
        thread.start()
        thread.join()
        assert torch.zeros(3).sum() == 0  # what is still there passes everything on
    assert modes() == 0


def test_a_callback_that_stops_the_recording_leaves_no_hook_behind(path):
    kept = []
    with memprof.track(path, sample_interval_s=60, on_finding=lambda _: memprof.stop()):
        lin = torch.nn.Linear(64, 64)
        optimizer = torch.optim.SGD(lin.parameters(), 0.1)
        for _ in range(60):
            out = lin(torch.randn(8, 64))
            kept.append(out)
            out.sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        run = memprof.load(path)
        assert run.footer is not None  # it was stopped, by the first finding …
        assert run.footer.steps == 24  # … which comes when a leak has grown at four looks
    # Hooks, patches and modes are looked for after every test.


class Readings:
    """A reading source; ``raises`` names the call that does, ``waits`` is waited for in one."""

    name = "driver"

    def __init__(self, raises: str = "", waits: threading.Event | None = None) -> None:
        self.raises, self.waits, self.closed, self.looks = raises, waits, 0, 0

    def open(self) -> None:
        self._maybe("open")

    def read(self):
        self.looks += 1
        self._maybe("read")
        if self.waits is not None and self.looks > 1:
            self.waits.wait(60)
        return None if self.raises == "nothing" else []

    def close(self) -> None:
        self.closed += 1
        self._maybe("close")

    def _maybe(self, call: str) -> None:
        if self.raises == call:
            raise OSError("the driver is gone")


@pytest.mark.parametrize("raises", ["open", "read", "close", "nothing"])
def test_a_reading_source_never_raises_into_the_job(path, raises):
    source = Readings(raises)
    with memprof.track(path, sources=[source]):
        pass
    assert source.closed >= 1
    assert json.loads(path.read_text())[-1]["kind"] == "footer"
    assert "the source failed and was closed" in notes(path)


def test_a_driver_that_hangs_does_not_hang_the_end_of_the_block(path, monkeypatch):
    monkeypatch.setattr(Sampler, "PATIENCE_S", 0.2)
    released = threading.Event()
    source = Readings(waits=released)
    try:
        with memprof.track(path, sources=[source], sample_interval_s=0.01):
            while source.looks < 2:
                released.wait(0.01)
        assert source.closed == 0  # not under its own call
        assert "a reading did not come back" in notes(path)
        assert json.loads(path.read_text())[-1]["kind"] == "footer"
    finally:
        released.set()
        for thread in threading.enumerate():
            if thread.name == "memprof sampler":
                thread.join()
    gc.collect()
