"""What a window saw begin and counters saw go on: the container that looks saw grow."""

from __future__ import annotations

import os

import pytest

from memprof.loading import load
from memprof.records import Finding, Holder, StepColumns
from memprof.reference_chain import Link, LinkKind
from memprof.rules.ranked_findings import findings
from memprof.rules.unexplained_growth import unexplained_growth
from memprof.testing import TraceBuilder
from memprof.trace import Frame
from memprof.views.examination import examine
from tests.rules.recorded import Recording

MIB = 1 << 20
RECORDED, COUNTED, PER_SESSION = 30, 300, 10
SERVER = """\
def main(server):
    for request in requests:
        server.sessions[request.id] = Session()
        server.answer(request)
def answer(server, request):
    session.cache = torch.cat([session.cache, model(request)])
"""


def counted(levels):
    """The bytes after each step, of which the first few were recorded."""
    numbers = list(range(COUNTED))
    return StepColumns(
        first=numbers,
        last=numbers,
        allocated=[levels(step) for step in numbers],
        window=[0 if step < RECORDED else -1 for step in numbers],
    )


def now_and_then(tmp_path, text, line, searches):
    """A job that keeps a MiB of a line of its source after each of many steps, and who has it."""
    source = tmp_path / "train.py"
    source.write_text(text)
    os.utime(source, (1, 1))
    trace = TraceBuilder(device="cpu")
    for step in range(RECORDED):
        trace.label(step=step)
        trace.alloc(512, f"work{step}").free(f"work{step}")
        if not step % PER_SESSION:
            trace.alloc(MIB, f"kept{step}", stack=(Frame("main", str(source), line),))
    recording = Recording((trace,), counted(rising), tuple(searches(source)))
    return load(recording.write(tmp_path / "run.json"))


@pytest.fixture
def findings_in(tmp_path):
    """What is found of a server of which three sessions were recorded, and thirty counted."""

    def of(lengths, levels):
        source = tmp_path / "server.py"
        source.write_text(SERVER)
        os.utime(source, (1, 1))  # before the recording, whose time is made up
        stack = (Frame("answer", str(source), 6), Frame("main", str(source), 4))
        trace = TraceBuilder(device="cpu")
        for step in range(RECORDED):
            trace.label(step=step)
            trace.alloc(512, f"work{step}").free(f"work{step}")
            if step % PER_SESSION:  # a session's cache is joined anew with every token
                trace.alloc(MIB, f"cache{step}", stack=stack).free(f"cache{step - 1}")
            else:
                trace.alloc(MIB, f"cache{step}", stack=stack)
        more = tuple(
            Finding("holders", device="cpu", step=7 * at, stack=1, holders=[held(source, length)])
            for at, length in enumerate(lengths, 1)
        )
        run = load(Recording((trace,), counted(levels), more).write(tmp_path / "run.json"))
        return [one for one in findings(run) if one.bytes_per_step]

    return of


def held(source, length):
    """The tensor of one session, of so many."""
    links = [
        Link(LinkKind.LOCAL, "server", "main", str(source), 1),
        Link(LinkKind.ATTRIBUTE, "sessions", "Server", str(source), 3),
        Link(LinkKind.ITEM, f"'s{length}'", "dict", length=length, is_record=True),
        Link(LinkKind.ATTRIBUTE, "cache", "Session", str(source)),
    ]
    line = "server.sessions[request.id] = Session()"
    return Holder(LinkKind.ITEM, str(source), 3, line, links)


def rising(step):
    return (step // PER_SESSION + 1) * MIB


def level(step):
    return min(3, step // PER_SESSION + 1) * MIB


def test_the_container_that_looks_saw_grow_has_what_was_counted(findings_in):
    (found,) = findings_in([1, 2, 3], rising)
    assert found.bytes_per_step == 29 * MIB / 281  # from the first rise to the last
    assert "dict `server.sessions` (3 items)" in found.title
    assert found.bytes == 3 * MIB
    first = found.remedies[0]
    assert (first.fix, first.code.strip()) == (
        "clear_container",
        "server.sessions[request.id] = Session()",
    )


def test_nothing_is_said_where_counters_stay_or_the_container_was_not_seen_to_grow(findings_in):
    assert findings_in([1, 2, 3], level) == []
    assert findings_in([3, 3, 3], rising) == []


FILTER = """\
def main(reward_filter):
    for step in range(300):
        reward_filter.update(model(observation))
class Filter:
    def update(self, reward):
        self.total = self.total * 0.9 + reward
"""


def graph_of(source, *more):
    links = [
        Link(LinkKind.LOCAL, "reward_filter", "main", str(source), 1),
        Link(LinkKind.ATTRIBUTE, "total", "Filter", str(source), 6),
        *more,
    ]
    return Holder(
        LinkKind.ATTRIBUTE, str(source), 6, "self.total = self.total * 0.9 + reward", links
    )


@pytest.mark.parametrize(("nodes_per_step", "times"), [(16.0, 1), (0.0, 0)])
def test_a_graph_that_looks_saw_become_longer_has_it_too(nodes_per_step, times, tmp_path):
    """It takes up activations only after each rollout: thrice while it was recorded."""
    node = Link(LinkKind.AUTOGRAD_NODE, nodes=(("AddBackward0", 9), ("PowBackward0", 1)))
    saved = Link(LinkKind.SAVED_TENSOR, "self", "PowBackward0")

    def searches(source):
        held_by = [graph_of(source, node, saved)]
        rate = {"nodes_per_step": nodes_per_step}
        yield Finding("holders", device="cpu", step=21, stack=1, holders=held_by)
        yield Finding(
            "host_growth", device="host", step=21, holders=[graph_of(source)], details=rate
        )

    run = now_and_then(tmp_path, FILTER, 3, searches)
    found = [one for one in findings(run) if one.bytes_per_step]
    assert [one.bytes for one in found] == [3 * MIB] * times
    assert [one.remedies[0].fix for one in found] == ["detach"] * times
    assert (unexplained_growth(examine(run), found) is None) is bool(times)


def best(source, length):
    links = [
        Link(LinkKind.LOCAL, "weights", "main", str(source), 1),
        Link(LinkKind.ITEM, str(length // 2), "list", str(source), 4, length=length),
    ]
    return Holder(LinkKind.ITEM, str(source), 4, "weights.append(copy(model))", links)


EPOCHS = """\
def main(model):
    for epoch in range(40):
        train(model)
        weights.append(copy(model))
"""


@pytest.mark.parametrize(("lengths", "times"), [((2, 27), 1), ((27, 27), 0)])
def test_looks_at_other_tensors_of_one_list_tell_that_it_grows(lengths, times, tmp_path):
    """The later one looked for what had been made where nothing is recorded."""

    def searches(source):
        for step, stack, length in zip((21, 280), (1, 0), lengths, strict=True):
            found = [best(source, length)]
            yield Finding("holders", device="cpu", step=step, stack=stack, holders=found)

    run = now_and_then(tmp_path, EPOCHS, 4, searches)
    found = [one for one in findings(run) if one.bytes_per_step]
    assert [one.remedies[0].code for one in found] == ["weights.append(copy(model))"] * times
    assert all("list `weights` (27 items)" in one.title for one in found)
