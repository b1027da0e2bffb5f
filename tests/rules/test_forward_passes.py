"""What a replay promises of passes arranged otherwise, against runs in which they are."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="the programs train with torch")

from memprof.loading import load
from memprof.rules.ranked_findings import findings
from memprof.views.examination import examine
from tests.programs import passes as programs


@pytest.fixture
def recorded(tmp_path):
    """The run of a program, and its highest moment after the first steps."""

    def recorded(kind, *, mended):
        path = tmp_path / f"{kind.__name__}{mended}.json"
        programs.record(path, kind, mended)
        run = load(path)
        device = examine(run).devices[0]
        return run, device.windows[0].peak.bytes

    return recorded


@pytest.mark.parametrize(
    ("kind", "fix"), [(programs.Deep, "checkpoint"), (programs.Summed, "early_backward")]
)
def test_the_promised_peak_is_that_of_a_run_with_the_change(kind, fix, recorded):
    run, before = recorded(kind, mended=False)
    _, after = recorded(kind, mended=True)
    offered = next(r for one in findings(run) for r in one.remedies if r.fix == fix)
    assert offered.peak_before == before
    assert offered.peak_after == pytest.approx(after, rel=0.02)
    assert offered.saves_bytes == offered.peak_before - offered.peak_after


def test_other_changes_of_the_same_activations_bear_no_figure_of_that_replay(recorded):
    run, _ = recorded(programs.Deep, mended=False)
    found = next(one for one in findings(run) if one.remedies[0].fix == "checkpoint")
    others = found.remedies[1:]
    assert {other.fix for other in others} == {"mixed_precision", "micro_batches"}
    assert {(o.saves_bytes, o.peak_before, o.peak_after) for o in others} == {(0, -1, -1)}


def test_passes_that_go_on_with_one_anothers_state_have_one_backward_pass(recorded):
    run, _ = recorded(programs.Unrolled, mended=False)
    found = {one.rule: one for one in findings(run)}
    assert "late-backward" not in found
    assert found["activations"].match.passes == 4
    assert found["activations"].remedies[0].fix == "checkpoint"
