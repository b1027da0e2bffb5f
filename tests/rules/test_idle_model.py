"""idle-model: a model that is called no more stays beside the one that is trained."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import memprof
from tests.rules.recorded import findings_of, names

WIDTH = 256


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)))

    def forward(self, x):
        return self.layers(x)


class Decoder(Encoder):
    """Another model, of a name of its own."""


def models():
    return Encoder(), Decoder()


def train(hidden):
    net = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(16)))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(12):
        net(hidden).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        memprof.step()


@torch.no_grad()
def encode(encoders, x):
    return sum(encoder(x) for encoder in encoders)


def once(job):
    """The job as the first of the steps: it marks its own."""

    def program():
        return lambda number: job() if number == 0 else None

    return program


def keeps_them():
    first, second = models()
    encoders = [first, second]
    hidden = encode(encoders, torch.randn(8, WIDTH))
    del encoders
    train(hidden)


def keeps_one():
    encoder = Encoder()
    hidden = encode([encoder], torch.randn(8, WIDTH))
    train(hidden)


def reads_it_later():
    encoder = Encoder()
    hidden = encode([encoder], torch.randn(8, WIDTH))
    train(hidden)
    return encoder.state_dict()


def calls_it_in_between():
    encoder = Encoder()
    for _ in range(4):
        train(encode([encoder], torch.randn(8, WIDTH)))


def never_called():
    """A copy of weights, for an average say."""
    encoder, average = Encoder(), Decoder()
    hidden = encode([encoder], torch.randn(8, WIDTH))
    train(hidden)
    return encoder, average


def train_after(hidden):
    decoder = Decoder()
    hidden = encode([decoder], hidden)
    train(hidden)


def keeps_one_in_each_function():
    encoder = Encoder()
    hidden = encode([encoder], torch.randn(8, WIDTH))
    train_after(hidden)


def keeps_a_list():
    ensemble = [Encoder() for _ in range(2)]
    hidden = encode(ensemble, torch.randn(8, WIDTH))
    train(hidden)


def reads_the_list_later():
    ensemble = [Encoder() for _ in range(2)]
    hidden = encode(ensemble, torch.randn(8, WIDTH))
    train(hidden)
    return [one.state_dict() for one in ensemble]


fires = once(keeps_them)
looks_alike = once(reads_it_later)
MODEL = 4 * (WIDTH * WIDTH + WIDTH) * 4
"""Bytes."""


def test_models_that_are_called_no_more_are_to_be_let_go_of(tmp_path):
    (found,) = [
        one for one in findings_of(fires, tmp_path / "run.json") if one.rule == "idle-model"
    ]
    assert not found.minor
    assert found.bytes == 2 * MODEL
    assert found.title.endswith("are models that are called no more, in `first` and `second`")
    (remedy,) = found.remedies
    assert (remedy.fix, remedy.typed) == ("del_ref", "del first, second")
    assert remedy.code == "encoders = [first, second]"
    assert remedy.saves_bytes > 0


def test_a_single_one_has_its_variable(tmp_path):
    found = findings_of(once(keeps_one), tmp_path / "run.json")
    (found,) = [one for one in found if one.rule == "idle-model"]
    assert found.bytes == MODEL
    assert found.title.endswith("are a model that is called no more, in `encoder`")
    assert "`del encoder` after line" in found.remedies[0].why


@pytest.mark.parametrize(
    "job", [reads_it_later, reads_the_list_later, calls_it_in_between, never_called]
)
def test_what_is_read_or_called_again_or_was_never_called_is_not_meant(job, tmp_path):
    assert "idle-model" not in names(once(job), tmp_path / "run.json")


def test_variables_of_two_functions_are_dropped_in_each(tmp_path):
    found = findings_of(once(keeps_one_in_each_function), tmp_path / "run.json")
    typed = {one.remedies[0].typed for one in found if one.rule == "idle-model"}
    assert typed == {"del encoder", "del decoder"}


def test_a_list_of_models_is_one_variable(tmp_path):
    found = findings_of(once(keeps_a_list), tmp_path / "run.json")
    (found,) = [one for one in found if one.rule == "idle-model"]
    assert found.bytes == 2 * MODEL
    assert found.title.endswith("are models that are called no more, in `ensemble`")
    (remedy,) = found.remedies
    assert (remedy.fix, remedy.typed) == ("del_ref", "del ensemble")
    assert "`ensemble` keeps models of" in remedy.why
