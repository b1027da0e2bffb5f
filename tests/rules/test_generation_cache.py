"""generation-cache: a module's cache of keys and values keeps those of earlier prompts."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.rules.recorded import findings_of

WIDTH, TOKENS = 64, 4


class Attention(nn.Module):
    """Attends to all tokens that came before, of this prompt and of every other."""

    def __init__(self):
        super().__init__()
        self.key = nn.Linear(WIDTH, WIDTH)
        self.keys = torch.zeros(0, WIDTH)

    def forward(self, x):
        self.keys = torch.cat([self.keys, self.key(x)])
        return (x @ self.keys.T).softmax(-1) @ self.keys


class ListAttention(nn.Module):
    """The same with a list of parts, by layer, joined for every token."""

    def __init__(self):
        super().__init__()
        self.key = nn.Linear(WIDTH, WIDTH)
        self.parts = {"self": []}

    def forward(self, x):
        self.parts["self"].append(self.key(x))
        keys = torch.cat(self.parts["self"])
        return (x @ keys.T).softmax(-1) @ keys


class DictAttention(nn.Module):
    """The same with a tensor in a dict, by layer."""

    def __init__(self):
        super().__init__()
        self.key = nn.Linear(WIDTH, WIDTH)
        self.cache = {"self": torch.zeros(0, WIDTH)}

    def forward(self, x):
        self.cache["self"] = torch.cat([self.cache["self"], self.key(x)])
        return (x @ self.cache["self"].T).softmax(-1) @ self.cache["self"]


class Predictions(nn.Module):
    """Collects what it is given, as a metric does, until somebody asks for the result."""

    def __init__(self):
        super().__init__()
        self.all = torch.zeros(0, WIDTH)

    def forward(self, x):
        self.all = torch.cat([self.all, x])

    def compute(self):
        return self.all.mean()


def fires(attention=Attention):
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), attention())

    @torch.no_grad()
    def step(number):
        for _ in range(TOKENS):
            model(torch.randn(1, WIDTH))

    return step


def looks_alike():
    """The predictions of a validation, which grow in the same way and are read once at its end."""
    model, metric = nn.Linear(WIDTH, WIDTH), Predictions()

    @torch.no_grad()
    def step(number):
        for _ in range(TOKENS):
            metric(model(torch.randn(1, WIDTH)))

    return step


def test_a_cache_grows_by_the_tokens_of_a_prompt(tmp_path):
    (found,) = findings_of(fires, tmp_path / "run.json")
    assert found.rule == "generation-cache"
    assert found.bytes_per_step == TOKENS * WIDTH * 4
    first = found.remedies[0]
    assert (first.fix, first.code) == (
        "clear_container",
        "self.keys = torch.cat([self.keys, self.key(x)])",
    )
    assert "`Sequential.1` adds to `self.keys`" in first.why


@pytest.mark.parametrize("attention", [ListAttention, DictAttention])
def test_a_cache_may_be_a_list_or_an_entry_of_a_dict(attention, tmp_path):
    found, *_ = findings_of(lambda: fires(attention), tmp_path / "run.json")
    assert found.rule == "generation-cache"
    assert found.remedies[0].fix == "clear_container"


class Streaming(nn.Module):
    """Sound in chunks: each is joined with all before it, by another name, and computed with."""

    def __init__(self):
        super().__init__()
        self.project, self.state = nn.Linear(WIDTH, WIDTH), {}

    def forward(self, chunk):
        past = self.state.get("past")
        joined = chunk if past is None else torch.cat((past, chunk))
        self.state["past"] = joined
        return self.project(joined)[-len(chunk) :]


def test_the_longer_one_may_have_another_name_before_it_is_stored(tmp_path):
    found, *_ = findings_of(lambda: fires(Streaming), tmp_path / "run.json")
    first = found.remedies[0]
    assert found.rule == "generation-cache"
    assert (first.fix, first.code) == (
        "clear_container",
        "joined = chunk if past is None else torch.cat((past, chunk))",
    )
    assert "adds to `self.state['past']` and computes with all of it" in first.why


class Collected(nn.Module):
    """The same way of collecting, and the call computes nothing with it."""

    def __init__(self):
        super().__init__()
        self.state = {}

    def forward(self, x):
        past = self.state.get("all")
        joined = x if past is None else torch.cat((past, x))
        self.state["all"] = joined
        return x


def test_what_is_stored_by_way_of_a_name_alone_is_no_cache(tmp_path):
    found = findings_of(lambda: fires(Collected), tmp_path / "run.json")
    assert "generation-cache" not in [remedy.rule for one in found for remedy in one.remedies]
