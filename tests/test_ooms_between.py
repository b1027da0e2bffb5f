"""Running out of memory while no window is open: what the device held, and what it was."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch", reason="a recording needs torch")

import memprof
from memprof.analysis.examination import examine
from memprof.analysis.oom import Cause, post_mortems
from memprof.analysis.summary import summarize
from memprof.testing.cuda import TorchStandIn
from memprof.trace import Phase
from memprof_cli import main
from tests.exhausting import MIB, Training, fragmented, peaking, recorder

KIB = 1 << 10
A_FEW_WINDOWS = 2000
"""Events after which no window opens any more: twelve steps of `Training`."""


@pytest.fixture
def recorded(monkeypatch, tmp_path):
    return recorder(monkeypatch, tmp_path)


def test_between_windows_the_blocks_and_the_request_are_a_window_of_their_own(recorded):
    run = recorded(TorchStandIn(capacity=64 * MIB), fragmented, max_events=0)
    (finding,) = (f for f in run.findings if f.finding == "oom")
    assert "unread" not in finding.details
    assert finding.details["moment"] is True
    (window,) = run.devices[0].windows
    assert (len(window.events), window.end.allocated) == (1, 8 * MIB)
    (told,) = post_mortems(run)
    assert told.cause is Cause.FRAGMENTATION
    assert (told.failure.recorded, told.failure.requested) == ("event", 40 * MIB)
    assert "fragmented" in [frame.name for frame in told.failure.stack]
    # Laid out afresh the 8 MiB leave room, so it cannot be shown that settings would have.
    assert "settings were not judged" in told.rescues.unproven
    assert any(r.kind == "card" and r.fits for r in told.rescues.tried)


def test_between_windows_a_full_card_is_the_peak_and_what_helps_is_replayed(recorded):
    stand_in = TorchStandIn(capacity=100 * MIB, outside=4 << 30)
    (told,) = post_mortems(recorded(stand_in, peaking, max_events=0))
    assert told.cause is Cause.OTHERS
    assert [r.kind for r in told.rescues.fitting] == ["others", "card"]
    assert told.blocks[0].name == "10 blocks of 10 MiB"


def test_a_small_request_between_windows_is_not_taken_for_its_segment(recorded):
    def small(stand_in):
        while True:
            stand_in.alloc(512 << 10)

    (told,) = post_mortems(recorded(TorchStandIn(capacity=20 * MIB), small, max_events=0))
    assert told.failure.requested == MIB
    assert told.failure.allocated == 20 * MIB
    assert any(r.kind == "card" and r.peak_reserved == 22 * MIB for r in told.rescues.fitting)


def oom(*args: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["oom", *args])
    return int(ended.value.code or 0)


def keeping_a_log(stand_in, step):
    stand_in.alloc(2 * MIB + 512)


def something_new(stand_in, step):
    if step == 40:
        stand_in.alloc(60 * MIB)


def nothing(stand_in, step):
    pass


def of_name(groups, name):
    return {group.name.rpartition(" in ")[2]: group.bytes for group in groups}[name]


def test_a_recorded_step_that_came_to_the_same_line_tells_what_the_blocks_were(recorded):
    training = Training(something_new)
    (told,) = post_mortems(
        recorded(TorchStandIn(capacity=160 * MIB), training, max_events=A_FEW_WINDOWS)
    )
    failure, alike = told.failure, told.failure.alike
    assert told.cause is Cause.PEAK
    assert (failure.label.step, failure.label.phase) == (41, Phase.FORWARD)
    assert failure.label.module == "Sequential.4"
    assert told.asked_by.endswith("exhausting.py:72 in forward")
    assert (alike.window, alike.step < 41) == (0, True)
    assert of_name(told.sites, "forward") > 0
    assert told.inferred
    # 60 MiB were never seen before, and nothing is said of them.
    assert of_name(told.sites, "(no stack recorded)") == 60 * MIB


def test_what_a_line_went_on_leaving_after_the_last_window_is_put_down_to_it(recorded):
    run = recorded(
        TorchStandIn(capacity=160 * MIB), Training(keeping_a_log), max_events=A_FEW_WINDOWS
    )
    (told,) = post_mortems(run)
    steps = told.failure.label.step
    assert told.cause is Cause.LEAK
    assert of_name(told.sites, "keeping_a_log") == steps * (2 * MIB + 512)
    (free,) = (r for r in told.rescues.fitting if r.kind == "free")
    assert "keeping_a_log" in free.change


def test_checkpoints_and_smaller_batches_are_replayed_on_the_blocks_themselves(recorded):
    training = Training(something_new)
    run = recorded(TorchStandIn(capacity=160 * MIB), training, max_events=A_FEW_WINDOWS)
    (told,) = post_mortems(run)
    kinds = {rescue.kind: rescue for rescue in told.rescues.fitting}
    assert {"checkpoint", "batch", "bf16", "card"} <= kinds.keys()
    step = told.failure.alike.step
    for kind in ("checkpoint", "batch", "bf16"):
        assert f"each block was what it was in step {step}" in kinds[kind].assumes
        assert kinds[kind].limit == 160 * MIB
        assert kinds[kind].peak_reserved <= 160 * MIB
    assert kinds["card"].assumes == ""


def test_the_request_is_the_recorded_one_where_torch_tells_of_its_segment_alone(recorded):
    training = Training(something_new)
    run = recorded(TorchStandIn(capacity=160 * MIB), training, max_events=A_FEW_WINDOWS)
    (finding,) = (f for f in run.findings if f.finding == "oom")
    assert finding.bytes == 20 * MIB
    (told,) = post_mortems(run)
    assert told.failure.requested == 6 * MIB


def test_a_small_request_is_the_recorded_one_though_large_blocks_were_free(recorded):
    def training(stand_in):
        stand_in.free(stand_in.alloc(12 * MIB))
        stand_in.alloc(2 * MIB)  # keeps the segment, whose rest is of no use to small requests
        for step in range(200):
            kept = [stand_in.alloc(600 * KIB) for _ in range(12)]  # three in each segment
            memprof.step()
            for address in kept:
                stand_in.free(address)
            if step == 40:
                stand_in.alloc(700 * KIB)

    (told,) = post_mortems(recorded(TorchStandIn(capacity=20 * MIB), training, max_events=600))
    assert told.failure.alike is not None
    assert told.failure.requested == 600 * KIB
    assert told.failure.unused >= 10 * MIB


def test_a_job_that_no_window_saw_is_told_nothing_of(recorded):
    run = recorded(TorchStandIn(capacity=60 * MIB), Training(nothing), max_events=0)
    (told,) = post_mortems(run)
    assert told.failure.alike is None
    assert [group.name for group in told.sites] == ["(no stack recorded)"]
    assert {r.kind for r in told.rescues.fitting} == {"card"}


def another_line(stand_in, step):
    if step == 30:
        stand_in.alloc(1000 * MIB)


def test_a_line_that_no_window_saw_is_like_none(recorded):
    run = recorded(
        TorchStandIn(capacity=160 * MIB), Training(another_line), max_events=A_FEW_WINDOWS
    )
    (told,) = post_mortems(run)
    assert told.failure.alike is None
    assert told.asked_by.endswith("in another_line")
    assert told.failure.requested == 1000 * MIB


def test_the_screen_and_the_json_say_where_the_lines_come_from(recorded, tmp_path, capsys):
    training = Training(something_new)
    run = recorded(TorchStandIn(capacity=160 * MIB), training, max_events=A_FEW_WINDOWS)
    (told,) = post_mortems(run)
    alike = told.failure.alike
    path = str(tmp_path / "run.json")
    assert oom(path) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert f"lines and modules are those of step {alike.step}" in words
    assert f"(what it asked for in step {alike.step}: torch tells of the segment alone)" in words
    assert oom(path, "--json") == 0
    (device,) = json.loads(capsys.readouterr().out)["devices"]
    assert device["filled_by"]["told_by"]["step"] == alike.step
    assert device["filled_by"]["told_by"]["share"] == pytest.approx(alike.share, abs=1e-4)


def test_the_summary_tells_the_lines_as_well_and_that_they_are_inferred(recorded):
    training = Training(something_new)
    run = recorded(TorchStandIn(capacity=160 * MIB), training, max_events=A_FEW_WINDOWS)
    summary = summarize(examine(run))
    (device,) = summary.devices
    assert device.peak.inferred
    assert (device.peak.step, device.peak.module) == (41, "Sequential.4")
    assert of_name(device.peak.sites, "forward") > 0
    assert any("lines and modules are those of step" in text for text in summary.unseen)
    assert not any("140 MiB" in text for text in summary.unseen)  # no recording began then
