"""kept-graph: a dict is made anew with more in it, and keeps the graphs of what that is."""

from __future__ import annotations

import torch
from torch import nn

from tests.rules.recorded import findings_of

SIZE = 64


class Trainer:
    def __init__(self):
        self.model = nn.Sequential(nn.Linear(SIZE, SIZE), nn.Tanh(), nn.Linear(SIZE, SIZE))
        self.metrics = {}

    def losses(self):
        self.model(torch.randn(SIZE, SIZE)).square().mean().backward()
        self.model.zero_grad()
        return {"size": self.model(torch.randn(SIZE, SIZE)).square().mean()}

    def note(self, number):
        losses = self.losses()
        self.metrics = {**self.metrics, **{f"{k}/{number}": v for k, v in losses.items()}}

    def note_numbers(self, number):
        losses = self.losses()
        self.metrics = {**self.metrics, **{f"{k}/{number}": v.item() for k, v in losses.items()}}


def of_tensors():
    return Trainer().note


def of_numbers():
    return Trainer().note_numbers


def test_what_is_merged_into_a_dict_is_to_be_cut_off_its_graph(tmp_path):
    found, *_ = findings_of(of_tensors, tmp_path / "run.json")
    first = found.remedies[0]
    assert found.rule == first.rule == "kept-graph"
    code = 'self.metrics = {**self.metrics, **{f"{k}/{number}": v for k, v in losses.items()}}'
    assert (first.fix, first.code) == ("detach", code)
    assert first.why.startswith("`self.metrics` keeps `v` with the graph that made it")
    # the batch and what tanh and square saved of theirs
    assert found.bytes_per_step >= 3 * SIZE * SIZE * 4


def test_numbers_that_are_merged_into_a_dict_keep_none(tmp_path):
    found = findings_of(of_numbers, tmp_path / "run.json")
    assert not any(one.bytes_per_step for one in found)
