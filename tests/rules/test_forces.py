"""unused-second-order: the peak lies within the pass that keeps the graph."""

from __future__ import annotations

import torch
from torch import nn

from memprof.loading import load
from memprof.views.examination import examine
from tests.rules.recorded import findings_of, record

ROWS, WIDTH = 2048, 64


def forces(create_graph):
    def program():
        layers = [nn.Linear(3, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH), nn.SiLU()]
        model = nn.Sequential(*layers, nn.Linear(WIDTH, 1)).requires_grad_(False)

        def step(number):
            x = torch.randn(ROWS, 3, requires_grad=True)
            energy = model(x).sum()
            if create_graph:
                (grad,) = torch.autograd.grad(energy, x, create_graph=True)
            else:
                (grad,) = torch.autograd.grad(energy, x)
            return grad.detach().sum().item()

        return step

    return program


def test_what_a_pass_without_the_graph_lets_go_of_on_its_way_is_saved(tmp_path):
    found, *_ = findings_of(forces(create_graph=True), tmp_path / "run.json")
    first, *_ = found.remedies
    assert (found.rule, found.minor) == ("unused-second-order", False)
    assert first.fix == "no_create_graph"
    record(forces(create_graph=False), tmp_path / "mended.json")
    (mended,) = examine(load(tmp_path / "mended.json")).devices
    saved = first.peak_before - mended.peak_allocated
    assert 0.8 * saved <= first.saves_bytes <= saved
