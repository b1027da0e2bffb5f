"""padded-corpus: all sequences of a data set are padded to its longest before the first is used."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from tests.rules.recorded import findings_of

WIDTH, COUNT, SHORT = 16, 64, 128


def sequence(length):
    return torch.randn(1, WIDTH) + torch.ones(length, WIDTH).cumsum(0)


class Corpus:
    def __init__(self, longest):
        features = []
        for number in range(COUNT):
            features.append(sequence(longest if number == 7 else SHORT))
        self.lengths = [len(one) for one in features]
        self.features = pad_sequence(features, batch_first=True)


def training(longest):
    def program():
        state, net = {}, nn.Linear(WIDTH, 4)

        def step(number):
            if not state:
                state["corpus"] = Corpus(longest)
            corpus = state["corpus"]
            at = number % COUNT
            net(corpus.features[at, : corpus.lengths[at]]).square().mean().backward()
            net.zero_grad()

        return step

    return program


fires = training(16 * SHORT)
looks_alike = training(SHORT + 16)
"""The longest is hardly longer than the others."""


def test_what_the_sequences_take_is_told(tmp_path):
    found = findings_of(fires, tmp_path / "run.json")
    (one,) = [one for one in found if one.rule == "padded-corpus"]
    (first,) = one.remedies
    used = ((COUNT - 1) * SHORT + 16 * SHORT) * WIDTH * 4
    assert not one.minor
    assert (one.match.count, one.match.used) == (COUNT, used)
    assert one.bytes == COUNT * 16 * SHORT * WIDTH * 4
    assert first.code == "self.features = pad_sequence(features, batch_first=True)"
    assert abs(first.saves_bytes - (one.bytes - used)) <= 0.1 * one.bytes
