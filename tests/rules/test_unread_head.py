"""unread-head: a model's head computes scores, and only the states before it are read."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.rules.layered_models import ROWS, WIDTH, library, stack_of_layers
from tests.rules.recorded import findings_of, names, peak_of

WORDS = 2048


def headed():
    body = stack_of_layers()
    return library("headed", "layered/headed.py").Headed(WIDTH, WORDS, body).eval()


def fires():
    model = headed()

    @torch.no_grad()
    def step(number):
        states = model(torch.ones(ROWS, WIDTH), output_hidden_states=True).hidden_states[-1]
        return states.mean().item()

    return step


def looks_alike():
    """The head is what is computed for."""
    model = headed()

    @torch.no_grad()
    def step(number):
        first, *_ = vars(model(torch.ones(ROWS, WIDTH), output_hidden_states=True)).values()
        return first.argmax(-1).float().mean().item()

    return step


def by_name():
    model = headed()

    @torch.no_grad()
    def step(number):
        output = model(torch.ones(ROWS, WIDTH), output_hidden_states=True)
        return output.hidden_states[-1].mean().item()

    return step


def without_head():
    model = headed()

    @torch.no_grad()
    def step(number):
        return model.body(torch.ones(ROWS, WIDTH)).last.mean().item()

    return step


def test_the_model_is_to_be_called_without_its_head(tmp_path):
    found, *_ = findings_of(fires, tmp_path / "run.json")
    (first,) = found.remedies
    assert (found.rule, found.minor, found.bytes) == ("unread-head", False, ROWS * WORDS * 4)
    assert found.title.endswith("are made by the head `Headed.head`, of which nothing is read")
    assert first.code.startswith("states = model(torch.ones(ROWS, WIDTH), output_hidden_states=")
    findings_of(without_head, tmp_path / "body.json")
    saved = peak_of(tmp_path / "run.json") - peak_of(tmp_path / "body.json")
    # The states of the layers go as well, which the call asks for.
    assert saved / 1.5 < first.saves_bytes <= saved


def test_the_output_may_have_a_name(tmp_path):
    assert "unread-head" in names(by_name, tmp_path / "run.json")


def by_a_tuple():
    model = headed()

    @torch.no_grad()
    def step(number):
        _, states = model(torch.ones(ROWS, WIDTH), output_hidden_states=True, return_dict=False)
        return states[-1].mean().item()

    return step


def by_its_last_entry():
    model = headed()

    @torch.no_grad()
    def step(number):
        output = model(torch.ones(ROWS, WIDTH), output_hidden_states=True, return_dict=False)
        return output[-1][-1].mean().item()

    return step


def both_of_a_tuple():
    model = headed()

    @torch.no_grad()
    def step(number):
        first, states = model(torch.ones(ROWS, WIDTH), output_hidden_states=True, return_dict=False)
        return first.amax().item() + states[-1].mean().item()

    return step


class Encoder(nn.Module):
    """The program's own module around the library's model."""

    def __init__(self):
        super().__init__()
        self.model, self.out = headed(), nn.Linear(WIDTH, 4)

    def forward(self, x):
        states = self.model(x, output_hidden_states=True).hidden_states
        return self.out(states[-1])


def within_a_module():
    encoder = Encoder()

    @torch.no_grad()
    def step(number):
        return encoder(torch.ones(ROWS, WIDTH)).mean().item()

    return step


@pytest.mark.parametrize(
    ("program", "line", "head"),
    [
        (by_a_tuple, "_, states = model(torch.ones(ROWS, WIDTH)", "Headed.head"),
        (by_its_last_entry, "output = model(torch.ones(ROWS, WIDTH)", "Headed.head"),
        (within_a_module, "states = self.model(x, output_hid", "Encoder.model.head"),
    ],
)
def test_states_are_read_of_a_tuple_and_within_another_module(program, line, head, tmp_path):
    found, *_ = findings_of(program, tmp_path / "run.json")
    (first,) = found.remedies
    assert (found.rule, found.minor, found.bytes) == ("unread-head", False, ROWS * WORDS * 4)
    assert found.title.endswith(f"are made by the head `{head}`, of which nothing is read")
    assert first.code.startswith(line)


def test_scores_of_a_tuple_may_be_read(tmp_path):
    assert "unread-head" not in names(both_of_a_tuple, tmp_path / "run.json")
