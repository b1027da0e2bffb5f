"""idle-model: a model that is called no more stays beside the one that is trained."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import NamedTuple

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


class Engine:
    """A library's object that keeps what it prepares."""

    def __init__(self):
        self.models = []

    def prepare(self, model, data):
        self.models.append(model)
        return model, data


def deletes_one_that_is_kept():
    engine, encoder, x = Engine(), Encoder(), torch.randn(8, WIDTH)
    encoder, x = engine.prepare(encoder, x)
    hidden = encode([encoder], x)
    del encoder
    train(hidden)
    return engine


def test_who_was_handed_a_model_keeps_it_though_its_name_is_deleted(tmp_path):
    found = findings_of(once(deletes_one_that_is_kept), tmp_path / "run.json")
    (one,) = [finding for finding in found if finding.rule == "idle-model"]
    (first,) = one.remedies
    assert one.title.endswith("are a model that is called no more, once in `encoder`")
    assert (first.fix, first.typed) == ("del_ref", "")
    assert first.code == "encoder, x = engine.prepare(encoder, x)"
    assert "`engine.prepare` was handed it" in first.why
    assert first.saves_bytes >= 4 * WIDTH * WIDTH * 4


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


def keeps_one_set_to_evaluate():
    encoder = Encoder().requires_grad_(False).eval()
    hidden = encode([encoder], torch.randn(8, WIDTH))
    train(hidden)


def keeps_an_annotated_one():
    encoder: nn.Module = Encoder().to("cpu")
    hidden = encode([encoder], torch.randn(8, WIDTH))
    train(hidden)


def keeps_one_converted():
    """The statement that makes what is there binds nothing."""
    encoder = Encoder()
    encoder.double()
    hidden = encode([encoder], torch.randn(8, WIDTH).double())
    train(hidden.float())


def keeps_two_set_to_evaluate():
    first, second = Encoder().eval(), Decoder().eval()
    hidden = encode([first, second], torch.randn(8, WIDTH))
    train(hidden)


class Autoencoder(nn.Module):
    """Its parts are called by its methods, and it is not called itself."""

    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(2)))
        self.mean = nn.Linear(WIDTH, WIDTH)
        self.up = nn.Linear(WIDTH, WIDTH)

    def encode(self, x):
        return self.mean(self.down(x))

    def decode(self, x):
        return self.up(x)


@torch.no_grad()
def latents_of(autoencoder, x):
    return autoencoder.encode(x)


def keeps_one_that_encodes():
    autoencoder = Autoencoder().eval()
    hidden = latents_of(autoencoder, torch.randn(8, WIDTH))
    train(hidden)


