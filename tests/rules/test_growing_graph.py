"""growing-graph: the autograd graph becomes longer in every step, in the host's memory."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch

from memprof.records import Finding, Holder
from memprof.reference_chain import Link, LinkKind
from memprof.rules.finding import Kind
from memprof.testing import TraceBuilder, step_columns
from memprof.trace import Phase
from tests.rules.recorded import Recording, findings_of, names

STEPS = 40


def train(state, loss):
    loss.backward()
    state.total = state.total + loss


class Meter:
    def __init__(self):
        self.sum = self.count = self.mean = 0

    def update(self, value, rows):
        self.sum += value * rows
        self.count += rows
        self.mean = self.sum / self.count


def add_to(totals, losses):
    sum(losses.values()).backward()
    for name, loss in losses.items():
        totals[name] = torch.add(totals[name], loss)


def looks(*steps, code="state.total = state.total + loss", links=None) -> Recording:
    """What the job noted of the graph that a line makes longer, which it counts now and then."""
    lines = [line.strip() for line in Path(__file__).read_text().splitlines()]
    held = Holder(
        LinkKind.ATTRIBUTE,
        __file__,
        lines.index(code) + 1,
        code,
        links
        or [
            Link(LinkKind.GLOBAL, "state", "train"),
            Link(LinkKind.ATTRIBUTE, "total", "SimpleNamespace"),
        ],
    )
    found = [
        Finding(
            "host_growth",
            device="host",
            step=step,
            count=7 * step,
            holders=[held],
            details={"nodes_per_step": 7.0},
        )
        for step in steps
    ]
    trace = TraceBuilder(device="cuda:0").label(step=0, phase=Phase.BACKWARD).alloc(512, "x")
    return Recording((trace,), step_columns(allocated=[512] * STEPS), tuple(found))


def fires():
    return looks(16, 24, 32)


def looks_alike():
    """A sum over the first epoch's warm-up, whose graph has not grown since."""
    return looks(8, 12, 16)


def test_it_says_by_how_many_nodes_and_the_sum_is_told_to_add_numbers(tmp_path):
    found = findings_of(fires, tmp_path / "run.json")[0]
    assert found.rule == "growing-graph"
    assert found.kind is Kind.HOST_GROWTH
    assert found.match.nodes_per_step == 7
    assert (found.first_step, found.last_step) == (16, 32)
    assert found.title == (
        "the autograd graph grows by 7 nodes per step, on the host: attribute `total` of "
        "`SimpleNamespace`, global `state` of train"
    )
    assert [remedy.fix for remedy in found.remedies] == ["item", "del_ref", "detach"]


def test_a_mean_is_made_of_a_sum_and_the_sum_is_what_keeps(tmp_path):
    links = [Link(LinkKind.GLOBAL, "meter", "train"), Link(LinkKind.ATTRIBUTE, "mean", "Meter")]
    code = "self.mean = self.sum / self.count"
    program = partial(looks, 16, 24, 32, code=code, links=links)
    first = findings_of(program, tmp_path / "run.json")[0].remedies[0]
    assert (first.rule, first.fix) == ("running-sum", "item")
    assert first.code == "self.sum += value * rows"


def test_a_sum_that_a_function_of_torch_adds_up_is_one_as_well(tmp_path):
    links = [Link(LinkKind.GLOBAL, "totals", "train", length=2), Link(LinkKind.ITEM, "'kind'")]
    code = "totals[name] = torch.add(totals[name], loss)"
    program = partial(looks, 16, 24, 32, code=code, links=links)
    first = findings_of(program, tmp_path / "run.json")[0].remedies[0]
    assert (first.rule, first.fix, first.code) == ("running-sum", "item", code)


def test_two_looks_are_needed(tmp_path):
    assert "growing-graph" not in names(lambda: looks(32), tmp_path / "run.json")
