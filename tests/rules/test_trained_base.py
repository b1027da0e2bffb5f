"""trained-base: weights below adapters are trained as well, though PEFT freezes them."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.rules.recorded import findings_of, names

WIDTH, RANK, LAYERS = 384, 4, 3


class AdaptedLinear(nn.Module):
    """A frozen layer with a small one beside it, named as PEFT names them."""

    def __init__(self):
        super().__init__()
        self.base_layer = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.lora_A, self.lora_B = nn.Linear(WIDTH, RANK), nn.Linear(RANK, WIDTH)

    def forward(self, x):
        return self.base_layer(x) + self.lora_B(self.lora_A(x))


class PeftNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(AdaptedLinear() for _ in range(LAYERS))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).tanh()
        return x


def trained(model):
    optimizer = torch.optim.Adam([one for one in model.parameters() if one.requires_grad], 1e-3)

    def step(number):
        model(torch.randn(8, WIDTH)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def fires():
    model = PeftNet()
    model.requires_grad_(True)
    return trained(model)


def looks_alike():
    """Only the adapters are trained."""
    return trained(PeftNet())


class Stack(nn.Module):
    """Layers of that name without adapters beside them."""

    def __init__(self):
        super().__init__()
        self.base_layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.base_layer(x)


def without_adapters():
    return trained(nn.Sequential(Stack(), Stack()))


class Beside(nn.Module):
    """The same by hand, around a layer that it is given."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.down = nn.Parameter(torch.randn(RANK, WIDTH))
        self.up = nn.Parameter(torch.zeros(WIDTH, RANK))

    def forward(self, x):
        made = self.inner(x)
        return made + x @ self.down.T @ self.up.T


class ByFunction(nn.Module):
    """A function adds both."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.down = nn.Parameter(torch.randn(WIDTH, RANK))
        self.up = nn.Parameter(torch.zeros(RANK, WIDTH))

    def forward(self, x):
        made = self.inner(x)
        return torch.add(made, (x @ self.down) @ self.up)


class InPlace(ByFunction):
    def __init__(self, inner):
        super().__init__(inner)
        self.inner = inner
        nn.init.zeros_(self.up)

    def forward(self, x):
        made = self.inner(x)
        made += x @ self.down @ self.up
        return made


class Multiplied(nn.Module):
    """A scale for each value, which is no addition: the layer itself is trained."""

    def __init__(self, core):
        super().__init__()
        self.core = core
        self.down = nn.Parameter(torch.randn(WIDTH, RANK))
        self.up = nn.Parameter(torch.zeros(RANK, WIDTH))

    def forward(self, x):
        made = self.core(x)
        return torch.mul(made, 1 + (x @ self.down) @ self.up)


class Wide(nn.Module):
    """What is beside the layer is as large: a branch, and no adapter."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.beside = nn.Linear(WIDTH, WIDTH)
        nn.init.zeros_(self.beside.weight)

    def forward(self, x):
        return self.inner(x) + self.beside(x)


class Chosen(nn.Module):
    """Parts of a model for several domains, of which the caller chooses one each time."""

    def __init__(self, shared):
        super().__init__()
        self.shared = shared
        self.down = nn.ModuleList(nn.Linear(WIDTH, RANK, bias=False) for _ in range(2))
        self.up = nn.ModuleList(nn.Linear(RANK, WIDTH, bias=False) for _ in range(2))
        for one in self.up:
            nn.init.zeros_(one.weight)

    def forward(self, x, domain=0):
        return self.shared(x) + self.up[domain](self.down[domain](x))


class Itself(nn.Linear):
    """It is the layer, and adds something to what that computes."""

    def __init__(self, inner):
        super().__init__(inner.in_features, inner.out_features)
        self.load_state_dict(inner.state_dict())
        self.weight.requires_grad = inner.weight.requires_grad
        self.down = nn.Parameter(torch.randn(RANK, WIDTH))
        self.up = nn.Parameter(torch.zeros(WIDTH, RANK))

    def forward(self, x):
        return super().forward(x) + functional.linear(functional.linear(x, self.down), self.up)