class Trainer:
    def __init__(self, autoencoder):
        self.autoencoder = autoencoder

    def train(self, hidden):
        net = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(16)))
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(12):
            self.autoencoder.decode(net(hidden)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            memprof.step()


def decodes_in_training():
    autoencoder = Autoencoder().requires_grad_(False)
    trainer = Trainer(autoencoder)
    hidden = latents_of(autoencoder, torch.randn(8, WIDTH))
    trainer.train(hidden)


class Models(NamedTuple):
    encoder: nn.Module
    rate: float


@dataclass
class Parts:
    rate: float
    encoder: nn.Module


def train_with(models, hidden):
    assert models
    train(hidden)


def in_a_named_tuple():
    models = Models(encoder=Encoder().eval(), rate=0.1)
    train_with(models, encode([models.encoder], torch.randn(8, WIDTH)))


def in_a_data_class():
    models = Parts(0.1, Encoder())
    train_with(models, encode([models.encoder], torch.randn(8, WIDTH)))


class Distilling:
    def __init__(self, encoder):
        self.teacher = encoder

    def train(self):
        train(encode([self.teacher], torch.randn(8, WIDTH)))


def in_an_object():
    distilling = Distilling(Encoder().eval())
    distilling.train()


def in_a_namespace():
    models = SimpleNamespace(rate=0.1, encoder=Encoder())
    train_with(models, encode([models.encoder], torch.randn(8, WIDTH)))


def made_of_them():
    return {"encoder": Encoder().eval(), "rate": 0.1}


def in_a_dictionary():
    models = made_of_them()
    train_with(models, encode([models["encoder"]], torch.randn(8, WIDTH)))


def saves_them():
    models = {"encoder": Encoder(), "rate": 0.1}
    train_with(models, encode([models["encoder"]], torch.randn(8, WIDTH)))
    save(models)


def save(state_dict):
    return state_dict


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


PARTS = 4 * (WIDTH * WIDTH + WIDTH) * 4
"""Bytes of an autoencoder: its decoder goes with what was called of it."""


@pytest.mark.parametrize(
    ("job", "typed", "nbytes", "code"),
    [
        (keeps_one_set_to_evaluate, "del encoder", MODEL, "hidden = encode([encoder], "),
        (keeps_an_annotated_one, "del encoder", MODEL, "hidden = encode([encoder], "),
        (keeps_one_converted, "del encoder", 2 * MODEL, "hidden = encode([encoder], "),
        (keeps_two_set_to_evaluate, "del first, second", 2 * MODEL, "hidden = encode([first, "),
        (keeps_one_that_encodes, "del autoencoder", PARTS, "hidden = latents_of(autoencoder, "),
    ],
)
def test_what_returns_the_model_itself_or_calls_its_parts_is_no_other(
    job, typed, nbytes, code, tmp_path
):
    found = findings_of(once(job), tmp_path / "run.json")
    (found,) = [one for one in found if one.rule == "idle-model"]
    assert found.bytes == nbytes
    (remedy,) = found.remedies
    assert (remedy.fix, remedy.typed) == ("del_ref", typed)
    assert remedy.code.startswith(code)


def test_a_model_of_which_a_part_is_called_still_is_not_idle(tmp_path):
    assert "idle-model" not in names(once(decodes_in_training), tmp_path / "run.json")


@pytest.mark.parametrize(
    ("job", "where", "typed"),
    [
        (in_a_named_tuple, "models.encoder", "models = models._replace(encoder=None)"),
        (in_an_object, "self.teacher", "self.teacher = None"),
        (in_a_data_class, "models.encoder", "models.encoder = None"),
        (in_a_namespace, "models.encoder", "models.encoder = None"),
        (in_a_dictionary, "models['encoder']", "del models['encoder']"),
    ],
)
def test_a_field_or_an_entry_is_let_go_of_where_the_rest_is_needed(job, where, typed, tmp_path):
    found = findings_of(once(job), tmp_path / "run.json", is_over=True)
    (found,) = [one for one in found if one.rule == "idle-model"]
    assert found.bytes == MODEL
    assert found.title.endswith(f"are a model that is called no more, in `{where}`")
    assert (found.remedies[0].fix, found.remedies[0].typed) == ("del_ref", typed)


def test_an_entry_is_left_where_the_dictionary_is_saved(tmp_path):
    found = findings_of(once(saves_them), tmp_path / "run.json", is_over=True)
    assert "idle-model" not in [one.rule for one in found]


DISTILLER = """
import torch

class Distiller:
    def __init__(self, x, teacher):
        self.teacher = teacher
        with torch.no_grad():
            self.hidden = teacher(x)
"""


def made():
    return Encoder()


def hands_one_over():
    library = {}
    exec(compile(DISTILLER, "/x/site-packages/distilling/distiller.py", "exec"), library)
    distiller = library["Distiller"](torch.randn(8, WIDTH), teacher=made())
    train(distiller.hidden)
    return distiller


def test_who_is_handed_a_model_without_a_name_is_to_do_without(tmp_path):
    found = findings_of(once(hands_one_over), tmp_path / "run.json", is_over=True)
    (one,) = [finding for finding in found if finding.rule == "idle-model"]
    (first,) = one.remedies
    assert one.bytes == MODEL
    assert one.title.endswith("are a model that is called no more, in `teacher`")
    assert (first.fix, first.typed) == ("del_ref", "distiller.teacher = None")
    assert "teacher=made()" in first.code
