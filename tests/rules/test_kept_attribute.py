"""kept-attribute: an attribute or a variable holds the tensors beyond their step."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from tests.rules.recorded import findings_of

WIDTH = 64


def fires():
    """Samples that stay get their features in the step that first needs them."""
    samples = [SimpleNamespace(features=None) for _ in range(64)]

    def step(number):
        sample = samples[number]
        sample.features = torch.zeros(WIDTH, WIDTH)

    return step


def looks_alike():
    """One sample gets new features in each step."""
    sample = SimpleNamespace(features=None)

    def step(number):
        sample.features = torch.zeros(WIDTH, WIDTH)

    return step


def test_the_attribute_is_to_be_let_go(tmp_path):
    (found,) = findings_of(fires, tmp_path / "run.json")
    first = found.remedies[0]
    assert found.rule == first.rule == "kept-attribute"
    assert found.bytes_per_step == WIDTH * WIDTH * 4
    assert first.fix == "del_ref"
    assert first.code == "samples = [SimpleNamespace(features=None) for _ in range(64)]"
