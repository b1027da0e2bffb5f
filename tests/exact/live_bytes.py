"""Runs jobs under the CPU source and prints, per step, live bytes as three counters see them.

Each job runs in a fork of this process, which has loaded torch and run none.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import sys

import torch

from memprof.sources.cpu.dispatch_source import CpuSource
from memprof.sources.loop.loop_watch import LoopWatch
from memprof.sources.protocol import Interner
from tests.programs.training import run

# Before torch 2.8 a saved tensor cannot be read without running a hook that packed it away.
TOLD = hasattr(torch._C._autograd.SavedTensor, "data")


def saved_by(node) -> list[torch.Tensor]:
    """What a node of the graph keeps; nothing once its backward has run."""
    found = []
    for name in dir(node):
        if not name.startswith("_raw_saved_"):
            continue
        try:
            raw = getattr(node, name)
        except RuntimeError:  # freed by the backward pass
            continue
        found += [s.data for s in (raw if isinstance(raw, (list, tuple)) else [raw]) if s and TOLD]
    return [data for data in found if data is not None]


def storages_alive() -> int:
    """Bytes of all storages that Python or a saved tensor of a graph that Python knows refers to."""
    tensors = [o for o in gc.get_objects() if issubclass(type(o), torch.Tensor)]
    nodes = [t.grad_fn for t in tensors if t.grad_fn is not None]
    seen = set()
    while nodes:
        node = nodes.pop()
        if node not in seen:
            seen.add(node)
            nodes += [parent for parent, _ in node.next_functions if parent is not None]
            tensors += saved_by(node)
    found = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(found.values())


def main(name: str, windows: bool) -> None:
    shim = ctypes.CDLL(None)
    preloaded = hasattr(shim, "shim_live")
    if preloaded:
        shim.shim_live.restype = ctypes.c_longlong
        shim.shim_peak.restype = ctypes.c_longlong
    interner = Interner()
    loop_watch = LoopWatch(interner)
    source = CpuSource(interner, loop_watch)
    ended: list[int] = []
    loop_watch.open(ended.append)
    source.open()
    steps = []
    for index, (_, _, loss) in enumerate(run(name)):
        if index == 1 and windows:
            source.begin_window()
        gc.collect()
        if preloaded:
            live, peak = shim.shim_live(), shim.shim_peak()
        if index > 0:
            row = {"loss": loss, "alive": storages_alive()}
            if windows:
                chunks = source.drain()
                counters = source.counters()[0]
                row |= {"source": counters.allocated, "source_peak": counters.peak_allocated}
                row |= {"events": len(chunks[0].events)}
            if preloaded:
                row |= {"shim": live, "shim_peak": peak}
            steps.append(row)
        if preloaded:
            shim.shim_reset_peak()
    source.end_window()
    source.close()
    loop_watch.close()
    notes = [*source.notes(), *loop_watch.notes()]
    result = {"steps": steps, "ended": ended, "notes": notes}
    print(json.dumps([name, windows, result]), flush=True)


if __name__ == "__main__":
    # A first optimizer imports half of torch.
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    gc.collect()
    gc.freeze()  # each count goes through all objects: of a job's own there are few
    for asked in sys.argv[1:]:
        job, _, mode = asked.partition(":")
        if pid := os.fork():
            assert os.waitpid(pid, 0)[1] == 0, asked
        else:
            main(job, windows=mode == "windows")
            os._exit(0)
