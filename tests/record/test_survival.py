"""What befalls a job of weeks: each time the file loads, results are bit-equal, its exit its own."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import memprof

torch = pytest.importorskip("torch", reason="there is nothing to record without torch")

from tests import forks  # noqa: E402
from tests.injected_errors import INJECT, TRAIN  # noqa: E402
from tests.tracked import PYTHONPATH  # noqa: E402

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="programs are forked")


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "run.json"


# -- the clock -----------------------------------------------------------------------------------


@pytest.mark.parametrize("hours", [-24, 24], ids=["back", "forward"])
def test_a_system_clock_that_is_set_delays_no_write_and_no_judgement(path, hours):
    code = (
        TRAIN
        + """
import os, time, memprof
plain = train(24)
real, offset = time.time_ns, 0
time.time_ns = lambda: real() + offset
def after(step):
    global offset
    if step == 11:
        offset = int(sys.argv[2]) * 3_600_000_000_000
    if step > 18:
        time.sleep(0.25)
tracker = memprof.start(sys.argv[1], allowance_s=600)
assert train(24, after=after) == plain
if sys.argv[2] == "-24":
    os.kill(os.getpid(), 9)
"""
    )
    done = forks.run(code, path, hours)
    assert done.returncode == (-signal.SIGKILL if hours < 0 else 0), done.stderr
    assert "recording has ended" not in done.stderr
    run = memprof.load(path)
    steps = run.device("cpu").steps
    assert len(steps) >= 20  # what came after the clock was set had reached the disk
    assert (steps.end_us >= steps.start_us).all()
    if run.footer is not None:
        assert 0 <= run.footer.overhead_us < 3_600_000_000


# -- errors of our own ---------------------------------------------------------------------------


def test_an_exception_in_any_call_of_our_own_code_reaches_no_job(path):
    """Every eighth function; `tests/benchmarks/injected_errors.py` tries all, and calls into C."""
    done = forks.run(TRAIN + INJECT, path, "call", 3, 8)
    assert done.returncode == 0, done.stderr[-3000:]


def test_what_a_handler_of_a_signal_raises_in_any_call_of_our_own_code_reaches_the_job(path):
    """Every 24th function; it is an `Exception`, as our own errors are."""
    done = forks.run(TRAIN + INJECT, path, "call", 5, 24, "signal")
    assert done.returncode == 0, done.stderr[-3000:]


# -- the file ------------------------------------------------------------------------------------

DISTURBED = (
    TRAIN
    + """
import os, shutil, subprocess, time, memprof
from pathlib import Path
path = Path(sys.argv[1])
plain = train(30)
def after(step):
    if step == 14:
        exec(sys.argv[2])
    if step > 14:
        time.sleep(0.01)
with memprof.track(path, allowance_s=600, sample_interval_s=0.05):
    assert train(30, after=after) == plain
"""
)


@pytest.mark.parametrize(
    "what",
    ["path.unlink()", "shutil.rmtree(path.parent)", "path.parent.chmod(0o500)"],
    ids=["deleted", "folder gone", "folder read-only"],
)
def test_whatever_becomes_of_the_file_s_place_the_job_goes_on_and_the_file_is_whole(tmp_path, what):
    path = tmp_path / "folder" / "run.json"
    done = forks.run(DISTURBED, path, what)
    assert done.returncode == 0, done.stderr
    run = memprof.load(path)
    assert run.footer is not None
    assert list(run.device("cpu").steps.first) == list(range(30))


def test_a_file_that_somebody_put_in_its_place_stays_theirs(path):
    done = forks.run(DISTURBED, path, "path.unlink(); path.write_text('theirs')")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("recording has ended, the job goes on") == 1
    assert path.read_text() == "theirs"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can mount")
def test_a_disk_that_fills_up_under_a_job_leaves_what_was_written(tmp_path):
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("tmpfs cannot be mounted here")
    try:
        path = tmp_path / "run.json"
        done = forks.run(DISTURBED, path, "pass")
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("recording has ended, the job goes on") == 1
        assert memprof.load(path).device("cpu").events > 0
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


# -- other users of the same hooks ---------------------------------------------------------------

OTHERS = {
    "gc.freeze": "import gc; gc.freeze(); during = train; gc.unfreeze()",
    "faulthandler": "import faulthandler; faulthandler.enable(); count = faulthandler.is_enabled",
    "setprofile": """
calls = 0
def look(frame, event, argument):
    global calls
    calls += event == "call" and frame.f_code is train.__code__
before, after = (lambda: sys.setprofile(look)), (lambda: sys.setprofile(None))
count = lambda: calls
still = lambda: sys.getprofile() is look
""",
    "monitoring": """
calls, tool = 0, getattr(sys, "monitoring", None)
def look(code, offset):
    global calls
    calls += code is train.__code__
def before():
    tool.use_tool_id(2, "another"); tool.register_callback(2, tool.events.PY_START, look)
    tool.set_events(2, tool.events.PY_START)
def after():
    tool.set_events(2, 0); tool.free_tool_id(2)
count = lambda: calls
still = lambda: tool.get_tool(2) == "another"
""",
    "dispatch mode": """
