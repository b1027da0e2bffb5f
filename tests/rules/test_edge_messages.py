"""edge-messages: a graph layer makes a message for each edge, where a sparse product would do."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path

import pytest
import torch

from tests.rules.recorded import findings_of

NODES, EDGES, CHANNELS = 64, 4096, 64
LAYERS = Path(__file__).with_name("site-packages") / "torch_geometric/nn/conv/layers.py"


def layers():
    """The library's layers, as if that were installed."""
    spec = importlib.util.spec_from_file_location("layers", LAYERS)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def stepping(layer, edges):
    @torch.no_grad()
    def step(number):
        x = torch.rand(NODES, CHANNELS)
        return layer(x, edges).sum().item()

    return step


def fires():
    return stepping(layers().SumConv(), torch.randint(NODES, (2, EDGES)))


def looks_alike():
    """This layer looks at both ends of each edge."""
    return stepping(layers().DifferenceConv(), torch.randint(NODES, (2, EDGES)))


def sparse():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that sparse matrices are in beta
        adjacency = torch.eye(NODES).to_sparse_csr()
    return stepping(layers().SumConv(), adjacency)


def messages(program, path):
    return [one for one in findings_of(program, path) if one.rule == "edge-messages"]


def test_the_layer_and_what_its_messages_take_are_named(tmp_path):
    (found,) = messages(fires, tmp_path / "r.json")
    (first,) = found.remedies
    assert found.bytes == EDGES * CHANNELS * 4
    assert found.title.endswith("are messages of `SumConv`, one for each edge")
    assert (first.fix, first.code) == ("sparse_adjacency", "return layer(x, edges).sum().item()")
    assert first.saves_bytes == found.bytes - 512  # the peak is then where all are summed up
    assert not found.minor


@pytest.mark.parametrize("program", [looks_alike, sparse])
def test_a_layer_that_needs_its_messages_or_makes_none_is_left_alone(program, tmp_path):
    assert not messages(program, tmp_path / "r.json")
