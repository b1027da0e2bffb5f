"""edge-messages: a layer that adds its messages up in several ways needs them."""

from __future__ import annotations

import torch

from tests.rules.recorded import names
from tests.rules.test_edge_messages import CHANNELS, EDGES, NODES, layers


def program():
    library = layers()
    layer, edges = library.SumConv(aggr=["sum", "std"]), torch.randint(NODES, (2, EDGES))

    @torch.no_grad()
    def step(number):
        return layer(torch.rand(NODES, CHANNELS), edges).sum().item()

    return step


def test_no_sparse_product_gives_several_of_them(tmp_path):
    assert "edge-messages" not in names(program, tmp_path / "run.json")
