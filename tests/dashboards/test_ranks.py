"""The page about the ranks of a job: what it says, how heavy it is, and that it draws."""

from __future__ import annotations

import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from memprof.errors import MemprofError
from memprof.ranks.files import files_of, gather_ranks, job_report
from memprof.ranks.workers import Workers
from memprof.testing import TraceBuilder, write_rank
from memprof_dashboards.assets import plotly_script
from memprof_dashboards.ranks import render_job, write_job
from tests.dashboards.browser import Browser
from tests.dashboards.recordings import HOSTILE

GIB = 1 << 30
MIB = 1 << 20
FOOTPRINT = "document.querySelector('#footprint .chart')"
MEASURE = "document.querySelector('#measure .chart')"


def report(folder: Path):
    job = gather_ranks(files_of([folder]), by_name=False, workers=Workers())
    assert job is not None
    return job_report(job, judge_all=False, workers=Workers())


def job(folder: Path, count: int = 8, **more: Any):
    """Ranks of 40 GiB, 1 GiB more reserved, some outside; rank 1 ran out, rank 3 is missing."""
    trace = TraceBuilder().existing(MIB, "w").alloc(5 * MIB, "a").free("a").build()
    for rank in range(count):
        if rank == 3:
            continue
        fields = {"peak": 40 * GIB, "reserved": 41 * GIB, "outside": 600 * MIB} | more
        if rank == 1:
            fields |= {"peak": 78 * GIB, "reserved": 78 * GIB, "ooms": 1, "status": "OutOfMemoryError: x"}  # fmt: skip
        write_rank(folder, rank, count, trace, **fields)
    return report(folder)


def data_of(page: str) -> dict[str, Any]:
    packed = re.search(r'id="data">([^<]*)<', page)
    assert packed is not None
    return json.loads(gzip.decompress(base64.b64decode(packed[1])))


def test_the_page_says_what_the_screen_says(tmp_path):
    page = render_job(job(tmp_path))
    text = re.sub(r"<script.*?</script>|<style.*?</style>", "", page, flags=re.DOTALL)
    for said in (
        "<h1>rank 1 ran out of memory, the only one of 7 ranks</h1>",
        "7 of 8 read; 1 missing: 3",
        "1 failed: rank 1: OutOfMemoryError: x",
        "<td>peak allocated</td><td>rank 1</td><td>78 GiB, the median 40 GiB</td>",
        "on all 7 judged",
        f"<code>memprof oom {tmp_path / 'run.rank1.json'}</code>",
    ):
        assert said in text


def test_the_charts_have_every_rank(tmp_path):
    data = data_of(render_job(job(tmp_path)))
    assert data["rank"] == [0, 1, 2, 4, 5, 6, 7]
    assert data["allocated"] == [40 * GIB, 78 * GIB, *[40 * GIB] * 5]
    assert data["unused"] == [GIB, 0, *[GIB] * 5]
    assert data["outside"] == [600 * MIB] * 7
    assert data["ran_out"] == [False, True, *[False] * 5]
    measures = {measure["name"]: measure for measure in data["measures"]}
    assert measures["peak_allocated"]["outliers"] == [1]
    assert measures["peak_allocated"]["median"] == 40 * GIB


def test_when_a_rank_is_full_is_a_measure_of_those_that_fill_up(tmp_path):
    for rank in range(3):
        full = {"full_step": 5000, "full_left_us": 7_200_000_000} if rank == 1 else {}
        write_rank(tmp_path, rank, 3, ending="interim", **full)
    measures = {m["name"]: m for m in data_of(render_job(report(tmp_path)))["measures"]}
    full = measures["time_to_full"]
    assert (full["title"], full["unit"]) == ("time to full", "us")
    assert full["values"] == [None, 7_200_000_000, None]


