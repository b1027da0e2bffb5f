"""partly-read: the states of a simulation are stacked whole, and one row of each is read."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.rules.recorded import findings_of, names, peak_of

ROWS, WIDTH, TIMES = 64, 256, 24
ROW = 3


class Simulation(nn.Module):
    def __init__(self):
        super().__init__()
        self.speed = nn.Parameter(torch.ones(WIDTH))

    def states(self):
        state = torch.ones(ROWS, WIDTH)
        for _ in range(TIMES):
            state = state + self.speed
            yield state


class Stacking(Simulation):
    def forward(self):
        field = []
        for state in self.states():
            field.append(state)
        field = torch.stack(field)
        return field[:, ROW]


class Taking(Simulation):
    def forward(self):
        return torch.stack([state[ROW].clone() for state in self.states()])


class Whole(Simulation):
    """Rows are chosen among those of all states together."""

    def forward(self):
        field = torch.stack(list(self.states()))
        return field[field.sum((1, 2)) > 0]


def training(net):
    def step(number):
        net.zero_grad()
        net().square().mean().backward()

    return step


def test_a_part_is_taken_of_each_state(tmp_path):
    found = findings_of(lambda: training(Stacking()), tmp_path / "run.json")[0]
    (only,) = found.remedies
    assert (found.rule, only.fix) == ("partly-read", "narrow_first")
    assert "only `field[:, ROW]` is read" in found.title
    # the stack and its parts
    assert found.bytes == 2 * TIMES * ROWS * WIDTH * 4
    findings_of(lambda: training(Taking()), tmp_path / "taking.json")
    saved = peak_of(tmp_path / "run.json") - peak_of(tmp_path / "taking.json")
    assert only.saves_bytes == pytest.approx(saved, rel=0.1)


def test_what_is_chosen_of_all_together_is_read_whole(tmp_path):
    assert "partly-read" not in names(lambda: training(Whole()), tmp_path / "run.json")


def of_bytes():
    """All frames are converted, and a corner of each is read, by the same name."""
    video = torch.randint(0, 256, (TIMES, ROWS, WIDTH), dtype=torch.uint8)
    layer = nn.Linear(8, 1)

    def crop(frames):
        frames = frames.float() / 255
        return frames[:, :8, :8]

    def step(number):
        layer.zero_grad()
        layer(crop(video)).square().mean().backward()

    return step


def test_what_a_name_had_before_is_not_what_is_read_of_it(tmp_path):
    found = findings_of(of_bytes, tmp_path / "run.json")[0]
    assert found.rule == "partly-read"
    assert "only `frames[:, :8, :8]` is read" in found.title


def of_masks():
    """All masks are enlarged, and the best few are chosen by their scores."""
    layer = nn.Conv2d(1, 32, 1)

    def best(masks, scores):
        masks = nn.functional.interpolate(masks, size=(256, 256), mode="bilinear")[0].sigmoid()
        keep = scores.topk(4).indices
        masks = masks[keep]
        return masks > 0.5

    @torch.no_grad()
    def step(number):
        return best(layer(torch.rand(1, 1, 32, 32)), torch.rand(32)).sum().item()

    return step


def test_what_is_enlarged_before_a_few_are_chosen_is_told(tmp_path):
    found = findings_of(of_masks, tmp_path / "run.json")[0]
    assert found.rule == "partly-read"
    assert "only `masks[keep]` is read" in found.title
    # the enlarged masks, and their probabilities
    assert found.remedies[0].saves_bytes >= 32 * 256 * 256 * 4
