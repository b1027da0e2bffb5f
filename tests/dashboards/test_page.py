"""The page as a file: one, self-contained, small, and safe whatever the recording holds."""

from __future__ import annotations

import base64
import gzip
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from memprof.errors import MemprofError
from memprof.loading import load
from memprof.records import DryRun, Note
from memprof.testing import TraceBuilder, save_snapshot, snapshot
from memprof.trace import Frame
from memprof_dashboards import render, write
from tests.dashboards.recordings import HOSTILE, MIB, MODEL, recorded, training


def unpacked(html: str, name: str) -> str:
    """What a packed element of the page holds."""
    found = re.search(
        rf'<script type="application/octet-stream" id="{name}">([^<]*)</script>', html
    )
    assert found is not None
    return gzip.decompress(base64.b64decode(found[1])).decode("utf-8")


def data_of(html: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(unpacked(html, "data"))
    return data


def test_the_page_loads_nothing_from_anywhere(tmp_path: Path):
    html = render([recorded(tmp_path)])
    assert not re.findall(r'(?:src|href)="(?!data:,|#)[^"]*"', html)
    assert "url(" not in html
    assert "@import" not in html


def test_the_page_carries_plotly_from_the_installed_package(tmp_path: Path):
    assert unpacked(render([recorded(tmp_path)]), "plotly").startswith("/**\n* plotly.js v")


def test_the_page_is_small(tmp_path: Path):
    assert len(render([recorded(tmp_path)]).encode()) < 2.5e6


def test_the_same_run_makes_the_same_page(tmp_path: Path):
    run = recorded(tmp_path)
    assert render([run]) == render([run])


def test_the_verdict_the_figures_and_what_was_not_seen_are_text_without_scripts(tmp_path: Path):
    note = Note("nvml", "no driver answers")
    html = render([recorded(tmp_path, notes=(note,))])
    words = re.sub(r"<(script|style)[^>]*>.*?</\1>|<[^>]*>", " ", html, flags=re.DOTALL)
    for said in (
        "peak 14 MiB on cuda:0",
        "Not seen",
        "nvml: no driver answers",
        "step 0, backward",
    ):
        assert said in words


def test_a_dry_run_says_that_it_is_one(tmp_path: Path):
    run = recorded(tmp_path)
    card = DryRun("NVIDIA H100 80GB HBM3", 85_045_477_376)
    dry = replace(run, header=msgspec.structs.replace(run.header, dry_run=card))
    assert "dry run for NVIDIA H100 80GB HBM3: no kernel ran" in render([dry])
    assert "no kernel ran" not in render([run])


def test_several_runs_share_one_page_with_a_switch(tmp_path: Path):
    runs = [recorded(tmp_path, name="one.json"), recorded(tmp_path, name="two.json")]
    html = render(runs)
    assert [run["name"] for run in data_of(html)["runs"]] == ["one.json", "two.json"]
    assert '<option value="1">two.json</option>' in html
    assert "<title>memprof · one.json, two.json</title>" in html


def test_hostile_names_make_no_markup_anywhere(tmp_path: Path):
    frame = Frame(HOSTILE, f"/home/{HOSTILE}/model.py", 3)
    run = recorded(
        tmp_path, training(frame, HOSTILE), name="run.json", notes=(Note(HOSTILE, HOSTILE),)
    )
    html = render([run], title=HOSTILE)
    assert html.count("</script>") == 3
    assert "<img" not in html
    assert not re.search("[\u202a-\u202e\u2066-\u2069\u2028\u2029]", html)
    assert not re.search("[\u202a-\u202e\u2066-\u2069\u2028\u2029]", unpacked(html, "data"))


def test_lone_surrogates_and_long_names_can_be_written(tmp_path: Path):
    trace = training(Frame("f\udc80" + "x" * 100_000, "/home/\ud800.py", 1))
    snap = save_snapshot(tmp_path / "snap.pickle", snapshot(trace))
    page = write([load(snap)], tmp_path / "page.html")
    assert page.stat().st_size < 2.5e6


def test_a_snapshot_without_events_has_one_moment(tmp_path: Path):
    builder = TraceBuilder().existing(3 * MIB, "weights", stack=(MODEL,)).alloc(512, "a")
    whole = snapshot(builder.build(start=False))
    whole["device_traces"] = [[]]
    html = render([load(save_snapshot(tmp_path / "snap.pickle", whole))])
    (device,) = data_of(html)["runs"][0]["devices"]
    assert device["memory"] is None
    assert set(device["owners"]) == set(device["segments"]) == {"end"}


def test_a_run_that_measured_nothing_says_so(tmp_path: Path):
    file = tmp_path / "run.json"
    file.write_text('[\n{"kind":"header","schema":[1,0],"created_us":1}\n]\n')
    html = render([load(file)])
    assert "no data: nothing was measured" in html
    assert data_of(html)["runs"][0]["devices"] == []


def test_no_run_at_all_is_an_error():
    with pytest.raises(MemprofError, match="no run"):
        render([])


def test_a_page_that_cannot_be_written_is_an_error_with_a_hint(tmp_path: Path):
    with pytest.raises(MemprofError, match="cannot write"):
        write([recorded(tmp_path)], tmp_path / "missing" / "page.html")
