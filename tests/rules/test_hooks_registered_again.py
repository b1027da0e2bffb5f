"""hooked-outputs, where each call registers hooks, and none is removed: each keeps a copy."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.rules.recorded import findings_of

ROWS, WIDTH, CALLS = 128, 256, 12
RESULT = ROWS * WIDTH * 4


def model():
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True), nn.Linear(WIDTH, WIDTH))


def statistics(net, x, handles):
    """Means of what layers return, before what comes next writes into it."""
    maps = {}

    def keep(name):
        def hook(module, inputs, output):
            maps[name] = output.clone()

        return hook

    for name in ("0", "2"):
        handles.append(net.get_submodule(name).register_forward_hook(keep(name)))
    with torch.no_grad():
        net(x)
    return torch.stack([one.mean(1) for one in maps.values()])


def program(removes):
    def job():
        net, means = model(), []

        def step(number):
            if number:
                return
            for _ in range(CALLS):
                handles = []
                means.append(statistics(net, torch.randn(ROWS, WIDTH), handles))
                for one in handles if removes else ():
                    one.remove()

        return step

    return job


@pytest.mark.parametrize("removes", [False, True])
def test_hooks_that_become_more_are_to_be_removed(removes, tmp_path):
    found = findings_of(program(removes), tmp_path / "run.json")
    hooked = [one for one in found if one.rule == "hooked-outputs"]
    if removes:
        assert all(one.match.times == 1 for one in hooked)
        return
    (one,) = hooked
    assert (one.match.times, one.bytes) == (CALLS, 2 * CALLS * RESULT)
    first = one.remedies[0]
    assert (first.fix, first.code.strip()) == (
        "remove_hook",
        "handles.append(net.get_submodule(name).register_forward_hook(keep(name)))",
    )
    assert first.saves_bytes == pytest.approx(2 * (CALLS - 1) * RESULT, rel=0.1)
