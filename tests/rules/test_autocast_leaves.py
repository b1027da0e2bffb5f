"""autocast-leaves: an autocast region that stays open keeps every leaf that it casts."""

from __future__ import annotations

import torch
from torch import nn

import memprof
from memprof.rules.ranked_findings import findings
from tests.rules.recorded import findings_of

WIDTH = 128


class Attack:
    """Adversarial examples: each batch is a leaf that requires gradients."""

    def __init__(self, cache_enabled):
        self.model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 4))
        self.region = torch.autocast("cpu", torch.bfloat16, cache_enabled=cache_enabled)
        self.region.__enter__()

    def __del__(self):
        """Left when the job is gone, and not before: its end is what empties the cache."""
        self.region.__exit__(None, None, None)

    def step(self, number):
        x = torch.rand(64, WIDTH).requires_grad_(True)
        torch.autograd.grad(self.model(x).float().sum(), x)


def fires():
    return Attack(cache_enabled=True).step


def looks_alike():
    """The same without the cache."""
    return Attack(cache_enabled=False).step


def test_the_cache_is_to_be_turned_off(tmp_path):
    found = findings_of(fires, tmp_path / "run.json")[0]
    first = found.remedies[0]
    assert found.rule == first.rule == "autocast-leaves"
    assert found.bytes_per_step == 64 * WIDTH * (4 + 2)  # the leaf, and its copy in bfloat16
    assert first.fix == "disable_autocast_cache"
    assert first.code.startswith("self.region = torch.autocast(")


class Saliency(Attack):
    """Each leaf has its gradient, and the weights ask for none."""

    def step(self, number):
        self.model.requires_grad_(False)
        x = torch.rand(64, WIDTH).requires_grad_(True)
        self.model(x).float().sum().backward(inputs=[x])
        return x.grad.abs().mean()


def test_the_gradient_of_a_leaf_is_there_as_well(tmp_path):
    found = findings_of(lambda: Saliency(cache_enabled=True).step, tmp_path / "run.json")[0]
    assert (found.rule, found.remedies[0].fix) == ("autocast-leaves", "disable_autocast_cache")
    assert found.bytes_per_step == 64 * WIDTH * (4 + 4 + 2)


ROWS = 64


def tuned(model, example):
    """A leaf of its own for each example, changed in place as an optimizer does."""
    prompt = nn.Parameter(torch.randn(ROWS, WIDTH))
    optimizer = torch.optim.SGD([prompt], 0.1)
    for _ in range(2):
        loss = -(model(prompt).float().sum() + model(example).float().sum())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        memprof.step()
    return loss.item()


def tune_all(*, cache_enabled):
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 4)).requires_grad_(False)
    losses = []
    amp = torch.autocast("cpu", torch.bfloat16, cache_enabled=cache_enabled)
    with amp:
        for _ in range(40):
            losses.append(tuned(model, torch.randn(ROWS, WIDTH)))
    return losses


def leaks_of(path, *, cache_enabled):
    with memprof.track(path, sources=["cpu"], allowance_s=60):
        tune_all(cache_enabled=cache_enabled)
    return [one for one in findings(memprof.load(path)) if one.kind.value == "leak"]


def test_a_parameter_for_each_example_is_kept_as_well(tmp_path):
    """Whoever holds it: the line that a program calls the cache off at is that of the region."""
    found, *_ = leaks_of(tmp_path / "run.json", cache_enabled=True)
    first = found.remedies[0]
    assert (first.rule, first.fix) == ("autocast-leaves", "disable_autocast_cache")
    assert first.code.startswith('amp = torch.autocast("cpu", torch.bfloat16')
    assert leaks_of(tmp_path / "off.json", cache_enabled=False) == []
