"""carried-state: a job that ended before it was searched for what holds its tensors."""

from __future__ import annotations

import os

import pytest

from memprof.loading import load
from memprof.rules.ranked_findings import findings
from memprof.testing import TraceBuilder, write_run
from memprof.trace import Frame, Phase

TRACK = """def track(rnn, clips):
    state = None
    for clip in clips:
        features, state = rnn(clip, state)
    return features
"""
RESULTS = TRACK.replace("features, state = rnn(clip, state)", "state = rnn(clip)")
UNGRADED = "@torch.no_grad()\n" + TRACK


def recorded(source, tensors, folder):
    """What grows where each of 40 turns makes so many tensors in a layer that stay to the end."""
    path = folder / "track.py"
    path.write_text(source)
    os.utime(path, (1, 1))  # before the recording, whose time is made up
    line = next(n for n, text in enumerate(source.splitlines(), 1) if "= rnn(" in text)
    inner = Frame("LSTM.forward", "/x/site-packages/torch/nn/modules/rnn.py", 1141)
    trace = TraceBuilder(device="cpu")
    for step in range(40):
        trace.label(step=step, phase=Phase.FORWARD, module="LSTM")
        for number in range(tensors):
            trace.alloc(1 << 18, f"{step}-{number}", stack=(inner, Frame("track", str(path), line)))
    (found, *_) = findings(load(write_run(folder / "run.json", trace.build())))
    assert found.bytes_per_step == tensors << 18
    return found


def test_what_passes_saved_hangs_on_the_state_that_they_hand_on(tmp_path):
    found = recorded(TRACK, 8, tmp_path)
    (first, *_) = found.remedies
    assert (found.rule, first.fix) == ("carried-state", "detach")
    assert first.code == "features, state = rnn(clip, state)"


@pytest.mark.parametrize(("source", "tensors"), [(TRACK, 2), (RESULTS, 8), (UNGRADED, 8)])
def test_results_and_what_is_not_handed_on_are_no_state(source, tensors, tmp_path):
    assert recorded(source, tensors, tmp_path).rule != "carried-state"
