"""A setting that a recording has already is offered nowhere as a change."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memprof.allocator import CachingAllocator, Recorder, parse_settings
from memprof.loading import load
from memprof.oom.layouts import layouts
from memprof.oom.post_mortem import post_mortems
from memprof.testing import TraceBuilder, save_snapshot, snapshot, write_run
from memprof.what_if.candidate_settings import SEARCHED, brings, untried
from memprof.what_if.changed_run import replay

MIB = 1 << 20
EXPANDABLE = "expandable_segments:True"


def recorded(conf="", **said):
    """A few allocations under a configuration, in a file that says so or says something else."""
    recording = Recorder(CachingAllocator(parse_settings(conf)))
    blocks = [recording.alloc(size * MIB) for size in (30, 24, 40)]
    recording.free(blocks[1])
    return replace(recording.trace(), settings={"PYTORCH_CUDA_ALLOC_CONF": conf, **said})


def scattered(**settings):
    """A final state with a small block in each of many segments."""
    builder = TraceBuilder(settings=settings)
    for number in range(8):
        builder.alloc(20 * MIB, f"large{number}").free(f"large{number}")
        builder.alloc(11 * MIB, f"kept{number}").alloc(9 * MIB, f"rest{number}")
    for number in range(8):
        builder.free(f"rest{number}")
    trace = builder.build()
    return replace(trace, events=trace.events.take(slice(0, 0)), start=None)


def test_without_settings_everything_is_worth_a_try():
    assert untried([recorded()]) == list(SEARCHED)


@pytest.mark.parametrize("conf", SEARCHED)
def test_what_was_recorded_is_not_tried(conf):
    assert conf not in untried([recorded(conf)])


@pytest.mark.parametrize(
    ("conf", "left_out"),
    [
        (EXPANDABLE + ",max_split_size_mb:100", [EXPANDABLE]),
        (EXPANDABLE + ",garbage_collection_threshold:0.8", [EXPANDABLE]),
        (EXPANDABLE + ",per_process_memory_fraction:0.5", [EXPANDABLE]),
        ("max_split_size_mb:128,roundup_power2_divisions:4",
         ["max_split_size_mb:128", "roundup_power2_divisions:4"]),
        ("max_split_size_mb:256,roundup_power2_divisions:8",
         ["max_split_size_mb:256", "roundup_power2_divisions:8",
          "max_split_size_mb:256,roundup_power2_divisions:8"]),
    ],
)  # fmt: skip
def test_what_only_takes_other_options_away_is_not_tried(conf, left_out):
    assert untried([recorded(conf)]) == [text for text in SEARCHED if text not in left_out]


def test_segments_tell_of_a_setting_that_the_file_is_silent_about():
    trace = replace(recorded(EXPANDABLE), settings={})
    assert EXPANDABLE not in untried([trace])


def test_a_setting_that_was_of_no_effect_is_not_offered_again():
    trace = recorded("", expandable_segments=True)
    assert not trace.end.segments.expandable.any()
    assert not brings(parse_settings(EXPANDABLE), [trace])


def test_of_several_windows_each_must_gain():
    assert EXPANDABLE not in untried([recorded(), recorded(EXPANDABLE)])


def test_a_search_leaves_out_what_is_there():
    (device,) = replay(recorded(EXPANDABLE + ",max_split_size_mb:100"), search=True)
    named = [row.configuration for row in device.rows]
    assert "default settings" in named
    assert EXPANDABLE not in named
    assert EXPANDABLE + ",roundup_power2_divisions:16" in named


def test_what_is_asked_for_by_name_is_answered_all_the_same():
    (device,) = replay(recorded(EXPANDABLE), EXPANDABLE)
    assert [row.configuration for row in device.rows] == ["recorded", EXPANDABLE]


def test_a_bare_state_is_not_told_to_switch_on_what_it_says_is_on(tmp_path):
    told = {text: [x.change for x in layouts(trace)] for text, trace in (
        ("off", scattered()),
        ("on", scattered(expandable_segments=True)),
        ("conf", scattered(PYTORCH_CUDA_ALLOC_CONF=EXPANDABLE)),
    )}  # fmt: skip
    assert "the same, with expandable_segments:True" in told["off"]
    assert told["on"] == told["conf"] == told["off"][:-1]
    trace = scattered(expandable_segments=True)
    (found,) = post_mortems(load(save_snapshot(tmp_path / "x.pickle", snapshot(trace))))
    assert found.layouts
    assert [x for x in found.layouts if "expandable" in x.change] == []


def test_a_failure_under_a_setting_is_not_told_to_set_it(tmp_path):
    def offered(**settings):
        builder = TraceBuilder(settings=settings).alloc(30 * MIB, "a").oom(20 * MIB, device_free=0)
        (found,) = post_mortems(load(write_run(tmp_path / "run.json", builder.build())))
        return [r.change for r in found.rescues.tried if r.kind == "settings"]

    name = f"PYTORCH_CUDA_ALLOC_CONF={EXPANDABLE}"
    assert name in offered()
    having = offered(PYTORCH_CUDA_ALLOC_CONF=EXPANDABLE, expandable_segments=True)
    assert having
    assert name not in having
