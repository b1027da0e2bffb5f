"""The figures of a run as its records come: exact, bounded, and unmoved by impossible ones."""

from __future__ import annotations

import tracemalloc

import msgspec
import pytest

from memprof.live.finding_words import in_words
from memprof.live.live_run import LiveRun
from memprof.records import (
    SCHEMA_VERSION,
    BlockColumns,
    DeviceInfo,
    Finding,
    Footer,
    Header,
    Holder,
    Note,
    Readings,
    StateRecord,
    StepsRecord,
    TablesRecord,
    WindowRecord,
)
from memprof.reference_chain import Link, LinkKind
from memprof.testing.runs import step_columns

MIB, GIB = 1 << 20, 1 << 30
BEGIN = 1_700_000_000_000_000


def header(**more):
    device = DeviceInfo("cuda:0", name="A100", total_bytes=40 * GIB)
    given = {"schema": SCHEMA_VERSION, "created_us": BEGIN, "devices": [device]} | more
    return Header(**given)


def steps(first, count, *, device="cuda:0", held=8 * GIB, grows=4 * MIB, stride=1):
    places = range(first, first + count)
    columns = step_columns(
        allocated=[held + grows * n * stride for n in places],
        peak_allocated=[held + GIB + grows * n * stride for n in places],
        reserved=[held + 2 * GIB + grows * n * stride for n in places],
        start_us=[BEGIN + 100_000 * n for n in places],
        end_us=[BEGIN + 100_000 * (n + 1) for n in places],
    )
    columns.first[:] = [n * stride for n in places]
    columns.last[:] = [(n + 1) * stride - 1 for n in places]
    return StepsRecord(device, columns)


def test_steps_readings_and_findings_are_those_of_the_records():
    run = LiveRun("run.json")
    used = 8 * GIB + 99 * 4 * MIB + 2 * GIB + 3 * GIB
    run.add_all(
        [
            header(rank=3, world_size=8),
            steps(0, 100),
            Readings("nvml", "cuda:0", [BEGIN], {"used": [used], "process_used": [used - GIB]}),
            Readings("host", "host", [BEGIN], {"rss": [1.0, None], "available": [5 * GIB]}),
            Finding("holders", step=7),
            Note("nvml", "one thing"),
            WindowRecord(0, "start", "steps", 0, 1),
        ]
    )
    device = run.main
    assert (run.rank, run.step, run.windows, run.findings_count) == (3, 99, 1, 1)
    assert device is not None
    assert device.last is not None
    assert device.last.allocated == 8 * GIB + 99 * 4 * MIB
    assert device.last.each_us == 100_000
    assert device.peak_allocated == 9 * GIB + 99 * 4 * MIB
    assert device.outside_bytes == 2 * GIB
    assert run.host == {"rss": 1.0, "available": 5 * GIB}
    (full,) = run.times_to_full()
    # 40 GiB less what is not torch's is 37 GiB; the peaks are at 9 GiB and 4 MiB a step.
    assert full.full_step == 28 * 256
    trend = device.trend()
    assert trend is not None
    assert trend.bytes_per_step == 4 * MIB


def test_when_the_run_has_ended_nothing_runs_out():
    run = LiveRun()
    run.add_all([header(), steps(0, 100)])
    assert run.times_to_full() != []
    run.add(Footer(BEGIN + 1, 100))
    assert run.times_to_full() == []


def test_when_memory_ran_out_it_is_not_said_to_run_out():
    run = LiveRun()
    run.add_all([header(), steps(0, 100), Finding("oom", device="cuda:0", step=99)])
    assert run.times_to_full() == []


def test_owners_are_those_of_the_last_state():
    run = LiveRun()
    tables = TablesRecord(labels=[(0, 1, "model.a", ""), (0, 1, "model.b", "")])
    blocks = BlockColumns(
        address=[0, 100, 200, 300, 400],
        size=[10, 20, 30, 40, 1000],
        requested=[10, 20, 30, 40, 1000],
        state=[1, 1, 1, 1, 0],
        segment=[-1] * 5,
        stack=[0] * 5,
        label=[1, 2, 2, 0, 1],
        category=[1, 1, 5, 5, 1],
    )
    run.add_all([header(), tables, steps(0, 3), StateRecord("cuda:0", 0, "end", blocks=blocks)])
    device = run.devices["cuda:0"]
    assert [(one.name, one.bytes) for one in device.categories] == [
        ("activation", 70),
        ("parameter", 30),
    ]
    assert [(one.name, one.bytes) for one in device.modules] == [
        ("model.b", 50),
        ("(no module)", 40),
        ("model.a", 10),
    ]
    assert device.owners_step == 2


