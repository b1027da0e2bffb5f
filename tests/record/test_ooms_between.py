"""Running out of memory while no window is open: what the device held, and what it was."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch", reason="a recording needs torch")

from memprof.oom.post_mortem import OomCause, post_mortems
from memprof.report.summary import summarize
from memprof.sources.cuda.snapshot_source import CudaSource
from memprof.testing.cuda import TorchStandIn
from memprof.trace import Category
from memprof.views.examination import examine
from memprof_cli import main
from tests.exhausting import MIB, Training, fragmented, peaking, recorder

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
    assert told.cause is OomCause.FRAGMENTATION
    assert (told.failure.recorded, told.failure.requested) == ("event", 40 * MIB)
    assert "fragmented" in [frame.name for frame in told.failure.stack]
    # Laid out afresh the 8 MiB leave room, so it cannot be shown that settings would have.
    assert "settings were not judged" in told.rescues.unproven
    assert any(r.kind == "card" and r.fits for r in told.rescues.tried)


def test_between_windows_a_full_card_is_the_peak_and_what_helps_is_replayed(recorded):
    stand_in = TorchStandIn(capacity=100 * MIB, outside=4 << 30)
    (told,) = post_mortems(recorded(stand_in, peaking, max_events=0))
    assert told.cause is OomCause.OTHERS
    assert [r.kind for r in told.rescues.fitting] == ["others", "card"]
    assert told.blocks[0].name == "10 blocks of 10 MiB"


def test_what_blocks_were_in_the_last_window_is_said_of_them_still(recorded, monkeypatch):
    def with_owners(source, device, state):
        assert device == "cuda:0"
        kinds = np.full(len(state.blocks), Category.ACTIVATION, dtype=np.uint8)
        return replace(state, blocks=replace(state.blocks, category=kinds))

    monkeypatch.setattr(CudaSource, "with_owners", with_owners, raising=False)
    run = recorded(TorchStandIn(capacity=64 * MIB), fragmented, max_events=0)
    (told,) = post_mortems(run)
    assert [(group.name, group.bytes) for group in told.categories] == [("activation", 8 * MIB)]


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


def something_new(stand_in, step):
    if step == 40:
        stand_in.alloc(60 * MIB)


def lost(recorded):
    """A training job that runs out of memory twelve steps after its last window."""
    training = Training(something_new)
    return recorded(TorchStandIn(capacity=160 * MIB), training, max_events=A_FEW_WINDOWS)


def test_what_was_made_between_windows_has_no_line(recorded):
    (post_mortem,) = post_mortems(lost(recorded))
    failure = post_mortem.failure
    assert failure.between_windows
    assert post_mortem.cause is OomCause.PEAK
    assert failure.label.step == 41
    assert post_mortem.asked_by.endswith("exhausting.py:72 in forward")
    assert post_mortem.sites[0].name == "(no stack recorded)"
    assert {rescue.kind for rescue in post_mortem.rescues.fitting} == {"settings", "card"}


def test_in_a_window_lines_are_named(recorded):
    run = recorded(TorchStandIn(capacity=100 * MIB), peaking)
    (post_mortem,) = post_mortems(run)
    assert not post_mortem.failure.between_windows


def test_the_screen_and_the_json_say_that_no_stacks_were_recorded(recorded, tmp_path, capsys):
    lost(recorded)
    path = str(tmp_path / "run.json")
    assert oom(path) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "memory ran out between two windows, where no stacks are recorded" in words
    assert oom(path, "--json") == 0
    (device,) = json.loads(capsys.readouterr().out)["devices"]
    assert device["filled_by"]["between_windows"] is True


def test_the_summary_says_so_too(recorded):
    summary = summarize(examine(lost(recorded)))
    assert any("between two windows" in text for text in summary.unseen)
    assert not any("140 MiB" in text for text in summary.unseen)  # no recording began then
