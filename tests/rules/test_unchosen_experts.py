"""unchosen-experts: every expert computes every row, and a few of them are used for each."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.rules.recorded import findings_of, peak_of

EXPERTS, USED, WIDTH, ROWS = 8, 2, 32, 512


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(Expert() for _ in range(EXPERTS))
        self.gate = nn.Linear(WIDTH, EXPERTS)

    def choose(self, x):
        weight, chosen = self.gate(x).softmax(-1).topk(USED, dim=-1)
        return weight, chosen


class Gathering(Layer):
    def forward(self, x):
        weight, chosen = self.gate(x).softmax(-1).topk(USED, dim=-1)
        made = torch.stack([expert(x) for expert in self.experts], dim=1)
        picked = made.gather(1, chosen[..., None].expand(-1, -1, WIDTH))
        return (picked * weight[..., None]).sum(1)


class Weighing(Layer):
    """Those that are not chosen have a weight of zero."""

    def forward(self, x):
        weight, chosen = self.choose(x)
        gates = torch.zeros(len(x), EXPERTS)
        gates.scatter_(1, chosen, weight)
        mixed = 0
        for number, expert in enumerate(self.experts):
            made = expert(x)
            mixed = mixed + gates[:, number, None] * made
        return mixed


class Router(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS)

    def forward(self, x):
        scores = self.gate(x)
        weight, chosen = torch.topk(scores, USED)
        return weight.softmax(-1), chosen


class Routed(Layer):
    """A module chooses."""

    def __init__(self):
        super().__init__()
        self.router = Router()

    def forward(self, x):
        weight, chosen = self.router(x)
        made = [expert(x) for expert in self.experts]
        every = torch.stack(made, dim=1)
        picked = torch.take_along_dim(every, chosen[..., None], 1)
        return (picked * weight[..., None]).sum(1)


class Switch(Layer):
    def forward(self, x):
        scores = self.gate(x).softmax(-1)
        chosen = scores.argmax(-1)
        made = torch.stack([expert(x) for expert in self.experts])
        return made[chosen, torch.arange(len(x))]


class Adding(Layer):
    """Each result is multiplied and added as it comes."""

    def forward(self, x):
        weight, chosen = self.choose(x)
        mixed = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            share = (weight * (chosen == number)).sum(-1, keepdim=True)
            mixed += share * expert(x)
        return mixed


class Summing(Layer):
    """A generator goes through the results, each with its column of the gates."""

    def forward(self, x):
        weight, chosen = self.choose(x)
        gates = torch.zeros(len(x), EXPERTS).scatter(-1, chosen, weight)
        outputs = [expert(x) for expert in self.experts]
        return sum(gates[:, number, None] * made for number, made in enumerate(outputs))


class SummedInLoop(Layer):
    def forward(self, x):
        weight, chosen = self.choose(x)
        gates = torch.zeros(len(x), EXPERTS).scatter(-1, chosen, weight)
        outputs = [expert(x) for expert in self.experts]
        mixed = 0
        for gate, made in zip(gates.unbind(1), outputs, strict=True):
            mixed = mixed + gate[:, None] * made
        return mixed


class SumOfAll(Layer):
    """A generator goes through all results, and the choice is beside them."""

    def forward(self, x):
        weight, _chosen = self.choose(x)
        outputs = [expert(x) for expert in self.experts]
        return sum(made / (number + 1) for number, made in enumerate(outputs)) * weight[:, :1]


class Routing(Layer):
    """Each expert has the rows that chose it."""

    def forward(self, x):
        weight, chosen = self.choose(x)
        mixed = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            row, slot = (chosen == number).nonzero(as_tuple=True)
            rows = x[row]
            mixed = mixed.index_add(0, row, expert(rows) * weight[row, slot, None])
        return mixed


class Soft(Layer):
    """All are used; the choice is for a statistic."""

    def forward(self, x):
        scores = self.gate(x).softmax(-1)
        chosen = scores.topk(USED, dim=-1).indices
        self.load = torch.bincount(chosen.flatten(), minlength=EXPERTS)
        made = torch.stack([expert(x) for expert in self.experts], dim=1)
        return (made * scores[..., None]).sum(1)


class Ensemble(Layer):
    """Every result is returned, and the best of each row beside them."""

    def forward(self, x):
        weight, chosen = self.choose(x)
        made = torch.stack([expert(x) for expert in self.experts], dim=1)
        best = made[torch.arange(len(x)), chosen[:, 0]]
        return made.mean(1) + best * weight[:, :1]


def trained(layer):
    def program():
        model = layer()
        optimizer = torch.optim.SGD(model.parameters(), 0.01)

        def step(number):
            model(torch.randn(ROWS, WIDTH)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    return program


fires = trained(Gathering)
looks_alike = trained(Soft)


def unchosen(program, path):
    return [one for one in findings_of(program, path) if one.rule == "unchosen-experts"]


@pytest.mark.parametrize(
    ("layer", "used", "code"),
    [
        (Gathering, USED, "made = torch.stack([expert(x) for expert in self.experts], dim=1)"),
        (Weighing, USED, "made = expert(x)"),
        (Routed, USED, "made = [expert(x) for expert in self.experts]"),
        (Adding, USED, "mixed += share * expert(x)"),
        (Summing, USED, "outputs = [expert(x) for expert in self.experts]"),
        (SummedInLoop, USED, "outputs = [expert(x) for expert in self.experts]"),
        (Switch, 1, "made = torch.stack([expert(x) for expert in self.experts])"),
    ],
)
def test_what_is_computed_and_not_chosen_is_told(layer, used, code, tmp_path):
    (found,) = unchosen(trained(layer), tmp_path / "run.json")
    (first,) = found.remedies
    assert (first.fix, first.code, found.minor) == ("route_rows", code, False)
    assert (found.match.experts, found.match.used) == (EXPERTS, used)
    assert found.bytes >= EXPERTS * ROWS * 4 * WIDTH * 4  # what relu made in each
    assert first.saves_bytes == round(found.match.saving.bytes * (1 - used / EXPERTS))


@pytest.mark.parametrize("layer", [Routing, Soft, Ensemble, SumOfAll])
def test_experts_of_which_all_are_used_are_left_alone(layer, tmp_path):
    assert not unchosen(trained(layer), tmp_path / "run.json")


def test_what_routing_saves_is_what_is_promised(tmp_path):
    (found,) = unchosen(trained(Gathering), tmp_path / "run.json")
    routed = findings_of(trained(Routing), tmp_path / "routed.json")
    assert not [one for one in routed if one.rule == "unchosen-experts"]
    saved = peak_of(tmp_path / "run.json") - peak_of(tmp_path / "routed.json")
    assert found.remedies[0].saves_bytes == pytest.approx(saved, rel=0.15)