from torch.utils._python_dispatch import TorchDispatchMode
class Mode(TorchDispatchMode):
    calls = 0
    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        Mode.calls += 1
        return function(*arguments, **(named or {}))
mode = Mode()
before, after = mode.__enter__, (lambda: mode.__exit__(None, None, None))
count = lambda: Mode.calls
""",
    "saved-tensor hooks": """
calls = [0, 0]
def pack(tensor): calls[0] += 1; return tensor.clone()
def unpack(tensor): calls[1] += 1; return tensor
hooks = torch.autograd.graph.saved_tensors_hooks(pack, unpack)
before, after = hooks.__enter__, (lambda: hooks.__exit__(None, None, None))
count = lambda: tuple(calls)
""",
    "module hooks": """
from torch.nn.modules.module import register_module_forward_hook, register_module_full_backward_hook
calls, handles = [0, 0], []
def forward(*_): calls[0] += 1
def backward(*_): calls[1] += 1
def before():
    handles[:] = [register_module_forward_hook(forward), register_module_full_backward_hook(backward)]
def after():
    for handle in handles: handle.remove()
count = lambda: tuple(calls)
""",
}


@pytest.mark.parametrize("order", ["around", "within"])
@pytest.mark.parametrize("other", OTHERS)
def test_others_with_hooks_of_their_own_are_called_as_often_and_stay(path, other, order):
    if other == "monitoring" and sys.version_info < (3, 12):
        pytest.skip("sys.monitoring came with Python 3.12")
    code = (
        TRAIN
        + """
import contextlib, memprof
before = after = still = count = lambda: True
exec(sys.argv[2])
@contextlib.contextmanager
def other():
    before()
    try:
        yield
        assert still()
    finally:
        after()
def made():
    now = count()
    return [b - a for a, b in zip(base, now)] if isinstance(now, tuple) else now - base
def times(action):
    global base
    base = count()
    result = action()
    return result, made()
def alone():
    with other():
        return train()
def recorded():
    track = memprof.track(sys.argv[1], allowance_s=600)
    first, second = (other(), track) if sys.argv[3] == "around" else (track, other())
    with first, second:
        return train()
assert times(recorded) == times(alone)
assert not torch.utils._python_dispatch._get_current_dispatch_mode_stack()
assert not torch.nn.modules.module._global_forward_hooks
"""
    )
    done = forks.run(code, path, OTHERS[other], order)
    assert done.returncode == 0, done.stderr
    assert "recording has ended" not in done.stderr
    run = memprof.load(path)
    assert run.footer.steps == 12
    assert run.device("cpu").events > 0


# -- threads, and trackers within trackers -------------------------------------------------------


def test_threads_that_train_and_track_side_by_side_have_their_own_losses(path):
    code = (
        TRAIN
        + """
import threading, memprof
plain = [train(20, seed) for seed in range(3)]
losses = [None] * 3
def work(seed):
    with memprof.track(f"{sys.argv[1]}.{seed}"), memprof.track(sys.argv[1]):
        losses[seed] = train(20, seed)
with memprof.track(sys.argv[1], allowance_s=600):
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
assert losses == plain
with memprof.track(f"{sys.argv[1]}.again", allowance_s=600):
    assert train() == train()
"""
    )
    done = forks.run(code, path)
    assert done.returncode == 0, done.stderr
    run = memprof.load(path)
    assert run.footer.steps > 0  # those of threads may fall together
    assert memprof.load(f"{path}.again").footer.steps == 24


# -- a driver that dies --------------------------------------------------------------------------


def test_a_driver_that_dies_under_a_job_costs_its_own_readings_only(path):
    code = (
        TRAIN
        + """
