"""repeated-parametrization: a weight is computed anew, and saved, at each use within a pass."""

from __future__ import annotations

import warnings

import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from tests.rules.recorded import findings_of, names, peak_of

WIDTH, LENGTH, BATCH = 128, 10, 4
WEIGHT = WIDTH * WIDTH * 4


class Cell(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.hidden = norm(nn.Linear(WIDTH, WIDTH, bias=False))

    def forward(self, x):
        for _ in range(LENGTH):
            x = torch.tanh(self.hidden(x))
        return x


def training(norm):
    model = Cell(norm)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step(_number):
        loss = model(torch.randn(BATCH, WIDTH)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def fires():
    return training(parametrizations.weight_norm)


def of_hooks():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # the older function says that it is old
        return training(nn.utils.weight_norm)


def looks_alike():
    """The same weights, computed once in each step."""
    model = Cell(parametrizations.weight_norm)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step(_number):
        with parametrize.cached():
            loss = model(torch.randn(BATCH, WIDTH)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def plain():
    return training(lambda layer: layer)


def test_one_of_each_weight_is_enough(tmp_path):
    found, *_ = findings_of(fires, tmp_path / "run.json")
    (remedy,) = found.remedies
    assert found.rule == "repeated-parametrization"
    # At the peak the backward pass has let go of the last; each has its norm beside it.
    assert found.bytes == (LENGTH - 2) * WEIGHT + (LENGTH - 1) * WIDTH * 4
    assert found.title.endswith(f"at each use, {LENGTH - 1} of one at once")
    assert remedy.fix == "cached_parametrization"
    assert remedy.code == "loss = model(torch.randn(BATCH, WIDTH)).pow(2).mean()"


def test_what_is_said_to_be_saved_is_what_a_cache_saves(tmp_path):
    found, *_ = findings_of(fires, tmp_path / "run.json")
    findings_of(looks_alike, tmp_path / "cached.json")
    saved = peak_of(tmp_path / "run.json") - peak_of(tmp_path / "cached.json")
    assert abs(found.remedies[0].saves_bytes - saved) <= WEIGHT


def test_hooks_are_to_be_made_parametrizations_first(tmp_path):
    (found,) = [
        one
        for one in findings_of(of_hooks, tmp_path / "run.json")
        if one.rule == "repeated-parametrization"
    ]
    assert "`torch.nn.utils.parametrizations`" in found.remedies[0].why


def test_a_weight_that_is_none_of_a_parametrization_is_saved_once(tmp_path):
    assert "repeated-parametrization" not in names(plain, tmp_path / "run.json")


def test_a_cache_changes_neither_results_nor_gradients():
    model = Cell(parametrizations.weight_norm)
    x = torch.randn(BATCH, WIDTH)
    plain = model(x).pow(2).mean()
    gradients = torch.autograd.grad(plain, [*model.parameters()])
    with parametrize.cached():
        cached = model(x).pow(2).mean()
    torch.testing.assert_close(cached, plain, rtol=0, atol=0)
    torch.testing.assert_close(torch.autograd.grad(cached, [*model.parameters()]), gradients)
