"""What room torch had when memory ran out: fractions, other processes, other streams and pools."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from memprof.allocator import parse_settings, play, workload_of
from memprof.loading import load
from memprof.oom.post_mortem import OomCause, PostMortem, post_mortems
from memprof.records import DeviceInfo, Finding
from memprof.snapshot.reader import traces_from_snapshot
from memprof.testing import TraceBuilder, write_run
from memprof.trace import Trace

GIB = 1 << 30


def full(count: int = 39, **more: Any) -> TraceBuilder:
    """That many tensors of 1 GiB."""
    builder = TraceBuilder(**more)
    for at in range(count):
        builder.alloc(GIB, f"tensor{at}")
    return builder


def dead(folder: Path, trace: Trace, *findings: Finding, **info: Any) -> PostMortem:
    run = load(write_run(folder / "run", trace, more=findings))
    devices = (replace(d, info=DeviceInfo(d.device, **info)) for d in run.devices)
    (told,) = post_mortems(replace(run, devices=tuple(devices)), 1)
    return told


def tried(told: PostMortem) -> dict[str, tuple[bool, int]]:
    """By kind whether it helps, and in how many GiB; settings left out."""
    found = told.rescues.tried
    return {r.kind: (r.fits, r.limit // GIB) for r in found if r.kind != "settings"}


def test_a_fraction_that_others_memory_would_not_lift_is_the_cause(tmp_path: Path) -> None:
    trace = full().oom(2 * GIB, device_free=16 * GIB).build()
    told = dead(tmp_path, trace, total_bytes=80 * GIB, memory_fraction=0.5)
    assert told.cause is OomCause.LIMIT
    enough = {weight.cause: weight.enough for weight in told.weights}
    assert enough == {OomCause.LIMIT: True, OomCause.OTHERS: False, OomCause.FRAGMENTATION: False}
    # 40 GiB are allowed whether others leave or not; of 94 GiB the half is enough
    assert tried(told) == {"limit": (True, 55), "card": (True, 47)}
    assert told.rescues.fitting[-1].change == (
        "a card of 94 GiB, of which torch may hold 0.5: torch needs 41 GiB to get past this request"
    )


def test_others_are_the_cause_where_the_fraction_leaves_room(tmp_path: Path) -> None:
    trace = full().oom(2 * GIB, device_free=GIB // 2).build()
    told = dead(tmp_path, trace, total_bytes=80 * GIB, memory_fraction=0.6)
    assert told.cause is OomCause.OTHERS
    # 39.5 GiB were there, 48 GiB are allowed
    assert tried(told) == {"others": (True, 48), "card": (True, 53)}


def test_without_a_fraction_all_that_others_held_is_counted(tmp_path: Path) -> None:
    trace = full().oom(2 * GIB, device_free=GIB // 2).build()
    told = dead(tmp_path, trace, total_bytes=80 * GIB)
    assert told.cause is OomCause.OTHERS
    assert tried(told)["others"] == (True, 79)


@pytest.mark.parametrize(("total", "larger"), [(22 * GIB + 1, "32 GiB"), (24 * GIB, "32 GiB")])
def test_a_larger_card_is_not_the_one_that_was_too_small(
    tmp_path: Path, total: int, larger: str
) -> None:
    trace = full(21).oom(GIB, device_free=GIB // 2).build()
    told = dead(tmp_path, trace, total_bytes=total)
    (card,) = (rescue for rescue in told.rescues.tried if rescue.kind == "card")
    assert card.name == f"a card of {larger}"


FRACTION = {"PYTORCH_CUDA_ALLOC_CONF": "per_process_memory_fraction:0.5"}


def test_a_fraction_in_the_settings_is_not_taken_of_what_it_left(tmp_path: Path) -> None:
    trace = full(settings=FRACTION).oom(2 * GIB, device_free=41 * GIB).build()
    told = dead(tmp_path, trace, total_bytes=80 * GIB, memory_fraction=0.5)
    assert told.rescues.unproven == ""
    assert tried(told) == {"limit": (True, 80), "card": (True, 47)}


@pytest.mark.parametrize(
    ("conf", "fits"),
    [
        ("per_process_memory_fraction:0.5", True),
        ("per_process_memory_fraction:0.25", False),
        ("", True),
    ],
)
def test_another_fraction_is_one_of_the_card_that_the_recorded_one_left_a_share_of(
    conf: str, fits: bool
) -> None:
    workload = workload_of(full(30, settings=FRACTION).build())
    # 40 GiB is the recorded half of 80 GiB; a quarter would be 20 GiB
    assert play(workload, parse_settings(conf), capacity=40 * GIB).fits is fits
    without = workload_of(full(30).build())
    half = parse_settings("per_process_memory_fraction:0.5")
    assert not play(without, half, capacity=40 * GIB).fits
    assert play(without, half, capacity=60 * GIB).fits


def test_what_the_job_wrote_of_another_failure_says_nothing_of_this_one(tmp_path: Path) -> None:
    trace = full(9).oom(2 * GIB, device_free=0).build()
    at_us = int(trace.events.time_us[-1])
    details = {"device_total": 12 * GIB, "limit": 6 * GIB, "process_used": 3 * GIB}
    for late_us, total in ((1_000_000, 12 * GIB), (-3_600_000_000, 11 * GIB)):
        finding = Finding("oom", "cuda:0", 1, at_us + late_us, bytes=5 * GIB, details=details)
        failure = dead(tmp_path, trace, finding, total_bytes=11 * GIB).failure
        assert (failure.recorded, failure.total) == ("event", total)
        assert (failure.fraction < 1) == (failure.details is not None) == (total == 12 * GIB)


BASE = 1 << 44
POOL = tuple[int, int]


def event(action: str, at: int, size: int, pool: POOL = (0, 0), stream: int = 0) -> dict[str, Any]:
    where = {"device_free": at} if action == "oom" else {"addr": at}
    more = {"stream": stream, "pool_id": pool, "frames": [], "time_us": 1_700_000_000_000_000}
    return {"action": action, "size": size, **where, **more}


def half_used(pool: POOL, stream: int, asked: int = 4 * GIB) -> Trace:
    """8 GiB in the default pool of stream 0, of which 2 are in use; then a request from elsewhere.

    What is not used was one block with the rest, and is free now.
    """
    blocks = [
        {"address": BASE, "size": 2 * GIB, "requested_size": 2 * GIB, "state": "active_allocated"},
        {"address": BASE + 2 * GIB, "size": 6 * GIB, "requested_size": 0, "state": "inactive"},
    ]
    segment = {
        "device": 0,
        "address": BASE,
        "total_size": 8 * GIB,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": [{**block, "frames": []} for block in blocks],
    }
    events = [
        event("segment_alloc", BASE, 8 * GIB),
        event("alloc", BASE, 8 * GIB),
        event("free_requested", BASE, 8 * GIB),
        event("free_completed", BASE, 8 * GIB),
        event("alloc", BASE, 2 * GIB),
        event("oom", GIB, asked, pool, stream),
    ]
    data = {"segments": [segment], "device_traces": [events], "allocator_settings": {}}
    (trace,) = traces_from_snapshot(data)
    return trace


@pytest.mark.parametrize(("pool", "stream"), [((0, 0), 7), ((1, 0), 0), ((0, 1), 0)])
def test_what_other_streams_and_pools_left_unused_is_no_piece_for_the_request(
    tmp_path: Path, pool: POOL, stream: int
) -> None:
    told = dead(tmp_path, half_used(pool, stream), total_bytes=10 * GIB)
    assert (told.failure.largest_free, told.failure.apart) == (0, 6 * GIB)
    assert told.cause is OomCause.FRAGMENTATION
    assert told.why == (
        "7 GiB were unused or free when 4 GiB were asked: enough, but in no piece of that size "
        "(largest 1 GiB); 6 GiB of it belong to other streams or pools"
    )


def test_what_its_own_stream_and_pool_left_unused_is_a_piece_for_the_request(
    tmp_path: Path,
) -> None:
    told = dead(tmp_path, half_used((0, 0), 0, asked=7 * GIB), total_bytes=10 * GIB)
    assert (told.failure.largest_free, told.failure.apart) == (6 * GIB, 0)
    assert told.why.endswith("enough, but in no piece of that size (largest 6 GiB)")


def test_a_piece_that_was_large_enough_is_not_said_to_be_too_small(tmp_path: Path) -> None:
    told = dead(tmp_path, half_used((0, 0), 0), total_bytes=10 * GIB)
    assert told.why.endswith("enough, but in no piece that such a request is given (largest 6 GiB)")


def test_a_small_request_has_no_piece_of_a_large_segment(tmp_path: Path) -> None:
    told = dead(tmp_path, half_used((0, 0), 0, asked=1 << 20), total_bytes=10 * GIB)
    assert (told.failure.largest_free, told.failure.apart) == (0, 6 * GIB)
