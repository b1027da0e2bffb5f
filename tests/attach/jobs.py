"""Trainings in processes of their own, which tests attach to and detach from."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from memprof.attach.processes import read_process
from memprof.attach.recordings import status

__all__ = ["BY_HAND", "ENVIRONMENT", "FOREIGN", "ROOT", "TRAINING", "Job", "changes", "until"]

_LIMIT_S = 120
"""What is waited for a training to begin or to end."""
ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {
    **{n: v for n, v in os.environ.items() if not n.startswith(("MEMPROF", "PYTHON"))},
    "PYTHONPATH": os.pathsep.join(str(ROOT / folder) for folder in (".", "cli", "dashboards")),
    "OMP_NUM_THREADS": "1",
    "MEMPROF_NATIVE": "0",
}
FOREIGN = {
    **{n: v for n, v in ENVIRONMENT.items() if n != "PYTHONPATH"},
    "PYTHONPATH": next(p for p in sys.path if p.endswith("site-packages")),
}
"""For ``python -S``: the packages are there, and no line of a ``.pth`` that would find memprof."""

TRAINING = """
import gc, json, pathlib, signal, sys, threading, time
import torch

stop, limit = pathlib.Path(sys.argv[1]), int(sys.argv[2])
torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Linear(64, 128), torch.nn.BatchNorm1d(128), torch.nn.ReLU(), torch.nn.Linear(128, 16)
)
teacher = torch.nn.Linear(64, 25)
optimizer = torch.optim.AdamW(model.parameters())
rare = torch.optim.SGD(teacher.parameters(), 0.1, momentum=0.9)
teacher(torch.ones(2, 64)).sum().backward()
rare.step()
rare.zero_grad()
kept, losses = [], []

def step():
    loss = model(torch.randn(32, 64)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())

def present():
    from torch.optim import optimizer as optim
    from torch.utils import _python_dispatch
    hooks = [v for m in (torch.nn.modules.module, optim) for n, v in vars(m).items()
             if n.startswith("_global_") and isinstance(v, dict)]
    owners = (torch.autograd, torch.Tensor, torch.nn.Module, torch.optim.Optimizer,
              torch.amp.GradScaler, torch._C)
    return {
        "path": list(sys.path),
        "finders": [str(f) for f in sys.meta_path],
        "threads": sorted(t.name for t in threading.enumerate()),
        "signals": [str(signal.getsignal(s)) for s in signal.valid_signals()],
        "collector": [str(f) for f in gc.callbacks] + [gc.isenabled()],
        "trace": [str(sys.gettrace()), str(sys.getprofile())],
        "main": sorted(vars(sys.modules["__main__"])),
        "hooks": sum(map(len, hooks)),
        "modes": len(_python_dispatch._get_current_dispatch_mode_stack()),
        "patched": [id(v) for o in owners for n, v in sorted(vars(o).items()) if callable(v)],
        "descriptors": len(list(pathlib.Path("/proc/self/fd").iterdir())),
    }

before = after = None
for _ in range(3):
    step()
before = present()
print("ready", flush=True)
while len(losses) < limit if limit else not stop.exists():
    step()
    time.sleep(0.001 if limit else 0.005)  # else it would make steps for nothing while a test waits
after = present()
gc.collect()
ours = [type(o).__name__ for o in gc.get_objects() if str(type(o).__module__).startswith("memprof.")]
print(json.dumps({"ours": ours, "before": before, "after": after, "losses": [x.hex() for x in losses]}))
"""

BY_HAND = re.sub(r"torch\.optim\.\w+(?=\()", "Descent", TRAINING).replace(
    "\nmodel = ",
    """
class Descent:
    def __init__(self, parameters, *_, **__):
        self.parameters = list(parameters)

    def step(self):
        with torch.no_grad():
            for one in self.parameters:
                one -= 0.01 * one.grad

    def zero_grad(self):
        for one in self.parameters:
            one.grad = None

model = """,
)
"""The same without an optimizer of torch's, whose first one imports as much again as torch does: for
tests of how a job is entered and left. No steps are counted in it."""


class Job:
    """A training that runs until `end` is called, or has made its steps."""

    def __init__(
        self,
        folder: Path,
        *words: str,
        script: str = TRAINING,
        steps: int = 0,
        environment: dict[str, str] | None = None,
    ) -> None:
        """``words`` are options of the interpreter; it is under way when this returns."""
        self._stop = folder / f"stop-{time.monotonic_ns()}"
        self._running = subprocess.Popen(
            [sys.executable, *words, "-c", script, str(self._stop), str(steps)],
            env=environment or ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
        )
        self.pid = self._running.pid
        assert self._running.stdout is not None
        limit = threading.Timer(_LIMIT_S, self._running.kill)
        limit.start()
        assert self._running.stdout.readline() == "ready\n", self._running.communicate()[1]
        limit.cancel()
        self._threads = self._running_threads()

    def __enter__(self) -> Job:  # noqa: PYI034 - no Self in Python 3.10
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def runs(self) -> bool:
        return self._running.poll() is None

    def await_leave(self) -> None:
        """Wait until what was entered has left: the thread that answers ends after its answer."""
        until(lambda: status(read_process(self.pid)) == "", "the socket's end")
        until(lambda: self._running_threads() <= self._threads, "the end of its thread")

    def _running_threads(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/task").iterdir()))

    def send(self, signal: int) -> None:
        self._running.send_signal(signal)

    def kill(self) -> None:
        self._running.kill()
        self._running.communicate(timeout=_LIMIT_S)

    def end(self, timeout_s: float = _LIMIT_S) -> dict[str, Any]:
        """Let it end by itself; what it says of itself. It printed nothing else, and no error."""
        self._stop.touch()
        out, err = self._running.communicate(timeout=timeout_s)
        assert (self._running.returncode, err) == (0, "")
        return json.loads(out)

    def release(self) -> str:
        """Let a script go on that waits at the pipe of its first argument; all that it prints."""
        self._stop.write_text("go on")
        out, err = self._running.communicate(timeout=_LIMIT_S)
        assert (self._running.returncode, err) == (0, "")
        return out

    @property
    def resident_bytes(self) -> int:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


def changes(told: dict[str, Any]) -> dict[str, Any]:
    """What a job says is there at its end and was not before, or is gone."""
    before, after = told["before"], told["after"]
    return {
        name: [one for one in after[name] if one not in before[name]] or (before[name], after[name])
        if isinstance(after[name], list)
        else (before[name], after[name])
        for name in before
        if before[name] != after[name]
    }


def until(holds: Callable[[], object], what: str, seconds: float = 60) -> None:
    """Wait for something that happens soon."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"{what}: not within {seconds} s"
        time.sleep(0.02)
