"""workspace: scratch memory of cuDNN's and cuBLAS's algorithms makes the peak."""

from __future__ import annotations

import pytest

from memprof.testing import TraceBuilder
from memprof.trace import Frame, Phase
from tests.rules.bench import Bench

MIB = 1 << 20
USER = Frame("forward", "/home/user/net.py", 12)


def convolving(maker: Frame) -> TraceBuilder:
    """Twelve steps in which a line of the model's makes an output and something of 8 MiB."""
    trace = TraceBuilder()
    for step in range(12):
        trace.label(step=step, phase=Phase.FORWARD)
        trace.alloc(2 * MIB, f"y{step}", stack=(USER,))
        trace.alloc(8 * MIB, f"w{step}", stack=(maker, USER))
        trace.free(f"w{step}").free(f"y{step}")
    return trace


def fires():
    return convolving(Frame("at::native::raw_cudnn_convolution_forward_out", "Conv_v8.cpp", 700))


def looks_alike():
    """The user's own scratch tensor, by a function of theirs that bears the name."""
    return convolving(Frame("allocate_workspace", "/home/user/scratch.py", 3))


@pytest.mark.parametrize(("value", "line"), [("True", 2), ("args.fast", 2), ("False", 3)])
def test_benchmarking_is_named_where_it_is_turned_on(value, line, tmp_path):
    bench = Bench(tmp_path)
    bench.write(f"import torch\ntorch.backends.cudnn.benchmark = {value}\nnet(x)\n")
    (only,) = bench.advise("net(x)", rule="workspace")
    assert only.line == line
    assert ("benchmark" in only.why) is (line == 2)
