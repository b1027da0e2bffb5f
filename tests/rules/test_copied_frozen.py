"""copied-frozen: an average of a model has copies of parameters that nothing trains."""

from __future__ import annotations

import copy

import pytest
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


class InALoop:
    def __init__(self, model):
        self.model, self.shadow = model, {}
        for name, parameter in self.model.named_parameters():
            self.shadow[name] = parameter.data.clone()


class InALoopOfTrained:
    def __init__(self, model):
        self.shadow = {}
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                self.shadow[name] = parameter.data.clone()


class Averages:
    def __init__(self, parameters):
        parameters = list(parameters)
        self.copies = [p.clone().detach() for p in parameters]


class OfGiven:
    """What copies is given the parameters, and does not ask a module for them."""

    def __init__(self, model):
        self.shadow = named(model, Averages(model.parameters()).copies)


class OfGivenTrained:
    def __init__(self, model):
        trained = [p for p in model.parameters() if p.requires_grad]
        first, again = Averages(trained), Averages(trained)
        self.shadow = named(model, first.copies)
        self.again = again


class OfState:
    def __init__(self, model):
        self.shadow = {k: v.detach().clone() for k, v in model.state_dict().items()}


class OfWholeState:
    def __init__(self, model):
        self.shadow = copy.deepcopy(model.state_dict())


def named(model, copies):
    names_of_all = [name for name, _ in model.named_parameters()]
    return dict(zip(names_of_all[-len(copies) :], copies, strict=True))


@pytest.mark.parametrize(
    ("kind", "code", "typed"),
    [
        (InALoop, "self.shadow[name] = parameter.data.clone()", "if p.requires_grad"),
        (
            OfGiven,
            "self.copies = [p.clone().detach() for p in parameters]",
            "if p.requires_grad",
        ),
        (
            OfState,
            "self.shadow = {k: v.detach().clone() for k, v in model.state_dict().items()}",
            "",
        ),
        (OfWholeState, "self.shadow = copy.deepcopy(model.state_dict())", ""),
    ],
)
def test_what_is_frozen_is_not_to_be_copied_however_it_is_written(kind, code, typed, tmp_path):
    found = findings_of(averaged(kind), tmp_path / "run.json")
    (found,) = [one for one in found if one.rule == "copied-frozen"]
    (remedy,) = found.remedies
    assert (found.minor, found.bytes, remedy.saves_bytes) == (False, FROZEN, FROZEN)
    assert (remedy.fix, remedy.code, remedy.typed) == ("copy_trained", code, typed)


@pytest.mark.parametrize("kind", [InALoopOfTrained, OfGivenTrained])
def test_what_is_asked_for_a_gradient_is_trained(kind, tmp_path):
    assert "copied-frozen" not in names(averaged(kind), tmp_path / "run.json")


@torch.no_grad()
def follow(target, online):
    for behind, ahead in zip(target.parameters(), online.parameters(), strict=True):
        behind.lerp_(ahead, 0.1)


def taught(*, copy_is_trained=False):
    """A teacher that is a copy of its student, and follows it."""

    def program():
        student = Model()
        teacher = copy.deepcopy(student)
        trained = teacher if copy_is_trained else student
        trained.encoder.requires_grad_(copy_is_trained)
        optimizer = torch.optim.SGD([p for p in trained.parameters() if p.requires_grad], 0.1)

        def step(number):
            x = torch.randn(16, WIDTH)
            with torch.no_grad():
                wanted = (student if copy_is_trained else teacher)(x)
            optimizer.zero_grad()
            (trained(x) - wanted).square().mean().backward()
            optimizer.step()
            follow(student if copy_is_trained else teacher, trained)

        return step

    return program


def test_a_copy_of_a_module_that_follows_it_shares_its_frozen_part(tmp_path):
    found = findings_of(taught(), tmp_path / "run.json")
    (found,) = [one for one in found if one.rule == "copied-frozen"]
    (remedy,) = found.remedies
    assert (found.minor, found.bytes, remedy.saves_bytes) == (False, FROZEN, FROZEN)
    assert remedy.code == "teacher = copy.deepcopy(student)"
    assert "share these with the model" in remedy.why


def test_a_copy_that_is_trained_itself_is_needed(tmp_path):
    assert "copied-frozen" not in names(taught(copy_is_trained=True), tmp_path / "run.json")


LIBRARY = """
import torch

class EMAModel:
    def __init__(self, parameters, decay=0.9):
        self.shadow_params = [p.clone().detach() for p in parameters]

    @torch.no_grad()
    def step(self, parameters):
        for one, p in zip(self.shadow_params, parameters):
            one.lerp_(p, 0.1)
"""


def averaged_by_a_library(of_all):
    library = {}
    exec(compile(LIBRARY, "/x/site-packages/diffusers/training_utils.py", "exec"), library)
    EMAModel = library["EMAModel"]

    def program():
        model = Model()
        every = list(model.parameters())
        trained = [p for p in model.parameters() if p.requires_grad]
        average = EMAModel(every) if of_all else EMAModel(trained)
        optimizer = torch.optim.SGD(trained, 0.1)

        def step(number):
            optimizer.zero_grad()
            model(torch.randn(16, WIDTH)).square().mean().backward()
            optimizer.step()
            average.step(every if of_all else trained)

        return step

    return program


def test_an_average_of_a_library_is_handed_what_is_trained(tmp_path):
    (found, *_) = findings_of(averaged_by_a_library(True), tmp_path / "run.json")
    assert (found.rule, found.minor, found.bytes) == ("copied-frozen", False, FROZEN)
    assert found.remedies[0].fix == "copy_trained"
    assert "EMAModel(every)" in found.remedies[0].code


def test_an_average_of_what_is_trained_is_left_alone(tmp_path):
    assert "copied-frozen" not in names(averaged_by_a_library(False), tmp_path / "run.json")
