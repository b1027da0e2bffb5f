"""What other threads than the recorded one make is said, and what C++ makes is not called that."""

from __future__ import annotations

import copy
import gc
import io
import threading
import weakref

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from tests.sources.recording import CpuRecording  # noqa: E402

MIB = 1 << 20


class Recorder(CpuRecording):
    def notes(self, job):
        """What is said of a window in which ``job`` runs; what it returns lives until the end."""
        self.source.begin_window()
        kept = job()
        self.source.drain()
        self.source.end_window()
        assert kept is not None
        assert self.loop_watch.notes() == []
        return list(self.source.notes())


class Worker:
    """A thread that runs already, does one thing when called, and then stays with what came of it.

    None that is started within a window is unseen.
    """

    def __init__(self, work, name):
        self.kept, self._done, self._stop = [], threading.Event(), threading.Event()
        self._begin = threading.Event()
        self.thread = threading.Thread(target=self._run, args=(work,), name=name)
        self.thread.start()

    def _run(self, work):
        self._begin.wait()
        if self._stop.is_set():
            return
        self.kept.append(work())
        self._done.set()
        self._stop.wait()

    def __call__(self):
        self._begin.set()
        assert self._done.wait(300)
        return self.kept

    def end(self):
        self._stop.set()
        self._begin.set()
        self.thread.join()


@pytest.fixture
def recorder():
    it = Recorder()
    yield it
    it.close()


@pytest.fixture
def worker():
    started = []

    def make(work, name="prefetch"):
        started.append(Worker(work, name))
        return started[-1]

    yield make
    for one in started:
        one.end()


def test_tensors_of_another_thread_are_said_with_their_bytes(recorder, worker):
    job = worker(lambda: [torch.ones(MIB // 4), torch.ones(MIB // 4)])
    (note,) = recorder.notes(job)
    assert note.startswith("2 MiB in 2 tensors came from another thread (prefetch), of which")


def test_looking_at_other_threads_keeps_nothing_of_them_or_of_the_job(recorder, worker):
    job = worker(lambda: torch.ones(MIB))
    gc.collect()
    gc.disable()
    try:
        recorder.source.begin_window()
        job()

        def round_of_the_job():
            local = torch.ones(5)
            recorder.source.drain()
            return weakref.ref(local)

        assert round_of_the_job()() is None
    finally:
        gc.enable()
    recorder.source.end_window()
    assert len(recorder.source.notes()) == 1


def test_the_same_is_not_said_in_every_window(recorder, worker):
    assert len(recorder.notes(worker(lambda: torch.ones(MIB)))) == 1
    assert recorder.notes(lambda: torch.ones(MIB)) == []
    assert recorder.notes(worker(lambda: torch.ones(MIB // 2))) == []
    (note,) = recorder.notes(worker(lambda: torch.ones(MIB), "second"))
    assert note.startswith(
        "10 MiB in 3 tensors came from another thread (prefetch, second), of which"
    )


def test_a_model_that_another_thread_runs_is_named_by_its_thread(recorder, worker):
    model = nn.Linear(512, 512)

    @torch.no_grad()
    def serve():
        early = torch.ones(64, 512)  # before the thread calls anything that is hooked
        return early, model(torch.ones(64, 512))

    (note,) = recorder.notes(worker(serve, "server"))
    assert " came from another thread (server), of which" in note


def everything_else():
    """Tensors that this thread makes, by operators and in the ways that no operator shows."""
    numpy = pytest.importorskip("numpy")
    model = nn.Sequential(nn.Linear(256, 256), nn.BatchNorm1d(256))
    optimizer = torch.optim.AdamW(model.parameters())
    states = [torch.get_rng_state() for _ in range(50)]
    for _ in range(3):
        checkpoint(model, torch.ones(8, 256), use_reentrant=False).sum().backward()
        optimizer.step()
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    return [
        model,
        optimizer,
        states,
        copy.deepcopy(model),
        torch.load(file),
        torch.from_numpy(numpy.ones(MIB // 8)),
        torch.frombuffer(bytearray(MIB), dtype=torch.uint8),
        torch.ones(MIB // 4).share_memory_(),
        torch.tensor([0.0] * 50_000),
    ]


def test_what_this_thread_makes_is_not_called_another_ones(recorder, worker):
    idle = worker(lambda: torch.ones(1))
    idle()
    assert recorder.notes(everything_else) == []


def test_without_another_thread_nothing_is_said_of_bare_storages(recorder):
    assert recorder.notes(lambda: torch.UntypedStorage(MIB)) == []


def test_a_thread_that_knows_nothing_of_torch_made_no_tensors(recorder):
    stopped = threading.Event()
    code = compile("wait()", "monitor.py", "exec")
    idle = threading.Thread(target=exec, args=(code, {"wait": stopped.wait}), name="monitor")
    idle.start()
    try:
        assert recorder.notes(lambda: torch.UntypedStorage(MIB)) == []
    finally:
        stopped.set()
        idle.join()


def test_gradients_that_nobody_looked_at_are_there_from_the_start(recorder, worker):
    model = nn.Linear(300, 300)
    model(torch.ones(2, 300)).sum().backward()
    worker(lambda: torch.ones(1))()
    state = recorder.source.begin_window()["cpu"]
    assert state.blocks.size.tolist().count(4 * 300 * 300) == 2  # the weight and its gradient
    recorder.source.drain()
    recorder.source.end_window()
    assert recorder.source.notes() == []
