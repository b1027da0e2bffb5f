"""Ranks in figures: rows, spreads, who differs, and who is judged for all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from memprof.loading import load
from memprof.ranks.figures import (
    RankFigures,
    choose_ranks,
    deviations,
    footer_of,
    is_rising,
    rank_rows,
    spreads,
)
from memprof.records import DeviceInfo, DeviceSummary, Finding, Footer, Header, Readings
from memprof.testing import TraceBuilder, step_columns, write_rank, write_run

GIB = 1 << 30
MIB = 1 << 20


def row(rank: int, *devices: DeviceSummary, closed: bool = True, **footer: object) -> tuple:
    header = Header((1, 1), 1, rank=rank, world_size=4, devices=[DeviceInfo("cuda:0", total_bytes=9)])  # fmt: skip
    return f"run.rank{rank}.json", header, Footer(7, devices=list(devices), **footer), closed  # type: ignore[arg-type]


def rows(*given: tuple) -> tuple[RankFigures, ...]:
    return rank_rows(*zip(*given, strict=True))


def ranks(count: int, **changed: dict[int, object]) -> list[RankFigures]:
    """Equal ones, but for what ``changed`` says: field by field, rank by rank."""
    plain = RankFigures(0, "", "ok", "", 1, 9, 100, 300_000, 0, "cuda:0", 80 * GIB, 40 * GIB, 41 * GIB, 600 * MIB, 0.0, 0.5)  # fmt: skip
    found = []
    for number in range(count):
        fields = {name: getattr(plain, name) for name in RankFigures.__slots__}
        fields |= {"rank": number, "file": f"run.rank{number}.json"}
        fields |= {name: values[number] for name, values in changed.items() if number in values}
        found.append(RankFigures(**fields))
    return found


def test_a_row_has_the_figures_of_the_device_with_the_most_bytes():
    small = DeviceSummary("cuda:0", peak_allocated_bytes=4, peak_reserved_bytes=9, ooms=2)
    large = DeviceSummary("cuda:1", peak_allocated_bytes=6, peak_reserved_bytes=8, total_bytes=80)
    (one,) = rows(row(3, small, large, steps=5, step_us=11))
    assert (one.rank, one.name, one.device, one.total_bytes) == (3, "rank 3", "cuda:1", 80)
    assert (one.peak_allocated_bytes, one.unused_bytes, one.ooms) == (6, 2, 2)
    assert (one.steps, one.step_us, one.ended, one.ran_out) == (5, 11, "ok", True)


def test_where_any_rank_used_an_accelerator_the_hosts_tensors_do_not_count():
    host = DeviceSummary("cpu", peak_allocated_bytes=100)
    first, second = rows(row(0, host, DeviceSummary("cuda:0", peak_allocated_bytes=6)), row(1, host))  # fmt: skip
    assert (first.peak_allocated_bytes, first.total_bytes) == (6, 9)
    assert (second.device, second.peak_allocated_bytes, second.unused_bytes) == ("", -1, -1)
    (alone,) = rows(row(1, host))
    assert (alone.device, alone.peak_allocated_bytes) == ("cpu", 100)


@pytest.mark.parametrize(
    ("closed", "status", "ended", "ran_out"),
    [
        (True, "ok", "ok", False),
        (True, "ValueError: x", "failed", False),
        (True, "OutOfMemoryError: CUDA out of memory.", "failed", True),
        (False, "", "cut off", False),
    ],
)
def test_how_a_rank_ended(closed, status, ended, ran_out):
    (one,) = rows(row(0, closed=closed, status=status))
    assert (one.ended, one.ran_out) == (ended, ran_out)


def test_the_spread_says_which_rank_has_the_least_and_the_most():
    spread = {one.measure: one for one in spreads(ranks(5, peak_allocated_bytes={1: GIB, 3: 60 * GIB}, step_us={2: -1}))}  # fmt: skip
    peak = spread["peak_allocated"]
    assert (peak.least, peak.least_at) == (GIB, "rank 1")
    assert (peak.median, peak.ranks) == (40 * GIB, 5)
    assert (peak.highest, peak.highest_at) == (60 * GIB, "rank 3")
    assert spread["step_time"].ranks == 4
    assert set(spread) == {"peak_allocated", "peak_reserved", "unused", "outside", "growth", "step_time"}  # fmt: skip


def test_the_first_device_to_be_full_is_the_least_time_of_those_that_fill_up():
    filling = DeviceSummary(
        "cuda:0", peak_allocated_bytes=6, full_step=900, full_left_us=60_000_000
    )
    later = msgspec.structs.replace(filling, full_step=2000, full_left_us=3_600_000_000)
    level = DeviceSummary("cuda:0", peak_allocated_bytes=6)
    given = rows(row(0, level), row(1, later), row(2, filling), row(3, level))
    assert [one.full_step for one in given] == [-1, 2000, 900, -1]
    (spread,) = [one for one in spreads(given) if one.measure == "time_to_full"]
    assert (spread.least, spread.least_at, spread.unit) == (60_000_000, "rank 2", "us")
    assert (spread.highest, spread.highest_at, spread.ranks) == (3_600_000_000, "rank 1", 2)
    assert "time_to_full" not in {one.measure for one in deviations(given)}


def test_a_file_without_a_footer_says_when_its_device_is_full(tmp_path):
    mine = tmp_path / "run.json"
    columns = step_columns(
        allocated=[n * MIB for n in range(400)],
        peak_allocated=[n * MIB for n in range(400)],
        reserved=[1000 * MIB] * 400,
        start_us=[1_000_000 * n for n in range(400)],
        end_us=[1_000_000 * (n + 1) for n in range(400)],
    )
    write_run(mine, TraceBuilder().build(), steps=columns)
    run = load(mine)
    info = msgspec.structs.replace(run.devices[0].info, total_bytes=1000 * MIB)
    run = replace(run, footer=None, devices=(replace(run.devices[0], info=info),))
    (one,) = footer_of(run).devices
    assert one.full_step == 1000
    assert one.full_left_us == (1000 - 399) * 1_000_000


def test_what_no_rank_measured_has_no_spread():
    none = dict.fromkeys(range(3), -1)
    found = spreads(ranks(3, outside_bytes=none, peak_reserved_bytes=none, bytes_per_step=dict.fromkeys(range(3))))  # fmt: skip
    assert [one.measure for one in found] == ["peak_allocated", "step_time"]


def test_a_shrinking_rank_is_measured():
    found = spreads(ranks(3, bytes_per_step={1: -5000.0}))
    (growth,) = [one for one in found if one.measure == "growth"]
    assert (growth.least, growth.least_at, growth.ranks) == (-5000, "rank 1", 3)


def test_who_differs_is_told_measure_by_measure_the_farthest_first():
    given = ranks(
        20,
        peak_allocated_bytes={4: 50 * GIB, 9: 60 * GIB, 11: 20 * GIB},
        peak_reserved_bytes={4: 51 * GIB, 9: 61 * GIB, 11: 21 * GIB, 15: 70 * GIB},
        bytes_per_step={7: 2.0 * MIB},
        step_us={3: 400_000},
        outside_bytes={2: 5 * GIB},
    )
    assert [(one.measure, one.higher, one.rows, one.value) for one in deviations(given)] == [
        ("peak_allocated", True, (9, 4), 60 * GIB),
        ("peak_allocated", False, (11,), 20 * GIB),
        ("unused", True, (15,), 30 * GIB),
        ("outside", True, (2,), 5 * GIB),
        ("growth", True, (7,), 2 * MIB),
        ("step_time", True, (3,), 400_000),
    ]


def test_equal_ranks_do_not_differ():
    assert deviations(ranks(1000)) == ()


def test_growth_is_steady_and_of_more_than_a_block():
    steady, noisy, small = ranks(3, bytes_per_step={0: 600.0, 1: 600.0, 2: 512.0}, rising={0: 1.0, 1: 0.6, 2: 1.0})  # fmt: skip
    assert [is_rising(one) for one in (steady, noisy, small)] == [True, False, False]


def test_of_up_to_eight_each_is_judged():
    assert choose_ranks(ranks(8), ()) == dict.fromkeys(range(8), "")


def test_of_many_those_are_judged_that_stand_for_all():
    given = ranks(
        100,
        ooms={70: 1, 71: 1},
        ended_us={70: 8, 71: 5},
        peak_allocated_bytes={3: 60 * GIB},
        bytes_per_step={8: 5000.0},
        rising={8: 1.0},
    )
    assert choose_ranks(given, deviations(given)) == {
        71: "ran out of memory",
        3: "highest peak",
        # Equal ones follow in order, behind them the one with the highest peak.
        50: "median peak",
        8: "fastest growth",
    }


def test_never_more_than_six_are_judged():
    changed = {n: (50 + n) * GIB for n in range(3)} | {n: n * GIB for n in range(10, 14)}
    steps = {5: 900_000, 6: 10_000}
    given = ranks(100, peak_allocated_bytes=changed, outside_bytes={20: GIB, 21: 0}, step_us=steps, bytes_per_step={30: -1.0 * GIB})  # fmt: skip
    found = deviations(given)
    assert len(found) == 9
    assert len(choose_ranks(given, found)) == 6


# -- where there is no footer ----------------------------------------------------------------------


def test_a_run_without_a_footer_is_summed_up_from_its_records(tmp_path):
    trace = TraceBuilder().existing(MIB, "w").alloc(3 * MIB, "a").build()
    steps = step_columns(
        start_us=[100 * n for n in range(10)],
        end_us=[100 * n + 40 for n in range(10)],
        allocated=[MIB + 1024 * n for n in range(10)],
        reserved=[32 * MIB] * 10,
        peak_allocated=[8 * MIB] * 10,
        peak_reserved=[40 * MIB] * 10,
    )
    more = (
        Finding("oom", "cuda:0", bytes=5, count=1),
        Readings("nvml", "cuda:0", [500], {"process_used": [33 * MIB]}),
    )
    path = write_rank(tmp_path, 0, 2, trace, steps=steps, ending="none", more=more)
    footer = footer_of(load(path))
    (device,) = footer.devices
    assert (footer.steps, footer.step_us, footer.ended_us, footer.status) == (10, 40, 940, "")
    assert device == msgspec.structs.replace(
        DeviceSummary("cuda:0"),
        peak_allocated_bytes=8 * MIB,
        peak_reserved_bytes=40 * MIB,
        events=len(trace.events),
        outside_bytes=MIB,
        bytes_per_step=1024.0,
        rising=1.0,
        ooms=1,
    )


def test_of_a_cpu_what_was_counted_is_told_and_not_the_model(tmp_path: Path):
    trace = TraceBuilder(device="cpu").alloc(1000, "a").build()
    steps = step_columns(peak_allocated=[1000], allocated=[1000])
    footer = footer_of(load(write_run(tmp_path / "run.json", trace, steps=steps)))
    (device,) = footer.devices
    assert (device.peak_allocated_bytes, device.peak_reserved_bytes) == (1000, -1)
    assert footer.status == "ok"
