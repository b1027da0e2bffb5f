"""torch.compile compiles what it would compile without memprof, and as often."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests import forks

pytest.importorskip("torch", reason="needs torch")


JOB = """
import sys, threading, warnings
from contextlib import nullcontext
import torch
from torch import nn
import memprof

how, path = sys.argv[1:]
warnings.simplefilter("ignore")

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    def forward(self, x):
        return self.layers(x)

model = Net()

def variants(f):
    for rows in range(1, 2 if how == "threads" else 6):
        f(torch.ones(rows, 4)).sum().backward()

def compiled():
    if how == "in place":
        model.compile(backend="aot_eager", dynamic=False)
        return model
    if how == "own hook":
        model.layers[0].register_forward_hook(lambda *_: None)
    if how == "global hook":
        nn.modules.module.register_module_forward_pre_hook(lambda *_: None)
    if how == "function":
        @torch.compile(backend="aot_eager", dynamic=False, fullgraph=True)
        def function(x):
            return model(x)
        return function
    if how == "backward":  # its operators run in the middle of a frame that is compiled in parts
        @torch.compile(backend="aot_eager", dynamic=False)
        def step(x):
            loss = model(x).sum()
            loss.backward()
            return loss.detach() * torch.ones((), requires_grad=True)
        return step
    return torch.compile(model, backend="aot_eager", dynamic=False)

f = compiled() if how == "own hook" else None
if f is not None:
    variants(f)
with memprof.track(path, allowance_s=60) if path else nullcontext():
    f = compiled() if f is None else f
    if how == "reset":
        variants(f)
        torch._dynamo.reset()
    if how == "threads":
        threads = [threading.Thread(target=variants, args=(f,)) for _ in range(2)]
        [thread.start() for thread in threads], [thread.join() for thread in threads]
    variants(f)
    memprof.step()
variants(f)
with memprof.track(path) if path else nullcontext():
    variants(f)
from torch._dynamo.utils import counters
from torch._dynamo import callback
handler = callback.callback_handler
print(counters["stats"]["unique_graphs"],
      len(handler.start_callbacks), len(handler.end_callbacks), "clear" in vars(handler),
      {n: len(t) for n, t in vars(nn.modules.module).items()
       if n.startswith("_global_") and hasattr(t, "items")},
      [f for f in sys.meta_path if type(f).__module__.startswith("memprof")],
      dict(counters["graph_break"]), dict(counters["frames"]) if how == "backward" else "")
"""
HOWS = ["model", "in place", "function", "own hook", "global hook", "reset", "threads", "backward"]


def outcome(how: str, path: str) -> tuple[str, str]:
    # In a process of its own: torch.compile patches modules for good.
    # Once from a bare torch: its compiler is imported in the middle of the window.
    done = forks.run(JOB, how, path, only_torch=bool(path) and how == "model")
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("how", HOWS)
def test_what_is_compiled_in_a_window_is_compiled_once_and_nothing_is_left(tmp_path, how):
    (graphs, *rest), (plain_graphs, *plain_rest) = (
        [*said.split(" ", 1), complaints]
        for said, complaints in (outcome(how, str(tmp_path / "run.json")), outcome(how, ""))
    )
    assert rest == plain_rest
    # Two threads that come at the same moment compile a function once or each for itself.
    assert graphs == plain_graphs or (how == "threads" and {graphs, plain_graphs} == {"1", "2"})


def test_a_source_that_was_never_loaded_is_no_obstacle(monkeypatch):
    """The compiler is told of those of our functions that are there, and of nobody else's."""
    eval_frame = pytest.importorskip("torch._C._dynamo.eval_frame")
    dispatch = importlib.import_module("memprof.sources.cpu.dispatch_mode")
    importlib.import_module("memprof.sources.loop.loop_watch")
    monkeypatch.setattr(dispatch, "skipped_modules", {})
    monkeypatch.setitem(sys.modules, "torch._dynamo", ModuleType("torch._dynamo"))
    monkeypatch.delitem(sys.modules, "memprof.sources.cpu.dispatch_source", raising=False)
    skipped = []
    monkeypatch.setattr(eval_frame, "skip_code", skipped.append, raising=False)
    dispatch.skip_in_dynamo()
    foreign = {
        code.co_filename for code in skipped if "memprof" not in Path(code.co_filename).parts
    }
    assert foreign <= {"<string>"}  # what dataclasses wrote
    assert "is_elsewhere" in {code.co_name for code in skipped}
    files = {Path(code.co_filename).name for code in skipped}
    assert {"dispatch_mode.py", "loop_watch.py", "module_paths.py", "protocol.py"} <= files
    assert "dispatch_source.py" not in files
    del skipped[:]
    dispatch.skip_in_dynamo()
    assert not skipped  # once is enough
