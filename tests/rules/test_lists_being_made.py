"""A list that a comprehension makes grows until it is whole, and is no leak."""

from __future__ import annotations

import pytest

from memprof.loading import load
from memprof.records import Finding, Holder
from memprof.reference_chain import Link, LinkKind, Unowned
from memprof.rules.ranked_findings import findings
from memprof.testing import TraceBuilder
from memprof.trace import Frame
from tests.rules.recorded import Recording


@pytest.mark.parametrize(
    ("owner", "statement", "is_told"),
    [
        ("list", "feats = cat([extractor(part) for part in parts])", False),
        ("list", "feats = list(map(extractor, parts))", False),
        ("list", "feats = extractor(part)", True),  # a library in C++ may keep it
        ("Reader", "feats = cat([extractor(part) for part in parts])", True),
        ("", "feats = cat([extractor(part) for part in parts])", True),
    ],
)
def test_what_only_the_interpreter_has_is_being_made(owner, statement, is_told, tmp_path):
    source = tmp_path / "train.py"
    source.write_text(f"def main(parts):\n    {statement}\n")
    trace = TraceBuilder(device="cpu")
    for step in range(20):
        trace.label(step=step).alloc(512, "work").free("work")
        trace.alloc(1 << 20, f"t{step}", stack=(Frame("main", str(source), 2),))
    links = [
        Link(LinkKind.UNKNOWN, unowned=Unowned(owner=owner)),
        *([Link(LinkKind.ITEM, "5", "list", length=13)] if owner else []),
    ]
    holder = Holder(LinkKind.ITEM if owner else LinkKind.UNKNOWN, links=links)
    held = Finding("holders", device="cpu", step=16, stack=1, holders=[holder])
    run = load(Recording((trace,), more=(held,)).write(tmp_path / "run.json"))
    assert any(one.bytes_per_step for one in findings(run)) is is_told


@pytest.mark.parametrize(
    ("reading", "is_told"),
    [
        ("return min(row['loss'] for row in rows)", True),
        ("return min(row['rate']() for row in rows)", False),
    ],
)
def test_records_with_a_method_that_nothing_calls_are_told(reading, is_told, tmp_path):
    source = tmp_path / "sweep.py"
    source.write_text(
        "def run(number):\n"
        "    schedule = Schedule(number)\n"
        "    return {'loss': schedule.loss(), 'rate': schedule.rate}\n\n"
        "def main(numbers):\n"
        "    rows = [run(number) for number in numbers]\n"
        f"    {reading}\n"
    )
    trace = TraceBuilder(device="cpu")
    stack = (Frame("run", str(source), 2), Frame("main", str(source), 6))
    for step in range(20):
        trace.label(step=step).alloc(512, "work").free("work")
        trace.alloc(1 << 20, f"t{step}", stack=stack)
    links = [
        Link(LinkKind.UNKNOWN, unowned=Unowned(owner="list")),
        Link(LinkKind.ITEM, "5", "list", length=13),
        Link(LinkKind.ITEM, "'rate'", "dict", length=2, is_record=True),
        Link(LinkKind.BOUND_METHOD, "__self__", "Schedule.rate"),
        Link(LinkKind.ATTRIBUTE, "weights", "Schedule"),
    ]
    holder = Holder(LinkKind.ITEM, links=links)
    held = Finding("holders", device="cpu", step=16, stack=1, holders=[holder])
    run = load(Recording((trace,), more=(held,)).write(tmp_path / "run.json"))
    growing = [one for one in findings(run) if one.bytes_per_step]
    assert [(one.rule, one.remedies[0].line) for one in growing] == [("kept-method", 3)] * is_told
