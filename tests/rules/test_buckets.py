"""buckets: every gradient is there twice, in ``.grad`` and in the buckets of DDP's reducer."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.rules.recorded import findings_of


def layers():
    """A model, half of which is trained, in a job of one process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    layers = [nn.Linear(192, 192, bias=False) for _ in range(8)]
    for layer in layers[:4]:
        layer.requires_grad_(requires_grad=False)
    return nn.Sequential(*layers)


def training(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step(number):
        model(torch.randn(8, 192)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def fires():
    return training(DistributedDataParallel(layers()))


def looks_alike():
    """There are buckets as well, and they are the gradients."""
    return training(DistributedDataParallel(layers(), gradient_as_bucket_view=True))


def test_buckets_take_as_much_as_the_gradients_of_what_is_trained(tmp_path):
    (found,) = [one for one in findings_of(fires, tmp_path / "run.json") if one.rule == "buckets"]
    assert found.bytes == 4 * 192 * 192 * 4
    # As views they would be gone but for one; then the forward pass is the highest moment.
    assert 2 * 192 * 192 * 4 < found.match.saving.bytes < 3 * 192 * 192 * 4
    (only,) = found.remedies
    assert only.code == "return training(DistributedDataParallel(layers()))"
    assert "gradient_as_bucket_view=True" in only.patch
