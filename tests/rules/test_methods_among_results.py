"""kept-method: a method among results of other methods of its object."""

from __future__ import annotations

import pytest

from memprof.reference_chain import Link, LinkKind
from tests.rules.bench import Bench

JOBS = """
class Job:
    def __init__(self):
        self.net = Net()

    def size(self):
        return sum(one.numel() for one in self.net.parameters())

    def fit(self, x):
        return step(self.net, x)

def main(x):
    summary = {"loss": [], "size": []}
    for number in range(40):
        job = Job()
        for key, value in PAIRS:
            summary[key].append(value)
    READ
"""
PAIRS = '(("loss", job.fit(x)), ("size", job.size))'
ALONE = '(("end", partial(report, x)), ("size", job.size))'


@pytest.mark.parametrize(
    ("pairs", "read", "rule"),
    [
        (PAIRS, 'print(min(summary["loss"]))', "kept-method"),
        (PAIRS, 'print([size() for size in summary["size"]])', "registered-callback"),
        (ALONE, 'print(len(summary["size"]))', "registered-callback"),
    ],
)
def test_a_method_among_results_was_to_be_called(pairs, read, rule, tmp_path):
    bench = Bench(tmp_path).write(JOBS.replace("PAIRS", pairs).replace("READ", read))
    links = [
        Link(LinkKind.LOCAL, "summary", "main"),
        Link(LinkKind.ITEM, "'size'", "dict", length=2, is_record=True),
        Link(LinkKind.ITEM, "15", "list", length=31),
        Link(LinkKind.BOUND_METHOD, "__self__", "Job.size"),
        Link(LinkKind.ATTRIBUTE, "net", "Job"),
    ]
    first = bench.advise("return step", bench.holder("summary[key].append", *links))[0]
    assert first.rule == rule
    if rule == "kept-method":
        assert first.line == bench.line(PAIRS)
        assert "`job.size()`" in first.why
