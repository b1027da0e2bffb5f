"""resident: much that is no part of a model stays on the device over the steps."""

from __future__ import annotations

import queue
import threading
from collections import deque
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from memprof.loading import load
from memprof.records import Holder, Site
from memprof.reference_chain import Link, LinkKind, Unowned
from memprof.rules.case import Case
from memprof.rules.finding import Evidence, Kind, RuleFinding
from memprof.rules.waste.resident import RULE
from memprof.testing import TraceBuilder
from memprof.testing.runs import write_run
from memprof.trace import Category
from memprof.views.examination import examine
from memprof.views.window import Window
from tests.rules.recorded import findings_of

ROWS = 1 << 14


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


def waiting(work, jobs):
    """A thread that has done its only job waits for the next one."""

    def program():
        model, results = nn.Linear(64, 64), queue.Queue()
        threading.Thread(target=work, args=(jobs, results), daemon=True).start()
        jobs.put(ROWS)
        results.get()

        def step(number):
            trained(model, torch.randn(64, 64))

        return step

    return program


def forgetful(jobs, results):
    while True:
        size = jobs.get()
        if size is None:
            return
        rows = torch.randn(size, 64)
        results.put(rows.mean().item())


def with_a_table(jobs, results):
    """What each job reads was made before the first one."""
    table = torch.randn(ROWS, 64)
    while True:
        size = jobs.get()
        if size is None:
            return
        results.put(table[:size].mean().item())


def with_the_last_one(jobs, results):
    """The next job may read what the last one has made."""
    rows = torch.zeros(1, 64)
    while True:
        size = jobs.get()
        if size is None:
            return
        before = rows.mean().item()
        rows = torch.randn(size, 64)
        results.put(before)


@pytest.mark.parametrize(
    ("work", "minor"), [(forgetful, False), (with_a_table, True), (with_the_last_one, True)]
)
def test_what_a_job_that_is_done_has_left_is_for_nothing(work, minor, tmp_path):
    jobs = queue.Queue()
    found = findings_of(waiting(work, jobs), tmp_path / "run.json")
    jobs.put(None)
    (found,) = [one for one in found if one.rule == "resident"]
    assert (found.bytes, found.minor) == (ROWS * 64 * 4, minor)
    if not minor:
        first = found.remedies[0]
        assert (first.fix, first.code) == ("del_ref", "rows = torch.randn(size, 64)")
        assert "`del rows` at the end of the loop's body" in first.why


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


@pytest.mark.parametrize(
    ("share", "nbytes", "joins"), [(3, 512, True), (1, 512, False), (3, 256, False)]
)
def test_what_grows_is_told_once_whichever_lines_made_it(share, nbytes, joins):
    """Four tensors that stay, of which a finding of growth has some; others may be older."""
    site = Site("train.py", 61, "score", "mse = F.mse_loss(sr.clamp(0, 1), hr)")
    resident = RuleFinding(
        Kind.WASTE, "cpu", site, "stay", bytes=1024, evidence=Evidence(0, np.arange(4))
    )
    growth = RuleFinding(
        Kind.LEAK,
        "cpu",
        Site("train.py", 67),
        "grow",
        bytes=nbytes,
        evidence=Evidence(0, np.arange(share)),
    )
    assert RULE.overlap.joins(resident, growth) is joins
    elsewhere = replace(growth, evidence=Evidence(1, np.arange(share)))
    assert not RULE.overlap.joins(resident, elsewhere)
    assert RULE.overlap.joins(resident, replace(elsewhere, site=site))
