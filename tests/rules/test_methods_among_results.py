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


COLUMNS = """
class Job:
    def __init__(self):
        self.net = Net()

    def size(self):
        RESULT

    def score(self):
        return self.net.score

def main(x):
    summary = {"score": [], "size": []}
    for number in range(40):
        job = Job()
        summary["score"].append(BESIDE)
        summary["size"].append(job.size)
    READ
"""
PRINTED = 'print(summary["size"])'


@pytest.mark.parametrize(
    ("result", "beside", "read", "rule"),
    [
        ("return len(self.net)", "job.score()", PRINTED, "kept-method"),
        ("self.net.clear()", "job.score()", PRINTED, "registered-callback"),
        ("return len(self.net)", "number", PRINTED, "registered-callback"),
        ("return len(self.net)", "score(job)", PRINTED, "kept-method"),
        ("return len(self.net)", "partial(report, number)", PRINTED, "registered-callback"),
        (
            "return len(self.net)",
            "job.score()",
            'print([size() for size in summary["size"]])',
            "registered-callback",
        ),
    ],
)
def test_a_method_in_a_column_beside_results_was_to_be_called(result, beside, read, rule, tmp_path):
    source = COLUMNS.replace("RESULT", result).replace("BESIDE", beside).replace("READ", read)
    bench = Bench(tmp_path).write(source)
    links = [
        Link(LinkKind.LOCAL, "summary", "main"),
        Link(LinkKind.ITEM, "'size'", "dict", length=2, is_record=True),
        Link(LinkKind.ITEM, "15", "list", length=31),
        Link(LinkKind.BOUND_METHOD, "__self__", "Job.size"),
        Link(LinkKind.ATTRIBUTE, "net", "Job"),
    ]
    column = 'summary["size"].append'
    first = bench.advise(column, bench.holder(column, *links))[0]
    assert first.rule == rule
    if rule == "kept-method":
        assert first.line == bench.line(column)
        assert "`job.size()`" in first.why
