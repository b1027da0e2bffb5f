"""running-sum: sums that `functools.reduce` makes of a generator's values."""

from __future__ import annotations

import pytest

from memprof.records import Finding, SourceFiles
from memprof.rules.finding import Kind
from memprof.runfile.source_digests import digest_of
from memprof.testing import TraceBuilder, step_columns
from memprof.trace import Frame, Phase
from tests.rules.recorded import Recording, findings_of

STEPS = 40
VALIDATION = """
def losses(net, batches):
    for x, y in batches:
        yield error(net(x), y)

def numbers(net, batches):
    for x, y in batches:
        yield error(net(x), y).item()

def validate(net, batches):
    total = REDUCED
    return READ
"""


@pytest.mark.parametrize(
    ("reduced", "read", "phase", "fixes"),
    [
        ("reduce(operator.add, losses(net, batches))", "total / 8", Phase.FORWARD, ["no_grad"]),
        ("reduce(operator.add, losses(net, batches))", "total / 8", Phase.BACKWARD, ["detach"]),
        ("reduce(lambda a, b: a + b, losses(net, batches))", "total", Phase.BACKWARD, ["detach"]),
        ("reduce(operator.mul, losses(net, batches))", "total", Phase.BACKWARD, []),
        ("reduce(operator.add, numbers(net, batches))", "total", Phase.BACKWARD, []),
        ("reduce(operator.add, losses(net, batches))", "total.backward()", Phase.BACKWARD, []),
    ],
)
def test_a_graph_without_a_holder_hangs_on_the_only_such_sum(reduced, read, phase, fixes, tmp_path):
    source = tmp_path / "validate.py"
    source.write_text(VALIDATION.replace("REDUCED", reduced).replace("READ", read))

    def program():
        trace = TraceBuilder(device="cuda:0").label(step=0, phase=phase)
        trace.alloc(512, "x", stack=(Frame("losses", str(source), 4),))
        looks = [
            Finding("host_growth", device="host", step=step, details={"nodes_per_step": 7.0})
            for step in (16, 24, 32)
        ]
        files = SourceFiles([str(source)], [digest_of(source.read_bytes())])
        return Recording((trace,), step_columns(allocated=[512] * STEPS), (*looks, files))

    found = findings_of(program, tmp_path / "run.json", steps=STEPS)[0]
    assert found.kind is Kind.HOST_GROWTH
    assert [one.fix for one in found.remedies] == fixes
    assert [one.code for one in found.remedies] == [f"total = {reduced}"] * len(fixes)
