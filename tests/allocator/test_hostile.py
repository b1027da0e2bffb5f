"""Damaged and made-up recordings end in an answer or in a clear error, never in a traceback."""

from __future__ import annotations

import copy
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memprof.allocator import (
    CachingAllocator,
    Driver,
    Recorder,
    fragmentation,
    parse_settings,
    replay_recorded,
    replayed_trace,
    segment_map,
)
from memprof.errors import MemprofError
from memprof.snapshot.reader import traces_from_snapshot
from memprof.snapshot.writer import torch_snapshot
from memprof.testing import TraceBuilder
from memprof.what_if.changed_run import replay

MIB = 1 << 20
NUMBERS = [0, -1, 1, 512, 2**40, 2**48, 2**62, -(2**63), 2**63 - 1]
WORDS = [
    "alloc",
    "free_completed",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "oom",
    "small",
    "?",
]


def recorded(rng: random.Random, conf: str):
    model = CachingAllocator(parse_settings(conf), driver=Driver(400 * MIB))
    recording, live = Recorder(model), []
    for _ in range(60):
        if live and rng.random() < 0.45:
            recording.free(live.pop(rng.randrange(len(live))))
        elif rng.random() < 0.05:
            recording.empty_cache()
        else:
            address = recording.alloc(int(2 ** rng.uniform(5, 26)))
            live += [] if address is None else [address]
    return recording.trace(rng.choice([0, rng.randrange(len(recording))]))


def places(node):
    for key in list(node if isinstance(node, dict) else range(len(node))):
        yield node, key
        if isinstance(node[key], dict | list):
            yield from places(node[key])


def damage(data, rng: random.Random) -> None:
    every = list(places(data))
    for _ in range(rng.choice([1, 1, 2, 5, 20])):
        node, key = rng.choice(every)
        try:
            value = node[key]
        except (IndexError, KeyError):
            continue  # an earlier change took it away
        if isinstance(value, int):
            node[key] = rng.choice([*NUMBERS, value + 512, value * 2, value - 1])
        elif isinstance(value, str):
            node[key] = rng.choice(WORDS)
        elif isinstance(value, list) and value:
            rng.choice([value.clear, lambda v=value: rng.shuffle(v), value.pop])()


@settings(max_examples=150, deadline=5000, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.integers(0, 2**32), st.sampled_from(["", "expandable_segments:True", "max_split_size_mb:20"])
)
def test_a_damaged_snapshot_is_replayed_or_refused(seed, conf):
    rng = random.Random(seed)
    data = copy.deepcopy(torch_snapshot([recorded(rng, conf)]))
    damage(data, rng)
    try:
        traces = traces_from_snapshot(data)
        for trace in traces:
            done = replay_recorded(trace)
            assert done.exact + len(done.doubts) == done.allocs == len(done.predicted)
            segment_map(trace, len(trace.events) // 2)
            fragmentation(trace, samples=5)
            replayed_trace(trace)
            replay(trace, ["expandable_segments:True"], gpu="300MiB", workers=1)
    except MemprofError:
        pass


def test_a_trace_that_is_wrong_throughout_is_counted_through_quickly():
    rng = random.Random(0)
    data = torch_snapshot([recorded(rng, "")])
    start = data["segments"][0]["address"]
    data["device_traces"][0] = [
        {"action": "alloc", "addr": start + rng.randrange(10**6), "size": 512, "stream": 0}
        for _ in range(30_000)
    ]
    (trace,) = traces_from_snapshot(data)
    done = replay_recorded(trace)

    assert done.wrong == 0
    assert done.undetermined > 29_000


@pytest.mark.parametrize("events", [0, 1, 2])
def test_traces_of_hardly_any_event_are_replayed(events):
    recording = Recorder()
    recording.alloc(5)
    recording.alloc(6)
    trace = recording.trace(len(recording) - events)

    assert replay_recorded(trace).allocs == min(events, 2)
    assert len(fragmentation(trace)) >= 1


def test_a_trace_without_segments_can_be_asked_but_predicts_nothing():
    trace = TraceBuilder("cpu").alloc(4096, "x").build()
    done = replay_recorded(trace)

    assert done.allocs == 1
    assert done.wrong == 0
