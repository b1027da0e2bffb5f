"""autocast-leaves: an autocast region that stays open keeps every leaf that it casts."""

from __future__ import annotations

import torch
from torch import nn

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
