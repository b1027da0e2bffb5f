"""private-pools: captured CUDA graphs have a memory pool each."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from memprof.testing import TraceBuilder
from memprof.trace import Frame, Phase
from tests.rules.recorded import findings_of

MIB = 1 << 20
STEPS = 16


def capture(torch, pool=None):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        pass
    return graph


CAPTURE = Frame("capture", __file__, capture.__code__.co_firstlineno + 2)


@dataclass
class Captures:
    """A trace in which each step captures a graph, whose tensors lie in a pool."""

    pools: list[int]
    trace: TraceBuilder = field(default_factory=lambda: TraceBuilder(device="cuda:0"))

    def build(self):
        for step in range(STEPS):
            self.trace.label(step=step, phase=Phase.OTHER)
            self.trace.alloc(MIB, f"static{step}", stack=(CAPTURE,))
        trace = self.trace.build()
        names = ((0, 0), *((1, number) for number in range(1, max(self.pools) + 1)))
        at = np.array(self.pools, dtype=trace.events.pool.dtype)
        steps = np.array([label.step for label in trace.tables.labels])[trace.events.label]
        events = replace(trace.events, pool=at[np.maximum(steps, 0)])
        return replace(trace, events=events, tables=replace(trace.tables, pools=names))


def fires():
    return Captures(pools=[*range(1, STEPS + 1)])


def looks_alike():
    """As many graphs, which share one pool."""
    return Captures(pools=[1] * STEPS)


def test_the_graphs_are_to_share_one_pool(tmp_path):
    found = findings_of(fires, tmp_path / "run.json")[0]
    first = found.remedies[0]
    assert found.rule == first.rule == "private-pools"
    assert found.bytes_per_step == MIB
    assert first.fix == "share_pool"
    assert first.why.startswith("13 graphs were captured")
