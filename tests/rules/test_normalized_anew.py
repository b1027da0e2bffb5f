"""normalized-anew: a table that stays is normalized whole each time it is searched."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.rules.recorded import findings_of, names

ROWS, WIDTH = 4096, 64
NBYTES = ROWS * WIDTH * 4


class Index:
    def __init__(self):
        self.vectors = torch.rand(ROWS, WIDTH)
        self.normal = F.normalize(self.vectors, dim=-1)

    def search(self, query):
        table = F.normalize(self.vectors[:], dim=-1)
        return (table @ query).topk(3).indices.sum().item()

    def search_by_norm(self, query):
        near = (self.vectors / self.vectors.norm(dim=1, keepdim=True)) @ query
        return near.topk(3).indices.sum().item()

    def search_stored(self, query):
        return (self.normal @ query).topk(3).indices.sum().item()


def searched(method):
    def program():
        index = Index()
        return lambda number: getattr(index, method)(torch.rand(WIDTH))

    return program


def fires():
    """All rows for each query."""
    return searched("search")()


def looks_alike():
    """The rows were normalized when they were stored."""
    return searched("search_stored")()


def of_pictures():
    """Less their mean, by their deviation: torchvision's function of that name."""

    class Pictures:
        def __init__(self):
            self.values = torch.rand(ROWS, WIDTH)

        def batch(self):
            return normalize(self.values, 0.5, 0.2).sum().item()

    pictures = Pictures()
    return lambda number: pictures.batch()


def normalize(values, mean, deviation):
    return (values - mean) / deviation


def given():
    """What a function is given is computed for each call, beside a table as large that stays."""
    kept = torch.rand(ROWS, WIDTH)

    def near(a, query):
        return (F.normalize(a, dim=-1) @ query).topk(3).indices.sum().item()

    return lambda number: near(torch.rand(ROWS, WIDTH), kept[0])


def of_batch():
    """What is normalized has just been computed."""

    class Model:
        def run(self):
            features = torch.rand(ROWS, WIDTH)
            return F.normalize(features, dim=-1).sum().item()

    model, kept = Model(), torch.rand(ROWS, WIDTH)
    return lambda number: model.run() + kept[0, 0].item()


def learned():
    """Classes are compared with by their direction, and learned."""
    model = nn.Linear(WIDTH, ROWS, bias=False)
    kept = torch.rand(ROWS, WIDTH)
    optimizer = torch.optim.SGD(model.parameters())

    def step(number):
        near = torch.rand(2, WIDTH) @ F.normalize(model.weight, dim=-1).T
        (near.sum() + kept[0, 0]).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


@pytest.mark.parametrize("program", [fires, searched("search_by_norm")])
def test_a_table_is_to_be_normalized_once(program, tmp_path):
    found = findings_of(program, tmp_path / "run.json", steps=24)[0]
    first = found.remedies[0]
    assert (found.rule, first.fix, found.minor) == ("normalized-anew", "normalize_once", False)
    assert found.bytes == NBYTES
    assert first.peak_before - first.peak_after == pytest.approx(NBYTES, rel=0.02)
    assert "are `self.vectors`, normalized anew each time" in found.title


@pytest.mark.parametrize("program", [looks_alike, of_batch, of_pictures, given, learned])
def test_what_is_normalized_for_good_or_anew(program, tmp_path):
    assert "normalized-anew" not in names(program, tmp_path / "run.json")
