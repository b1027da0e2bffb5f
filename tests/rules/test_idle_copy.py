"""idle-copy: a model that was only asked for its parameters stays, though nothing reads it."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import memprof
from tests.rules.recorded import findings_of

WIDTH, STEPS = 256, 12
MODEL = 2 * (WIDTH * WIDTH * 4 + WIDTH * 4)


class Average:
    """Averages copies of the parameters that it is given."""

    def __init__(self, parameters):
        self.shadow = [one.detach().clone() for one in parameters]

    def update(self, parameters):
        with torch.no_grad():
            for mean, one in zip(self.shadow, parameters, strict=True):
                mean.mul_(0.99).add_(one, alpha=0.01)


class InPlace(Average):
    """Averages in the tensors that it is given."""

    def __init__(self, parameters):
        self.shadow = [one.detach() for one in parameters]


def model():
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))


def train(net, average):
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    for _ in range(STEPS):
        net(torch.randn(32, WIDTH)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        average.update(net.parameters())
        memprof.step()


def nothing(number):
    """What is recorded has been done by then."""


def fires():
    net = model()
    averaged = copy.deepcopy(net)
    averaged.requires_grad_(False)
    average = Average(averaged.parameters())
    train(net, average)
    return nothing


def looks_alike():
    net = model()
    averaged = copy.deepcopy(net)
    average = InPlace(averaged.parameters())
    train(net, average)
    return nothing


def made_anew():
    """The same with a model of its own class, which is given the values."""
    net = model()
    averaged = model()
    averaged.load_state_dict(net.state_dict())
    average = Average(averaged.parameters())
    train(net, average)
    return nothing


def copied():
    """What was copied is not used itself."""
    base = model()
    net = copy.deepcopy(base)
    train(net, Average(net.parameters()))
    return nothing


def read_later():
    """It has the average in the end."""
    net = model()
    averaged = copy.deepcopy(net)
    average = Average(averaged.parameters())
    train(net, average)
    for one, mean in zip(averaged.parameters(), average.shadow, strict=True):
        one.data.copy_(mean)
    return nothing


def handed_on():
    """Whoever has it may read it."""
    net = model()
    averaged = copy.deepcopy(net)
    average = Average(averaged.parameters())
    average.model = averaged
    train(net, average)
    return nothing


def listed():
    """The list of its parameters is read in the end, and the variable is not."""
    net = model()
    averaged = copy.deepcopy(net)
    parameters = list(averaged.parameters())
    average = Average(averaged.parameters())
    train(net, average)
    return lambda number: parameters[0].sum()


def idle(program, path):
    found = findings_of(program, path)
    return [one for one in found if one.rule == "idle-copy"]


def test_a_copy_that_only_an_average_is_made_of_is_not_needed(tmp_path):
    (found,) = idle(fires, tmp_path / "run.json")
    assert (found.bytes, found.minor) == (MODEL, False)
    assert found.remedies[0].fix == "del_ref"
    assert found.remedies[0].code == "averaged = copy.deepcopy(net)"
    assert "hand on `net` itself" in found.remedies[0].why
    assert found.remedies[0].saves_bytes == MODEL


def test_a_model_that_was_made_for_it_is_to_go_after_its_last_line(tmp_path):
    (found,) = idle(made_anew, tmp_path / "run.json")
    assert found.remedies[0].code == "average = Average(averaged.parameters())"
    assert "make no copy" not in found.remedies[0].why


def test_what_a_model_is_copied_of_is_to_go_or_is_that_model(tmp_path):
    (found,) = idle(copied, tmp_path / "run.json")
    assert (found.bytes, found.minor) == (MODEL, False)
    assert found.remedies[0].code == "net = copy.deepcopy(base)"
    assert found.remedies[0].why.endswith(
        ": `del base` there, or make no copy, where `net` may be that model itself."
    )


@pytest.mark.parametrize("program", [looks_alike, read_later, handed_on, listed])
def test_what_may_be_read_stays(program, tmp_path):
    assert idle(program, tmp_path / "run.json") == []