class Shifted(nn.Linear):
    """It adds numbers, as a bias would."""

    def __init__(self, inner):
        super().__init__(inner.in_features, inner.out_features)
        self.shift = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x):
        return functional.linear(x, self.weight, self.bias) + self.shift


class Bottleneck(nn.Module):
    def __init__(self, rank):
        super().__init__()
        self.down, self.up = nn.Linear(WIDTH, rank), nn.Linear(rank, WIDTH)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return x + self.up(self.down(x).relu())


class After(nn.Module):
    """What the layer returns goes through a part that adds something to it."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.adapter = Bottleneck(RANK)

    def forward(self, x):
        made = self.inner(x)
        return self.adapter(made)


class WideAfter(nn.Module):
    """That part is as large as the layer."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.branch = Bottleneck(WIDTH)

    def forward(self, x):
        return self.branch(self.inner(x))


def by_hand(kind, freeze=False):
    def program():
        layers = [nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
        model = nn.Sequential(*(kind(one.requires_grad_(not freeze)) for one in layers))
        return trained(model)

    return program


@pytest.mark.parametrize("kind", [Beside, ByFunction, InPlace, After])
def test_adapters_by_hand_are_told_where_they_are_given_the_layer(kind, tmp_path):
    (found, *_) = findings_of(by_hand(kind), tmp_path / "run.json")
    base = LAYERS * (WIDTH * WIDTH + WIDTH) * 4
    assert (found.rule, found.minor) == ("trained-base", False)
    assert found.bytes == 3 * base + 2 * LAYERS * 512
    (remedy,) = found.remedies
    assert (remedy.fix, remedy.code) == ("freeze_params", "self.inner = inner")
    assert remedy.typed == "model.requires_grad_(False)"


def test_a_class_may_be_the_layer_that_it_adapts(tmp_path):
    (found, *_) = findings_of(by_hand(Itself), tmp_path / "run.json")
    weights = LAYERS * WIDTH * WIDTH * 4
    assert (found.rule, found.minor, found.bytes) == ("trained-base", False, 3 * weights)
    (remedy,) = found.remedies
    assert (remedy.fix, remedy.code) == (
        "freeze_params",
        "self.up = nn.Parameter(torch.zeros(WIDTH, RANK))",
    )
    assert remedy.typed == "self.weight.requires_grad_(False)"


_FROZEN = [by_hand(one, freeze=True) for one in (Beside, Itself, After)]
_OTHERS = [by_hand(one) for one in (Wide, Multiplied, Chosen, Shifted, WideAfter)]


@pytest.mark.parametrize("program", [*_FROZEN, *_OTHERS])
def test_branches_and_frozen_layers_are_left_alone(program, tmp_path):
    assert "trained-base" not in names(program, tmp_path / "run.json")


def test_gradients_and_states_of_the_base_are_what_could_go(tmp_path):
    (found, *_) = findings_of(fires, tmp_path / "run.json")
    base = LAYERS * (WIDTH * WIDTH + WIDTH) * 4
    counters = 2 * LAYERS * 512  # Adam's, one for each parameter, in blocks of their own
    assert (found.rule, found.minor) == ("trained-base", False)
    assert found.bytes == 3 * base + counters
    (remedy,) = found.remedies
    assert (remedy.fix, remedy.code) == ("freeze_params", "model.requires_grad_(True)")
    assert "`model.requires_grad_(True)` has unfrozen them" in remedy.why
    assert remedy.saves_bytes == found.bytes


def test_adapters_alone_are_trained_as_they_should_be(tmp_path):
    assert "trained-base" not in names(looks_alike, tmp_path / "run.json")
    assert "trained-base" not in names(without_adapters, tmp_path / "other.json")
