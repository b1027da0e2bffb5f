"""What was made between windows has no stack; its size and its holders tell what it is."""

from __future__ import annotations

import pytest

from memprof.loading import load
from memprof.records import Finding, Holder, StepColumns
from memprof.reference_chain import Link, LinkKind
from memprof.rules.ranked_findings import findings
from memprof.rules.unexplained_growth import unexplained_growth
from memprof.testing import TraceBuilder, write_run
from memprof.trace import Frame
from memprof.views.examination import examine

MIB = 1 << 20
FIRST, SECOND = range(16), range(400, 416)
SOURCE = """import atexit
def main():
    session = Session()
    atexit.register(session.close)
"""
UNSEEN = 40
"""Tensors that the second window finds."""


def recording(tmp_path, links, made, unseen=UNSEEN, at_start=0):
    """Two windows; in the first the steps in ``made`` make a tensor of 1 MiB that stays.

    The first step makes ``at_start`` more of them.
    """
    source = tmp_path / "serve.py"
    source.write_text(SOURCE)
    made_at = (Frame("main", str(source), 3),)
    traces = []
    for steps in (FIRST, SECOND):
        trace = TraceBuilder(device="cpu")
        if steps is SECOND:
            for step in made[: sum(one in FIRST for one in made)]:
                trace.label(step=step).existing(MIB, f"t{step}", stack=made_at)
            for number in range(at_start):
                trace.label(step=0).existing(MIB, f"start{number}", stack=made_at)
            trace.label()
            for number in range(unseen):
                trace.existing(MIB, f"unseen{number}")
        for step in steps:
            trace.label(step=step)
            if step in made:
                trace.alloc(MIB, f"t{step}", stack=made_at)
            for number in range(at_start if step == 0 else 0):
                trace.alloc(MIB, f"start{number}", stack=made_at)
        traces.append(trace.build())
    numbers = [*FIRST, *SECOND]
    held = [MIB * (at_start + sum(one <= step for one in made)) for step in numbers]
    columns = StepColumns(
        first=numbers,
        last=numbers,
        allocated=[*held[:16], *[MIB * unseen + one for one in held[16:]]],
        window=[0] * len(FIRST) + [1] * len(SECOND),
    )
    holder = Holder(links[0].kind, str(source), 4, "", list(links))
    finding = Finding(
        "holders", device="cpu", step=SECOND[-1], stack=0, holders=[holder],
        details={"reason": "resident", "births": 0},
    )  # fmt: skip
    return load(write_run(tmp_path / "run.json", *traces, steps=columns, more=(finding,)))


ATEXIT = (
    Link(LinkKind.ATEXIT, "atexit", "Session.close"),
    Link(LinkKind.BOUND_METHOD, "__self__", "Session.close"),
    Link(LinkKind.ATTRIBUTE, "audio", "Session"),
)
CACHE = (
    Link(LinkKind.GLOBAL, "cache", "__main__"),
    Link(LinkKind.ITEM, "0", "list", length=UNSEEN + 2),
)


def test_what_nobody_keeps_on_purpose_is_a_leak_though_no_window_saw_it_grow(tmp_path):
    (found,) = (
        one for one in findings(recording(tmp_path, ATEXIT, made=(2, 9))) if one.bytes_per_step
    )
    assert found.rule == "exit-callback"
    assert found.site.line == 3
    assert found.bytes == UNSEEN * MIB
    assert found.remedies[0].code == "atexit.register(session.close)"
    assert 0 < found.confidence <= 0.5


def test_what_a_list_has_may_be_all_that_it_will_ever_have(tmp_path):
    assert not any(one.bytes_per_step for one in findings(recording(tmp_path, CACHE, made=(2, 9))))


@pytest.mark.parametrize("links", [ATEXIT, CACHE])
def test_what_grows_in_a_window_too_is_one_finding_with_it(tmp_path, links):
    run = recording(tmp_path, links, made=(*FIRST, *SECOND))
    (found,) = (one for one in findings(run) if one.bytes_per_step)
    assert found.bytes > UNSEEN * MIB
    assert unexplained_growth(examine(run), [found]) is None


def test_what_the_first_step_made_at_once_is_no_part_of_the_rate(tmp_path):
    """As in a loop whose first sixteen turns are one step, until it is known as one."""
    between = SECOND[0] - FIRST[-1] - 1
    run = recording(tmp_path, CACHE, made=(*FIRST, *SECOND), unseen=between, at_start=200)
    (found,) = (one for one in findings(run) if one.bytes_per_step)
    assert found.bytes_per_step == pytest.approx(MIB, rel=0.01)
