"""copied-frozen: an average of a model has copies of parameters that nothing trains."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from tests.rules.recorded import findings_of, names

WIDTH, LAYERS = 256, 4
FROZEN = LAYERS * WIDTH * WIDTH * 4


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        layers = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS))
        self.encoder = nn.Sequential(*layers).requires_grad_(False)
        self.head = nn.Linear(WIDTH, 8, bias=False)

    def forward(self, x):
        return self.head(self.encoder(x))


class OfAll:
    def __init__(self, model):
        self.shadow = {n: p.detach().clone() for n, p in model.named_parameters()}


class OfTrained:
    def __init__(self, model):
        self.shadow = {
            n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad
        }


def averaged(kind, *, frozen=True):
    def program():
        model = Model()
        model.encoder.requires_grad_(not frozen)
        average = kind(model)
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1)

        def step(number):
            optimizer.zero_grad()
            model(torch.randn(16, WIDTH)).square().mean().backward()
            optimizer.step()
            with torch.no_grad():
                parameters = dict(model.named_parameters())
                for name, one in average.shadow.items():
                    one.lerp_(parameters[name], 0.1)

        return step

    return program


fires = averaged(OfAll)
looks_alike = averaged(OfTrained)


def test_what_is_frozen_is_not_to_be_copied(tmp_path):
    (found, *_) = findings_of(fires, tmp_path / "run.json")
    (first,) = found.remedies
    assert (found.rule, found.minor, found.bytes) == ("copied-frozen", False, FROZEN)
    assert (first.fix, first.saves_bytes) == ("copy_trained", FROZEN)
    assert first.code.startswith("self.shadow = {n: p.detach().clone()")


def test_copies_of_what_is_trained_are_left_alone(tmp_path):
    assert "copied-frozen" not in names(looks_alike, tmp_path / "run.json")
    whole = averaged(OfAll, frozen=False)
    assert "copied-frozen" not in names(whole, tmp_path / "whole.json")


class OfModule:
    """What the library's average of a whole module has, by the names of the module."""

    def __init__(self, model):
        self.model = AveragedModel(model)

    @property
    def shadow(self):
        return dict(self.model.module.named_parameters())


def test_a_library_that_averages_a_whole_module_copies_its_frozen_part(tmp_path):
    (found,) = [
        one
        for one in findings_of(averaged(OfModule), tmp_path / "run.json")
        if one.rule == "copied-frozen"
    ]
    (remedy,) = found.remedies
    assert found.bytes == remedy.saves_bytes == FROZEN
    assert remedy.code == "self.model = AveragedModel(model)"


def test_where_all_is_trained_all_is_averaged(tmp_path):
    assert "copied-frozen" not in names(averaged(OfModule, frozen=False), tmp_path / "run.json")
