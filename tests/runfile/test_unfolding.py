"""Small files that would unfold into much are refused soon; damaged ones still give what is whole."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from memprof.errors import FileFormatError
from memprof.loading import load
from memprof.snapshot.reader import traces_from_snapshot
from memprof.testing import TraceBuilder, snapshot, write_run

HEADER = b'[\n{"kind":"header","schema":[1,0],"created_us":1}'
JUNK = 100_000


def two_devices() -> dict[str, Any]:
    traces = [TraceBuilder(f"cuda:{at}").alloc(4096, "a").build() for at in range(2)]
    return dict(snapshot(*traces))


def test_a_list_of_events_that_several_devices_share_is_refused() -> None:
    data = two_devices()
    assert len(traces_from_snapshot(data)) == 2
    data["device_traces"] = [data["device_traces"][0]] * 2
    with pytest.raises(FileFormatError, match="devices share one list of events") as raised:
        traces_from_snapshot(data)
    assert raised.value.hint


def test_devices_without_events_may_share_the_empty_list() -> None:
    data = two_devices()
    empty: list[Any] = []
    data["device_traces"] = [*data["device_traces"], empty, empty]
    assert [trace.device for trace in traces_from_snapshot(data)] == ["cuda:0", "cuda:1"]


@pytest.mark.parametrize("line", [b"1", b'{"kind":"of the future"}', b""], ids=repr)
def test_a_file_of_lines_without_records_is_refused(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "run.json.gz"
    path.write_bytes(gzip.compress(HEADER + (b",\n" + line) * (JUNK + 10)))
    with pytest.raises(FileFormatError, match=r"holds 0 records in 100,\d\d\d lines") as raised:
        load(path)
    assert raised.value.hint


def test_a_file_with_many_damaged_lines_gives_what_is_whole(tmp_path: Path) -> None:
    trace = TraceBuilder().alloc(4096, "a").free("a").build()
    path = Path(write_run(tmp_path / "run.json", trace))
    lines = path.read_bytes().splitlines(keepends=True)
    damaged = b'{"kind": "trace", ###\n' * (JUNK - 100)
    path.write_bytes(b"".join([*lines[:2], damaged, *lines[2:]]))
    run = load(path)
    assert len(run.devices[0].windows[0].events) == len(trace.events)
    assert "more records are damaged and were left out" in run.notes[-1].message


def test_a_run_file_of_more_devices_than_a_machine_has_is_refused(tmp_path: Path) -> None:
    def chunk(device: int) -> bytes:
        return (
            b',\n{"kind":"trace","device":"cuda:%d","window":0,"first_event":0,"action":[0],'
            b'"address":[512],"size":[512],"time_us":[1],"stack":[0],"label":[0],"category":[0]}'
        ) % device

    path = tmp_path / "run.json"
    path.write_bytes(HEADER + b"".join(map(chunk, range(64))) + b"\n]")
    assert len(load(path).devices) == 64
    path.write_bytes(HEADER + b"".join(map(chunk, range(65))) + b"\n]")
    with pytest.raises(FileFormatError, match="names 65 devices") as raised:
        load(path)
    assert raised.value.hint
