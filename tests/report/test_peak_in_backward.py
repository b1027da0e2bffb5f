"""A peak in a backward pass is told at the forward line whose operator it is."""

from __future__ import annotations

import inspect
import json
import re

import numpy as np
import pytest

import memprof
from memprof.loading import load
from memprof.report.device_summary import device_figures
from memprof.rules.ranked_findings import findings
from memprof.trace import Action
from memprof.views.examination import examine
from memprof.views.sites import NO_STACK
from memprof_cli import main

torch = pytest.importorskip("torch", reason="the recording is of a program with torch")


def look_up(table, index):
    return table[index]  # where the gradient of the whole table comes from


LINE = inspect.getsourcelines(look_up)[1] + 1
PLACE = f"report/test_peak_in_backward.py:{LINE} in look_up"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("peak") / "run.json"
    table = torch.randn(16_000, 500, requires_grad=True)  # much beside what other tests left
    with memprof.track(path, sources=("cpu",), allowance_s=600.0) as tracker:
        for _ in range(12):
            part = look_up(table, torch.randint(1000, (20,)))
            (gradient,) = torch.autograd.grad(part.square().mean(), [table])
            del gradient, part
            tracker.step()
    return path


def peak_of(path):
    run = load(path)
    (device,) = examine(run).devices
    return device_figures(device, run).peak


def test_the_peak_names_the_line_of_the_forward_pass_beside_the_one_that_ran(path):
    peak = peak_of(path)
    assert peak.origin_site == PLACE
    assert peak.site.endswith("in path")
    assert peak.phase == "backward"
    largest = {site.name for site in peak.sites[:2]}  # the table is as large as its gradient
    assert largest == {f"{PLACE} (backward pass)", NO_STACK}


def test_the_screen_and_its_figures_say_so(path, capsys):
    told = screen(capsys, "report", "--no-page", str(path))
    assert f"in the backward pass of {PLACE})" in told
    figures = json.loads(screen(capsys, "report", "--json", str(path)))
    assert PLACE in {peak["origin_site"] for peak in moments(figures)}


def screen(capsys, *arguments):
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    assert end.value.code == 0
    return re.sub(r"\s+", " ", capsys.readouterr().out)


def moments(value):
    if isinstance(value, dict):
        yield from ([value] if "origin_site" in value else [])
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from moments(one)


def test_a_large_tensor_of_it_is_at_that_line_and_said_to_be_of_the_backward_pass(path, capsys):
    (large,) = [one for one in findings(load(path)) if one.rule == "largest"]
    assert (large.site.filename, large.site.line) == (__file__, LINE)
    assert "made in a backward pass" in large.title
    assert [remedy.patch for remedy in large.remedies if remedy.patch] == []
    assert large.stack[0].line == LINE
    told = screen(capsys, "leaks", "--all", str(path))
    assert f"backward of report/test_peak_in_backward.py:{LINE} " in told


def test_a_file_of_an_older_version_has_no_such_lines(path, tmp_path):
    records = json.loads(path.read_text())
    assert sum("origin" in record for record in records if record["kind"] == "trace")
    for record in records:
        record.pop("origin", None)
    records[0]["schema"] = [1, 6]
    old = tmp_path / "old.json"
    old.write_text("[\n" + ",\n".join(map(json.dumps, records)) + "\n]\n")
    (trace,) = load(old).devices[0].windows
    assert not trace.events.origin.any()
    peak = peak_of(old)
    assert peak.origin_site == ""
    assert peak.site in {site.name for site in peak.sites[:2]}


def test_what_is_no_allocation_of_a_backward_pass_takes_no_room_in_the_file(tmp_path):
    path = tmp_path / "run.json"
    with memprof.track(path, sources=("cpu",), allowance_s=600.0):
        torch.ones(1000) + 1
    assert not any("origin" in record for record in json.loads(path.read_text()))


def test_a_line_that_is_not_in_the_file_makes_its_record_a_damaged_one(path, tmp_path):
    records = json.loads(path.read_text())
    for record in records:
        if "origin" in record:
            record["origin"] = [1 << 20] * len(record["origin"])
    damaged = tmp_path / "damaged.json"
    damaged.write_text("[\n" + ",\n".join(map(json.dumps, records)) + "\n]\n")
    run = load(damaged)
    assert any("a stack is outside" in note.message for note in run.notes)


def test_only_allocations_have_such_lines(path):
    (trace,) = load(path).devices[0].windows
    events = trace.events
    # A segment that the allocator takes for one has its line, too.
    assert np.isin(events.action[events.origin > 0], (Action.ALLOC, Action.SEGMENT_ALLOC)).all()
    assert np.count_nonzero(events.origin) >= 12
