"""idle-optimizer: what a pipeline keeps of a stage that is over has its optimizer."""

from __future__ import annotations

import torch
from torch import nn

import memprof
from memprof.loading import load
from memprof.rules.ranked_findings import findings

SIZE, ROUNDS = 256, 12
MATRIX = SIZE * SIZE * 4 + SIZE * 4


class Wide(nn.Linear):
    pass


class Narrow(nn.Linear):
    pass


class Fitter:
    def __init__(self, network):
        self.network, self.losses = network, []
        self.optimizer = torch.optim.Adam(network.parameters())

    def fit(self, tracker):
        for _ in range(ROUNDS):
            value = self.network(torch.randn(8, SIZE)).square().mean()
            self.optimizer.zero_grad()
            value.backward()
            self.optimizer.step()
            self.losses.append(value.item())
            tracker.step()
        return self


class Pipeline:
    def __init__(self):
        self.stages = {}

    def run(self, name, network, tracker):
        fitter = Fitter(network).fit(tracker)
        self.stages[name] = fitter
        return fitter.losses[-1]

    def run_and_keep_losses(self, name, network, tracker):
        fitter = Fitter(network).fit(tracker)
        self.stages[name] = fitter.losses
        return fitter.losses[-1]


def both_stages(tracker):
    pipeline = Pipeline()
    pipeline.run("first", Wide(SIZE, SIZE), tracker)
    pipeline.run("second", Narrow(SIZE, SIZE), tracker)
    return [fitter.losses for fitter in pipeline.stages.values()]


def both_stages_with_losses(tracker):
    pipeline = Pipeline()
    pipeline.run_and_keep_losses("first", Wide(SIZE, SIZE), tracker)
    pipeline.run_and_keep_losses("second", Narrow(SIZE, SIZE), tracker)


def stages_again_and_again(tracker):
    """Each of three rounds goes on with what the round before has kept."""
    pipeline = Pipeline()
    networks = Wide(SIZE, SIZE), Narrow(SIZE, SIZE)
    for _ in range(2):
        pipeline.run("first", networks[0], tracker)
        pipeline.run("second", networks[1], tracker)


def idle(job, path):
    with memprof.track(path, sources=("cpu",), allowance_s=600) as tracker:
        job(tracker)
    return [one for one in findings(load(path)) if one.rule == "idle-optimizer"]


def test_the_statement_that_keeps_it_is_told(tmp_path):
    (one,) = idle(both_stages, tmp_path / "run.json")
    (first,) = one.remedies
    assert (one.minor, first.fix) == (False, "del_ref")
    assert first.code == "self.stages[name] = fitter"
    assert one.title.endswith("of a training that is over, by `self.stages[name]`")
    assert one.bytes >= 2 * MATRIX


def test_where_nothing_keeps_it_or_it_may_go_on_nothing_is_told(tmp_path):
    assert not idle(both_stages_with_losses, tmp_path / "losses.json")
    assert not idle(stages_again_and_again, tmp_path / "again.json")
