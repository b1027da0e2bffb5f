"""Rounds of federated averaging: in each, thirty models are made anew, trained and averaged."""

from __future__ import annotations

import copy

import torch
from torch import nn

CLIENTS, STEPS, ROUNDS = 30, 3, 24


def made() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(6), nn.Flatten(), nn.Linear(1152, 512), nn.ReLU(), nn.Linear(512, 10),
    )  # fmt: skip


def trained(model: nn.Module, generator: torch.Generator) -> dict[str, torch.Tensor]:
    model = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    for _ in range(STEPS):
        images = torch.randn(16, 1, 24, 24, generator=generator)
        labels = torch.randint(10, (16,), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    return model.state_dict()


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    model = made()
    for _ in range(ROUNDS):
        states = [trained(model, generator) for _ in range(CLIENTS)]
        mean = {key: torch.stack([one[key] for one in states]).mean(0) for key in states[0]}
        model.load_state_dict(mean)
    print(f"{sum(float(p.detach().sum()) for p in model.parameters()):.6f}")


main()
