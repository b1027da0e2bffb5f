"""The two ends of a run file: what is read of them, and what is not."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from memprof.errors import FileFormatError
from memprof.records import DeviceInfo, DeviceSummary, Footer, Header, Interim, Note, StepsRecord
from memprof.runfile.head_and_tail import read_ends
from memprof.runfile.writer import RunWriter
from memprof.testing import step_columns, write_rank

GIB = 1 << 30


def lines(path: Path, *records: object) -> Path:
    text = ",\n".join(json.dumps(record) for record in records)
    path.write_text(f"[\n{text}")
    return path


HEADER = {"kind": "header", "schema": [1, 1], "created_us": 5, "rank": 3, "world_size": 8}


@pytest.mark.parametrize("name", ["run.rank3.json", "run.rank3.json.gz"])
def test_a_closed_file_tells_its_header_and_its_footer(tmp_path, name):
    path = write_rank(tmp_path, 3, 8, name=name, peak=5 * GIB, status="ValueError: x")
    ends = read_ends(path)
    assert (ends.header.rank, ends.header.world_size, ends.header.argv) == (3, 8, ["train.py"])
    assert ends.is_closed
    assert ends.summary is not None
    assert ends.summary.status == "ValueError: x"
    assert ends.summary.devices[0].peak_allocated_bytes == 5 * GIB


@pytest.mark.parametrize("name", ["run.rank3.json", "run.rank3.json.gz"])
def test_of_a_killed_job_the_last_interim_summary_stands_in(tmp_path, name):
    path = write_rank(
        tmp_path, 3, 8, name=name, ending="interim", peak=2 * GIB, more=[Interim(1, 1)]
    )
    ends = read_ends(path)
    assert not ends.is_closed
    assert ends.summary is not None
    assert (ends.summary.steps, ends.summary.status) == (100, "")
    assert ends.summary.devices[0].peak_allocated_bytes == 2 * GIB


def test_an_interim_summary_is_found_before_megabytes_of_events(tmp_path):
    path = tmp_path / "run.json"
    writer = RunWriter(path, Header((1, 1), 1, rank=0, world_size=2))
    writer.write(Interim(7, steps=4))
    writer.write(Note("test", "x" * (3 << 20)))
    writer.close()
    ends = read_ends(path)
    assert ends.summary == Footer(7, 4, status="")


def test_steps_that_ended_after_the_interim_summary_raise_its_peaks(tmp_path):
    path = tmp_path / "run.json"
    writer = RunWriter(path, Header((1, 1), 1, rank=0, world_size=2))
    before = step_columns(peak_allocated=[900], peak_reserved=[900], end_us=[5])
    writer.write(StepsRecord("cuda:0", before))
    devices = [DeviceSummary("cuda:0", peak_allocated_bytes=50, peak_reserved_bytes=70, ooms=1)]
    writer.write(Interim(7, steps=1, devices=devices))
    for peak in (60, 40):
        after = step_columns(peak_allocated=[peak, 20], allocated_max=[55, 20], end_us=[9, 11])
        writer.write(StepsRecord("cuda:0", after))
    writer.write(StepsRecord("cpu", step_columns(peak_allocated=[1000])))
    writer.close()
    raised = DeviceSummary("cuda:0", peak_allocated_bytes=60, peak_reserved_bytes=70, ooms=1)
    assert read_ends(path).summary == Footer(11, 2, [raised], status="")


def test_without_any_summary_there_is_none(tmp_path):
    ends = read_ends(write_rank(tmp_path, 0, 2, ending="none"))
    assert (ends.summary, ends.is_closed) == (None, False)


def test_a_torn_footer_leaves_the_interim_summary_before_it(tmp_path):
    path = lines(tmp_path / "r", HEADER, {"kind": "interim", "time_us": 9, "steps": 2})
    path.write_bytes(path.read_bytes() + b',\n{"kind":"footer","ended_us":10,"st')
    # Written by hand with spaces, which the search for summaries does not know.
    path.write_text(path.read_text().replace('"kind": "', '"kind":"'))
    assert read_ends(path).summary == Footer(9, 2, status="")


def test_the_last_header_counts_as_it_knows_most(tmp_path):
    path = tmp_path / "run.json"
    writer = RunWriter(path, Header((1, 1), 1))
    writer.write(Header((1, 1), 1, rank=1, world_size=4, devices=[DeviceInfo("cuda:0")]))
    writer.close(Footer(2))
    assert read_ends(path).header.rank == 1


def test_impossible_figures_are_left_out(tmp_path):
    path = tmp_path / "run.json"
    writer = RunWriter(path, Header((1, 1), 1 << 62, rank=1 << 40, world_size=1 << 60))
    bad = [DeviceSummary("cuda:0", peak_allocated_bytes=-5), DeviceSummary("cuda:1", ooms=1 << 63)]
    rate = DeviceSummary("cuda:2", bytes_per_step=1e300)
    good = DeviceSummary("cuda:3", peak_allocated_bytes=7)
    writer.close(Footer(1 << 60, -4, [*bad, rate, good], step_us=-3))
    ends = read_ends(path)
    assert (ends.header.created_us, ends.header.rank, ends.header.world_size) == (0, -1, 1)
    assert ends.summary == Footer(0, 0, [good])


def test_a_file_of_version_1_0_reads():
    ends = read_ends(Path(__file__).parents[1] / "data" / "run-1.0.json")
    assert ends.is_closed
    assert ends.summary is not None
    assert ends.summary.devices[0].bytes_per_step is None
    assert ends.summary.step_us == -1


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "does not begin with a header"),
        (b"hello", "does not begin with a header"),
        (b'[\n{"kind":"header","schema":[2,0],"created_us":1}\n]', "schema version 2.0"),
        (gzip.compress(b"[1, 2]", mtime=0), "does not begin with a header"),
    ],
)
def test_what_is_no_run_file_is_an_error(tmp_path, content, says):
    (tmp_path / "bad").write_bytes(content)
    with pytest.raises(FileFormatError, match=says):
        read_ends(tmp_path / "bad")


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(FileFormatError, match="cannot read"):
        read_ends(tmp_path / "none")