def test_what_was_not_measured_is_no_zero(tmp_path):
    data = data_of(render_job(job(tmp_path, outside=-1, step_us=-1, bytes_per_step=None)))
    assert data["outside"] == [-1] * 7
    assert [m["name"] for m in data["measures"]] == ["peak_allocated", "peak_reserved", "unused"]


def test_a_thousand_ranks_add_little_to_plotlys_script(tmp_path):
    page = render_job(job(tmp_path, 1000))
    assert len(page) - len(plotly_script()) < 100_000


def test_hostile_names_stay_text(tmp_path):
    for rank in range(3):
        write_rank(tmp_path, rank, 3, argv=[HOSTILE], status=HOSTILE, device="cuda:0")
    page = render_job(report(tmp_path))
    assert HOSTILE not in page
    assert "<img src=x" not in page
    assert "\u202e" not in page
    assert "\\u202egnp.exe" in page
    assert page.count("<script") == 3


def test_a_page_that_cannot_be_written_is_an_error(tmp_path):
    with pytest.raises(MemprofError, match="cannot write"):
        write_job(job(tmp_path), tmp_path / "no" / "folder.html")


# -- in a browser ----------------------------------------------------------------------------------


@pytest.mark.browser
@pytest.mark.parametrize("count", [8, 1000])
def test_it_draws_every_rank_and_marks_those_that_ran_out(browser: Browser, tmp_path, count):
    browser.open(write_job(job(tmp_path, count), tmp_path / "page.html"))
    names = browser.run(f"{FOOTPRINT}.data.map(t => t.name)")
    assert names == ["peak allocated", "reserved, unused", "outside torch", "ran out of memory"]
    drawn = browser.run(f"{FOOTPRINT}.data.map(t => t.x.length)")
    assert drawn == [count - 1] * 3 + [1]
    assert browser.run(f"{FOOTPRINT}.data[3].x") == [1]
    assert browser.run(f"{MEASURE}.data[0].y.length") == count - 1
    assert browser.complaints == []


@pytest.mark.browser
def test_bars_are_put_in_order_and_another_measure_is_shown(browser: Browser, tmp_path):
    browser.open(write_job(job(tmp_path), tmp_path / "page.html"))
    press = "[...document.querySelectorAll('#{} button')].find(b => b.textContent === '{}').click()"
    browser.run(press.format("footprint", "By peak"))
    peaks = browser.run(f"{FOOTPRINT}.data[0].y")
    assert peaks == [78 * GIB, *[40 * GIB] * 6]
    assert browser.run(f"{FOOTPRINT}.data[0].customdata[0]") == 1
    browser.run(press.format("measure", "step time"))
    assert browser.run(f"{MEASURE}.data[0].y") == [300_000] * 7
    assert browser.run(f"{MEASURE}.layout.yaxis.title.text") == "ms"
    assert browser.complaints == []


@pytest.mark.browser
def test_the_pointer_tells_a_rank(browser: Browser, tmp_path):
    browser.open(write_job(job(tmp_path), tmp_path / "page.html"))
    title, rows, notes = browser.run("rankTip(1)")
    assert title == "rank 1"
    assert [(row["name"], row["value"]) for row in rows][:2] == [
        ("peak allocated", "78 GiB"),
        ("reserved, unused", "0 B"),
    ]
    assert notes == ["cuda:0, 100 steps", "run.rank1.json", "ran out of memory", "OutOfMemoryError: x"]  # fmt: skip


@pytest.mark.browser
def test_ranks_without_figures_say_so(browser: Browser, tmp_path):
    nothing = {"peak": -1, "reserved": -1, "outside": -1, "step_us": -1, "bytes_per_step": None}
    for rank in range(3):
        write_rank(tmp_path, rank, 3, **nothing)
    browser.open(write_job(report(tmp_path), tmp_path / "page.html"))
    assert "No rank has figures." in browser.run("document.querySelector('#footprint').textContent")
    assert browser.run("document.querySelector('#measure').hidden")
    assert browser.complaints == []
