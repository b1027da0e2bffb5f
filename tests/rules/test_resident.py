"""resident: much that is no part of a model stays on the device over the steps."""

from __future__ import annotations

from collections import deque

import pytest
import torch
from torch import nn

from memprof.loading import load
from memprof.records import Holder, Site
from memprof.reference_chain import Link, LinkKind, Unowned
from memprof.rules.case import Case
from memprof.rules.finding import Kind, RuleFinding
from memprof.rules.waste.resident import RULE
from memprof.testing import TraceBuilder
from memprof.testing.runs import write_run
from memprof.trace import Category
from memprof.views.examination import examine
from memprof.views.window import Window
from tests.rules.recorded import findings_of


def trained(model, batch):
    model(batch).square().mean().backward()
    model.zero_grad()


def fires():
    model = nn.Linear(64, 64)
    data = torch.randn(16, 64, 64)

    def step(number):
        trained(model, data[number])

    return step


def looks_alike():
    """The next batches wait in a queue: as many bytes, and others in each step."""
    model = nn.Linear(64, 64)
    batches = deque([torch.randn(256, 64) for _ in range(3)])

    def step(number):
        batches.append(torch.randn(256, 64))
        trained(model, batches.popleft())

    return step


def test_a_data_set_may_well_be_meant(tmp_path):
    (found,) = [one for one in findings_of(fires, tmp_path / "run.json") if one.rule == "resident"]
    assert found.bytes == 16 * 64 * 64 * 4
    assert found.match.tentative
    assert found.minor
    assert [remedy.fix for remedy in found.remedies] == ["del_ref"]  # it is on the host
    assert found.remedies[0].code == "data = torch.randn(16, 64, 64)"


@pytest.mark.parametrize(("filled_until", "rises"), [(40, True), (12, False)])
def test_what_there_is_more_of_to_the_end_is_no_set_that_was_filled_once(filled_until, rises):
    builder = TraceBuilder()
    for step in range(40):
        builder.label(step=step)
        builder.alloc(1024, f"passing{step}").free(f"passing{step}")
        if step < filled_until:
            builder.alloc(64 * 1024, f"kept{step}")  # by a thread: no stack was recorded
    (match,) = RULE.matches(Window.of(builder.build()))
    assert match.tentative
    assert match.rises is rises


@pytest.mark.parametrize(
    ("category", "matches"), [(Category.UNKNOWN, 1), (Category.LIBRARY_WORKSPACE, 0)]
)
def test_what_torch_keeps_for_cublas_is_nothing_of_the_programs(category, matches):
    builder = TraceBuilder().existing(32 << 20, "scratch", category=category)
    for step in range(20):
        builder.label(step=step)
        builder.alloc(1 << 20, f"passing{step}").free(f"passing{step}")
    assert len([*RULE.matches(Window.of(builder.build()))]) == matches


@pytest.mark.parametrize(("workspace", "fixes"), [(False, ["cpu_offload", "del_ref"]), (True, [])])
def test_there_is_no_advice_on_scratch_memory(tmp_path, workspace, fixes):
    builder = TraceBuilder().existing(32 << 20, "scratch")
    for step in range(20):
        builder.label(step=step)
        builder.alloc(1 << 20, f"passing{step}").free(f"passing{step}")
    run = load(write_run(tmp_path / "run.json", builder.build()))
    scratch = Link(LinkKind.UNKNOWN, unowned=Unowned(workspace=workspace))
    (match,) = RULE.matches(Window.of(builder.build()))
    holders = (Holder(links=[scratch]),)
    finding = RuleFinding(Kind.WASTE, "cuda:0", Site(), RULE.title(match), holders=holders)
    advice = [*RULE.advice(match, Case(finding, examine(run)))]
    assert [one.fix for one in advice] == fixes
