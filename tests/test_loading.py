"""A run comes together from its records, whole or torn, and says what was lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memprof.errors import FileFormatError
from memprof.loading import load
from memprof.records import Finding, Note, Owners, Readings, SourceFiles
from memprof.run import Run
from memprof.runfile.source_digests import MOST_FILES
from memprof.testing import TraceBuilder, save_snapshot, snapshot, step_columns, write_run
from memprof.trace import Category, Frame, Label, Phase, Trace
from memprof.views.timeline import timeline

KIB, MIB = 1 << 10, 1 << 20
STACK = [Frame("forward", "model.py", 3), Frame("main", "train.py", 9)]


def training(device: str = "cuda:0") -> Trace:
    return (
        TraceBuilder(device)
        .existing(MIB, "w", stack=STACK, category=Category.PARAMETER)
        .label(step=3, phase=Phase.FORWARD, module="Net.fc", annotation="a/b")
        .alloc(KIB, "x", stack=STACK, category=Category.ACTIVATION)
        .free("x")
        .build()
    )


def changed(path: Path, change: Any) -> Run:
    """The run after ``change`` was made to its list of records."""
    records = json.loads(path.read_bytes())
    change(records)
    path.write_text("[\n" + ",\n".join(map(json.dumps, records)) + "\n]\n")
    return load(path)


def notes(run: Run) -> str:
    return "\n".join(note.message for note in run.notes)


@pytest.mark.parametrize("name", ["run.json", "run.json.gz", "anything"])
def test_a_run_comes_back_with_its_windows_stacks_and_labels(tmp_path: Path, name: str) -> None:
    run = load(write_run(tmp_path / name, training(), training()))

    assert run.notes == ()
    assert run.footer is not None
    assert not run.is_snapshot
    (device,) = run.devices
    assert device is run.device("cuda:0")
    assert run.device("cuda:1") is None
    assert len(device.windows) == 2
    assert device.events == 2 * len(training().events)
    for window in device.windows:
        assert window.stack(window.events.stack[0]) == tuple(STACK)
        assert window.label(window.events.label[0]) == Label(3, Phase.FORWARD, "Net.fc", "a/b")
        assert timeline(window).allocated.tolist() == timeline(training()).allocated.tolist()
        assert window.events.category[0] == Category.ACTIVATION


def test_counters_readings_findings_and_notes_come_back(tmp_path: Path) -> None:
    more = [
        Readings("nvml", "cuda:0", [1, 2], {"used": [5, None]}),
        Readings("nvml", "cuda:0", [3], {"used": [7], "power_w": [0.5]}),
        Finding("holders", device="cuda:0", stack=1, bytes=4),
        Note("nvml", "gone"),
    ]
    steps = step_columns(allocated=[10, 20], window=[-1, 0])
    run = load(write_run(tmp_path / "r", training(), steps=steps, more=more))

    assert run.devices[0].steps.allocated.tolist() == [10, 20]
    assert run.devices[0].steps.last.tolist() == [0, 1]
    assert run.devices[0].steps.reserved.tolist() == [-1, -1]
    used, power = run.readings
    assert (used.name, used.time_us.tolist()) == ("used", [1, 2, 3])
    assert np.array_equal(used.values, [5, np.nan, 7], equal_nan=True)
    assert (power.name, power.time_us.tolist()) == ("power_w", [3])
    assert run.findings == (more[2],)
    assert run.notes == (more[3],)


def test_rows_of_steps_that_were_written_twice_count_once(tmp_path: Path) -> None:
    steps = step_columns(allocated=[10, 20, 20], first=[0, 1, 1], last=[0, 1, 1])
    run = load(write_run(tmp_path / "r", training(), steps=steps))
    assert run.devices[0].steps.last.tolist() == [0, 1]
    assert run.devices[0].steps.allocated.tolist() == [10, 20]


def test_owners_that_became_known_late_are_put_where_they_belong(tmp_path: Path) -> None:
    trace = training()
    assert trace.start is not None
    late = Owners(
        "cuda:0",
        0,
        events=[0, 1, 999],
        categories=[Category.GRADIENT] * 3,
        blocks=[int(trace.start.blocks.address[0]), 12345],
        block_categories=[Category.OPTIMIZER_STATE] * 2,
    )
    window = load(write_run(tmp_path / "r", trace, more=[late])).devices[0].windows[0]

    assert window.events.category.tolist()[:2] == [Category.GRADIENT, 0]
    assert window.start is not None
    assert window.start.blocks.category[0] == Category.OPTIMIZER_STATE
    assert window.label(window.events.label[0]) == trace.tables.labels[trace.events.label[0]]


def test_modules_that_became_known_late_are_put_where_they_belong(tmp_path: Path) -> None:
    trace = training()
    assert trace.start is not None
    of_net = next(row for row, one in enumerate(trace.tables.labels) if one.module == "Net.fc")
    late = Owners(
        "cuda:0",
        0,
        events=[0],
        categories=[Category.PARAMETER],
        labels=[of_net],
        blocks=[int(trace.start.blocks.address[0])],
        block_categories=[Category.PARAMETER],
        block_labels=[of_net],
    )
    window = load(write_run(tmp_path / "r", trace, more=[late])).devices[0].windows[0]

    assert window.start is not None
    assert window.label(window.events.label[0]).module == "Net.fc"
    assert window.label(window.start.blocks.label[0]).module == "Net.fc"


def test_a_killed_job_is_said_to_have_no_footer(tmp_path: Path) -> None:
    path = write_run(tmp_path / "r", training())
    path.write_bytes(path.read_bytes()[:-30])

    run = load(path)
    assert run.footer is None
    assert "killed or is still running" in notes(run)
    assert "last record is torn" in notes(run)
    assert timeline(run.devices[0].windows[0]).allocated.tolist() == [MIB, MIB + KIB, MIB, MIB]


def test_a_window_without_its_end_is_counted_from_its_start(tmp_path: Path) -> None:
    path = write_run(tmp_path / "r", training())
    run = changed(path, lambda records: records.pop(4))

    (window,) = run.devices[0].windows
    assert window.end is None
    assert timeline(window).allocated.tolist() == [MIB, MIB + KIB, MIB, MIB]


def test_steps_name_the_windows_that_their_own_device_has(tmp_path: Path) -> None:
    steps = step_columns(first=[0, 1, 2], last=[0, 1, 2], window=[0, 1, -1])
    path = write_run(tmp_path / "r", training(), training(), steps=steps)

    def without_the_first(records: list[Any]) -> None:
        records[:] = [r for r in records if r.get("window") != 0]

    run = changed(path, without_the_first)
    assert len(run.devices[0].windows) == 1
    assert run.devices[0].steps.window.tolist() == [-1, 0, -1]


def test_a_window_without_both_states_is_said_to_count_from_zero(tmp_path: Path) -> None:
    path = write_run(tmp_path / "r", training())
    run = changed(path, lambda records: [records.pop(4), records.pop(2)])

    assert "counted from zero" in notes(run)
    assert timeline(run.devices[0].windows[0]).allocated.tolist() == [0, KIB, 0, 0]


def test_a_lost_chunk_cuts_the_window_there(tmp_path: Path) -> None:
    def change(records: list[dict[str, Any]]) -> None:
        records.insert(4, records[3] | {"first_event": 7})
        records.insert(5, records[3] | {"first_event": 3})

    run = changed(write_run(tmp_path / "r", training()), change)
    (window,) = run.devices[0].windows
    assert "rest of the window is unusable" in notes(run)
    assert len(window.events) == 3
    assert window.end is None


def test_lost_tables_leave_events_without_a_stack_and_say_so(tmp_path: Path) -> None:
    path = write_run(tmp_path / "r", training(), training())
    run = changed(path, lambda records: records.pop(1))

    assert "rows of the tables are lost" in notes(run)
    assert run.devices[0].windows[-1].stack(1 + 1) == tuple(STACK)


@pytest.mark.parametrize(
    ("record", "key", "value"),
    [
        (1, "stacks", [[99]]),
        (1, "labels", [[1 << 60, 0, "", ""]]),
        (1, "first", [5, 0, 1, 1]),
        (2, "segments", {}),
        (2, "device", "../../etc"),
        (3, "stack", [7, 0, 0]),
        (3, "label", [-1, 0, 0]),
        (3, "category", [8, 0, 0]),
        (3, "action", [10, 0, 0]),
        (3, "size", [-1, 0, 0]),
        (3, "size", [1 << 62, 0, 0]),
        (3, "size", [1 << 200, 0, 0]),
        (3, "address", [1 << 63, 0, 0]),
        (3, "time_us", [-7, 0, 0]),
        (3, "time_us", [1]),
        (3, "size", []),
        (3, "pool", [4, 0, 0]),
        (5, "ended_us", 1 << 62),
    ],
)
def test_impossible_figures_cost_their_record_and_leave_a_note(
    tmp_path: Path, record: int, key: str, value: object
) -> None:
    path = write_run(tmp_path / "r", training())
    run = changed(path, lambda records: records[record].update({key: value}))

    assert "damaged" in notes(run)
    for device in run.devices:
        for window in device.windows:
            assert timeline(window).allocated.min() >= 0


def test_a_cpu_trace_is_laid_out_as_the_allocator_would(tmp_path: Path) -> None:
    (device,) = load(write_run(tmp_path / "r", training("cpu"))).devices

    assert device.windows[0].modelled
    assert timeline(device.windows[0]).peak_allocated.bytes == MIB + KIB


def test_a_snapshot_becomes_a_run_with_one_window_a_device(tmp_path: Path) -> None:
    data = snapshot(training("cuda:0"), training("cuda:2"))
    run = load(save_snapshot(tmp_path / "s.pickle", data))

    assert run.is_snapshot
    assert run.source == str(tmp_path / "s.pickle")
    assert [(d.device, len(d.windows)) for d in run.devices] == [("cuda:0", 1), ("cuda:2", 1)]
    assert run.header.created_us == training().events.time_us[-1]


def test_what_cannot_be_opened_or_is_empty_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    for path, said in ((tmp_path / "none", "No such file"), (tmp_path, "directory"), (tmp_path / "empty", "empty")):  # fmt: skip
        with pytest.raises(FileFormatError, match=said):
            load(path)


def test_a_run_of_the_first_schema_version_still_reads() -> None:
    run = load(Path(__file__).parent / "data" / "run-1.0.json")

    assert run.header.schema == (1, 0)
    assert run.notes == (Note("nvml", "no such library", "install a driver"),)
    assert run.footer is not None
    assert run.footer.devices[0].peak_allocated_bytes == MIB + KIB
    (window,) = run.devices[0].windows
    assert timeline(window).allocated.tolist() == [MIB, MIB + KIB, MIB, MIB]
    assert window.label(window.events.label[0]) == Label(3, Phase.FORWARD, "Net.fc", "a/b")
    assert run.devices[0].steps.peak_allocated.tolist() == [MIB + KIB]
    assert [(s.name, s.values.tolist()) for s in run.readings] == [("used", [5.0])]
    assert run.findings[0].holders[0].links[0].kind == "global"


def test_the_first_digest_of_a_file_counts_and_there_are_only_so_many(tmp_path: Path) -> None:
    more = [
        SourceFiles(["a.py", "b.py"], ["1", "2"]),
        SourceFiles(["a.py", "c.py", "d.py"], ["9", "3"]),
        SourceFiles([f"{n}.py" for n in range(MOST_FILES)], ["4"] * MOST_FILES),
    ]
    digests = load(write_run(tmp_path / "r", training(), more=more)).digests
    assert list(digests.items())[:4] == [("a.py", "1"), ("b.py", "2"), ("c.py", "3"), ("0.py", "4")]
    assert len(digests) == MOST_FILES - 1  # one was told twice


def test_a_run_without_digests_has_none(tmp_path: Path) -> None:
    assert load(write_run(tmp_path / "r", training())).digests == {}