import time, memprof
from memprof.sources.protocol import Reading
plain = train()
class Dying:
    name, reads = "nvml", 0
    def open(self): pass
    def close(self): raise OSError("driver/library version mismatch")
    def read(self):
        Dying.reads += 1
        if Dying.reads > 3:
            raise OSError("GPU is lost")
        return [Reading("cuda:0", time.time_ns() // 1000, {"used": Dying.reads})]
sources = ["cpu", "host", Dying()]
with memprof.track(sys.argv[1], allowance_s=600, sample_interval_s=0.01, sources=sources):
    assert train(after=lambda step: time.sleep(0.02)) == plain
assert Dying.reads == 4
"""
    )
    done = forks.run(code, path)
    assert done.returncode == 0, done.stderr
    run = memprof.load(path)
    assert run.footer.steps == 12
    (readings,) = [one for one in run.readings if one.source == "nvml"]
    assert (readings.name, list(readings.values)) == ("used", [1, 2, 3])
    assert any("GPU is lost" in note.message for note in run.notes)


# -- children, signals, and the end of the interpreter -------------------------------------------


def test_processes_that_are_forked_or_spawned_train_and_leave_the_file_alone(path, tmp_path):
    script = tmp_path / "job.py"
    script.write_text(
        TRAIN
        + """
import multiprocessing, os, memprof
from memprof.record.tracker import active
def child(queue):
    queue.put((train(), active() is None))
if __name__ == "__main__":
    plain = train()
    with memprof.track(sys.argv[1], allowance_s=600):
        for way in ("fork", "spawn"):
            context = multiprocessing.get_context(way)
            queue = context.Queue()
            process = context.Process(target=child, args=(queue,))
            process.start()
            assert queue.get(timeout=120) == (plain, True), way
            process.join()
            assert process.exitcode == 0, way
        if not (pid := os.fork()):
            train()
            os._exit(9)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
        assert train() == plain
"""
    )
    done = forks.run_file(script, path)
    assert done.returncode == 0, done.stderr
    assert memprof.load(path).footer.steps == 12


def test_an_interpreter_that_ends_while_threads_train_ends_as_without_us(path):
    code = (
        TRAIN
        + """
import threading, time, memprof
memprof.start(sys.argv[1], allowance_s=600)
threading.Thread(target=train, args=(10**9,), daemon=True).start()
train(8)
sys.exit(3)
"""
    )
    done = forks.run(code, path)
    assert done.returncode == 3, done.stderr
    assert "Traceback" not in done.stderr
    assert memprof.load(path).footer.steps > 0  # those of threads may fall together


def test_what_a_kill_at_any_of_200_moments_leaves_is_a_run_and_the_beginning_of_the_next(path):
    """A kill leaves what is in the file. So the file is looked at while the job runs."""
    code = TRAIN + (
        "import memprof\nmemprof.start(sys.argv[1], allowance_s=600)\n"
        "print('go', flush=True)\ntrain(10**9)\n"
    )
    random_, moments = random.Random(0), []
    with forks.started(code, path) as job:
        assert job.stdout.readline() == b"go\n"
        while len(moments) < 200:
            time.sleep(random_.random() * 0.02)
            moments.append(path.stat().st_size)
        job.kill()
        assert job.wait() == -signal.SIGKILL
    data = path.read_bytes()
    steps_before = -1
    left = path.with_name("left.json")
    for size in sorted({*moments, len(data)}):
        left.write_bytes(data[:size])
        run = memprof.load(left)
        devices = [one for one in run.devices if one.steps is not None]
        steps = list(devices[0].steps.first) if devices else []
        assert steps == list(range(len(steps)))
        assert len(steps) >= steps_before
        steps_before = len(steps)
    assert steps_before > 10


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_signal_at_a_random_moment_ends_the_job_as_without_us_and_the_file_loads(path, number):
    plain = TRAIN + (
        "import signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "train(5)\nprint('go', flush=True)\ntrain(10**9)\n"
    )
    begin = "import sys, memprof\nmemprof.start(sys.argv[1], allowance_s=600)\n"
    with forks.started(plain) as job:
        assert job.stdout.readline() == b"go\n"
        os.kill(job.pid, number)
        code = job.wait()
    random_ = random.Random(int(number))
    for _ in range(3):
        with forks.started(begin + plain, path) as job:
            assert job.stdout.readline() == b"go\n"
            time.sleep(0.15 + random_.random() * 0.3)
            os.kill(job.pid, number)
            assert job.wait() == code
        run = memprof.load(path)
        steps = run.device("cpu").steps
        assert len(steps) > 0  # what came in the last tenth of a second may be missing
        assert list(steps.first) == list(range(len(steps)))
        assert (run.footer is not None) == (number == signal.SIGINT)


def test_a_source_that_fails_within_an_optimizers_step_leaves_no_mode(path, monkeypatch):
    """There its mode is not the uppermost one, or torch puts it back: it goes when recording ends."""
    from torch.utils import _python_dispatch

    from memprof.sources.cpu import dispatch_source

    asked = []

    def fails_once():
        asked.append(1)
        if len(asked) == 6:
            raise RuntimeError("injected")
        return False

    monkeypatch.setattr(dispatch_source, "is_used", fails_once)
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with memprof.track(path, sources=["cpu"], allowance_s=600):
        for _ in range(8):
            weight.sum().backward()
            optimizer.step()
    assert len(asked) >= 6
    assert _python_dispatch._get_current_dispatch_mode_stack() == []


TRACED = """
import sys, torch, memprof
calls = 0
def place(frame):
    names = [frame.f_code.co_filename, frame.f_back.f_code.co_filename if frame.f_back else ""]
    return all(name.startswith("/nowhere") for name in names)
def look(frame, event, argument):
    global calls
    calls += 1
    if event == "call":
        place(frame)
    return look
with memprof.track(sys.argv[1], max_events=3000, allowance_s=600):
    getattr(sys, sys.argv[2])(look)
    for _ in range(4000):
        torch.ones(4) + 1
    getattr(sys, sys.argv[2])(None)
print(calls > 4000)
"""


@pytest.mark.parametrize("setter", ["setprofile", "settrace"])
def test_a_program_whose_calls_are_traced_goes_on_when_a_limit_ends_the_recording(path, setter):
    done = subprocess.run(
        [sys.executable, "-c", TRACED, str(path), setter],
        env=os.environ | {"PYTHONPATH": PYTHONPATH, "MEMPROF_NATIVE": "0"},
        capture_output=True,
        text=True,
        timeout=60,  # else its main thread runs calls of ours for ever
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
