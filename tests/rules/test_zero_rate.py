"""zero-rate: modules whose optimizer has a rate of 0 for them are trained for nothing."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from memprof.loading import load
from tests.rules.recorded import findings_of, names

WIDTH, BATCH = 256, 32


class Probe(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Linear(WIDTH, WIDTH, bias=False), nn.Tanh(), nn.Linear(WIDTH, WIDTH, bias=False)
        )
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x):
        return self.head(self.backbone(x))


def training(net, optimizer, after=lambda _: None):
    def step(number):
        net(torch.randn(BATCH, WIDTH)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        after(number)

    return step


def groups(net, rate):
    backbone = {"params": net.backbone.parameters(), "lr": rate, "weight_decay": 0.0}
    return [backbone, {"params": net.head.parameters(), "lr": 1e-3}]


def fires():
    net = Probe()
    return training(net, torch.optim.AdamW(groups(net, 0.0)))


def looks_alike():
    """A warm-up of the backbone, whose schedule is 0 for longer than the recording."""
    net = Probe()
    optimizer = torch.optim.AdamW(groups(net, 1e-4))
    schedule = LambdaLR(optimizer, [lambda step: max(0, step - 100) / 1000, lambda _: 1.0])
    return training(net, optimizer, lambda _: schedule.step())


def thawed():
    """Its rate is raised by hand."""
    net = Probe()
    optimizer = torch.optim.AdamW(groups(net, 0.0))

    def raise_rate(number):
        if number == 12:
            optimizer.param_groups[0]["lr"] = 1e-4

    return training(net, optimizer, raise_rate)


def of_another_optimizer():
    """A second optimizer steps what the first leaves alone."""
    net = Probe()
    first = torch.optim.SGD(groups(net, 0.0))
    second = torch.optim.AdamW(net.backbone.parameters(), 1e-4)
    return training(net, first, lambda _: second.step())


def blocks():
    """Two of four blocks have a rate of 0; the model has nothing around these two alone."""
    net = nn.Sequential(
        *(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(3)), nn.Linear(WIDTH, 4)
    )
    optimizer = torch.optim.AdamW(net[-1].parameters(), lr=1e-3)
    for block, factor in zip(net, (0, 0, 0.5), strict=False):
        optimizer.add_param_group({"params": block.parameters(), "lr": 1e-3 * factor})
    return training(net, optimizer)


def frozen():
    net = Probe()
    net.backbone.requires_grad_(False)
    return training(net, torch.optim.AdamW(net.head.parameters()))


def test_gradients_and_states_of_the_backbone_are_told_with_the_optimizer(tmp_path):
    path = tmp_path / "run.json"
    (found,) = [one for one in findings_of(fires, path) if one.rule == "zero-rate"]
    weights = 2 * WIDTH * WIDTH * 4
    assert found.bytes >= 3 * weights
    assert "`Probe.backbone`" in found.title
    assert found.remedies[0].fix == "freeze_params"
    assert load(path).unmoved == {"Probe.backbone.0", "Probe.backbone.2"}
    assert not found.minor


def test_only_modules_with_a_rate_of_0_are_named(tmp_path):
    (found,) = [
        one for one in findings_of(blocks, tmp_path / "run.json") if one.rule == "zero-rate"
    ]
    assert " of `Sequential.0` and `Sequential.1`, which every step multiplies" in found.title
    assert found.remedies[0].fix == "freeze_params"
    assert not found.minor


def test_no_more_is_promised_than_the_frozen_model_takes(tmp_path):
    """What an optimizer computes with for a moment has no module and is not counted."""
    (found,) = [one for one in findings_of(fires, tmp_path / "run.json") if one.rule == "zero-rate"]
    findings_of(frozen, tmp_path / "frozen.json")
    (device,) = load(tmp_path / "frozen.json").devices
    first = found.remedies[0]
    assert int(device.steps.peak_allocated.max()) <= first.peak_after
    assert first.peak_after <= first.peak_before - 3 * 2 * WIDTH * WIDTH * 4


def test_a_rate_that_another_step_or_optimizer_changes_is_no_such_rate(tmp_path):
    for program in (thawed, of_another_optimizer):
        assert "zero-rate" not in names(program, tmp_path / "run.json"), program
        assert load(tmp_path / "run.json").unmoved == frozenset(), program