def test_buckets_of_ddp_are_owned_as_such_while_the_job_runs():
    run = LiveRun()
    helper = ("_ddp_init_helper", "/env/torch/nn/parallel/distributed.py", 1437)
    tables = TablesRecord(frames=[("train", "/home/u/train.py", 1), helper], stacks=[[0], [1, 0]])
    blocks = BlockColumns(
        address=[0, 100],
        size=[10, 20],
        requested=[10, 20],
        state=[1, 1],
        segment=[-1] * 2,
        stack=[1, 2],
        label=[0, 0],
        category=[0, 0],
    )
    run.add_all([header(), tables, StateRecord("cuda:0", 0, "end", blocks=blocks)])
    assert [(one.name, one.bytes) for one in run.devices["cuda:0"].categories] == [
        ("gradient bucket", 20),
        ("unknown", 10),
    ]


def test_a_run_of_any_length_takes_bounded_memory_and_loses_no_peak():
    run = LiveRun()
    run.add(header())
    columns = steps(0, 1000)
    run.add(columns)
    tracemalloc.start()
    for block in range(1, 25):
        rows = steps(block * 1000, 1000)
        if block == 17:
            rows.steps.peak_allocated[500] = 900 * GIB
        run.add(rows)
        run.add(Finding("holders", step=block))
        run.add(Note("a", "b"))
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    device = run.devices["cuda:0"]
    assert grown < 4 * MIB
    assert len(device.rows) <= 2048
    assert max(row.peak for row in device.rows) == device.peak_allocated == 900 * GIB
    assert (device.rows[0].first, device.rows[-1].last) == (0, 24_999)
    assert all(a.last + 1 == b.first for a, b in zip(device.rows, device.rows[1:], strict=False))
    assert run.findings_count == 24


IMPOSSIBLE = [
    steps(0, 3, held=1 << 63),
    StepsRecord("cuda:0", step_columns(allocated=[-9] * 3)),
    StepsRecord("cuda:0", msgspec.structs.replace(step_columns(allocated=[1] * 3), last=[1])),
    StateRecord(
        "cuda:0", 0, "end", blocks=BlockColumns(state=[1], size=[5], category=[99], label=[0])
    ),
    StateRecord(
        "cuda:0",
        0,
        "end",
        blocks=BlockColumns(state=[1, 1], size=[5], category=[0, 0], label=[0, 0]),
    ),
    TablesRecord(first=(0, 1, 1 << 40, 1), labels=[(0, 0, "a", "")]),
    Readings("nvml", "cuda:0", [1], {"used": [float("inf")]}),
]


@pytest.mark.parametrize("record", IMPOSSIBLE)
def test_impossible_figures_do_no_harm(record):
    run = LiveRun()
    run.add_all([header(), steps(0, 50)])
    try:
        run.add(record)
    finally:
        run.add(steps(50, 50))
    assert run.step == 99
    assert all(one.full_step > 0 for one in run.times_to_full())


def test_no_more_devices_are_kept_than_a_machine_has():
    run = LiveRun()
    for n in range(500):
        run.add(Readings("nvml", f"cuda:{n}", [1], {"used": [1.0]}))
    assert len(run.devices) == 64


@pytest.mark.parametrize(
    ("finding", "words"),
    [
        (
            Finding(
                "holders",
                bytes=3 * MIB,
                count=12,
                holders=[Holder(LinkKind.ITEM, links=[Link(LinkKind.GLOBAL, "seen", "list")])],
            ),
            "12 tensors, 3 MiB, outlived their step, kept by",
        ),
        (
            Finding("holders", bytes=MIB, count=1),
            "1 tensor, 1 MiB, outlived their step, kept by an unknown holder",
        ),
        (
            Finding("oom", device="cuda:1", bytes=2 * GIB),
            "cuda:1 ran out of memory when 2 GiB were asked for",
        ),
        (
            Finding(
                "time_to_full",
                device="cuda:0",
                details={"full_step": 41200, "left_us": 5_000_000, "exact": True},
            ),
            "cuda:0 runs out of memory at about step 41,200, in 5.0 s",
        ),
        (Finding("time_to_full", device="cuda:0", details={"full_step": "x"}), "cuda:0 fills up"),
        (
            Finding("profiled", device="host", count=1200, details={"calls": 1400}),
            "torch's profiler has recorded 1,200 of 1,400 calls of a model",
        ),
        (Finding("of_the_future"), "of the future"),
    ],
)
def test_a_finding_is_a_line(finding, words):
    assert in_words(finding).startswith(words)
