"""create-graph: gradients hold the graph that made them, and that graph the parameters."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn

from tests.rules.recorded import findings_of, names

WIDTH = 64


def fires():
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))

    def step(number):
        x = torch.randn(64, 64, requires_grad=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says that it makes a cycle
            model(x).sum().backward(create_graph=True)
        x.grad.norm(2, 1).sub(1).square().mean().item()

    return step


def looks_alike():
    """The same penalty by `torch.autograd.grad`, beside predictions that pile up."""
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    kept = []

    def step(number):
        x = torch.randn(64, 64, requires_grad=True)
        out = model(x)
        (grad,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        grad.norm(2, 1).sub(1).square().mean().backward()
        model.zero_grad()
        kept.append(out)

    return step


def fires_on_a_copy():
    """Nobody has the copy any more: it goes round from a parameter to its gradient's graph."""
    model = nn.Linear(WIDTH, WIDTH)

    def measured():
        probe = copy.deepcopy(model)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            probe(torch.randn(4, WIDTH)).square().sum().backward(create_graph=True)
        return sum((one.grad * one).sum() for one in probe.parameters()).item()

    def step(number):
        model(torch.randn(4, WIDTH)).sum().backward()
        measured()

    return step


def fires_on_larger_copies():
    """Of which most bytes are the parameters: the gradients are no part of the first group."""
    model = nn.Sequential(nn.Embedding(WIDTH, WIDTH), nn.Linear(WIDTH, 1))
    model[0].weight.requires_grad_(False)

    def step(number):
        probe = copy.deepcopy(model)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            probe(torch.arange(2)).square().sum().backward(create_graph=True)

    return step


def copies_are_kept():
    """The gradients are taken by `torch.autograd.grad`; the copies pile up in a list."""
    model, copies = nn.Linear(WIDTH, WIDTH), []

    def step(number):
        probe = copy.deepcopy(model)
        loss = probe(torch.randn(4, WIDTH)).square().sum()
        grads = torch.autograd.grad(loss, tuple(probe.parameters()), create_graph=True)
        sum((one * one).sum() for one in grads).item()
        copies.append(probe)

    return step


def cleared_copies_are_kept():
    """The cycle is broken at once; beside the call the copies pile up in a list."""
    model, copies = nn.Linear(WIDTH, WIDTH), []

    def step(number):
        probe = copy.deepcopy(model)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            probe(torch.randn(4, WIDTH)).square().sum().backward(create_graph=True)
        probe.zero_grad()
        copies.append(probe)

    return step


def sharpness(model):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model(torch.arange(2)).square().sum().backward(create_graph=True)
    return sum(one.grad.sum() for one in model.parameters() if one.grad is not None).item()


def fires_on_models():
    """Each is made by the function that calls the one that has gradients made with their graph."""

    def step(number):
        model = nn.Sequential(nn.Embedding(WIDTH, WIDTH), nn.Linear(WIDTH, 1))
        model[0].weight.requires_grad_(False)
        return sharpness(model)

    return step


@pytest.mark.parametrize("program", [fires_on_a_copy, fires_on_larger_copies, fires_on_models])
def test_a_copy_that_nobody_has_is_kept_by_its_gradients(program, tmp_path):
    found = findings_of(program, tmp_path / "run.json")[0]
    first, second = found.remedies[:2]
    assert found.rule == first.rule == "create-graph"
    assert (first.fix, second.fix) == ("autograd_grad", "set_to_none")
    assert first.code.endswith("sum().backward(create_graph=True)")


@pytest.mark.parametrize("program", [copies_are_kept, cleared_copies_are_kept])
def test_copies_that_a_list_keeps_are_that_lists(program, tmp_path):
    assert "create-graph" not in names(program, tmp_path / "run.json")


def fires_beyond_the_optimizers_parameters():
    features, head = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()), nn.Linear(WIDTH, WIDTH)
    model = nn.Sequential(features, head)
    optimizer = torch.optim.SGD(head.parameters(), 0.01)

    def step(number):
        optimizer.zero_grad()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model(torch.randn(4, WIDTH)).square().sum().backward(create_graph=True)
        sum(one.grad.square().sum() for one in head.parameters()).backward()
        optimizer.step()

    return step


def test_what_is_typed_clears_parameters_that_the_optimizer_does_not_have(tmp_path):
    found = findings_of(fires_beyond_the_optimizers_parameters, tmp_path / "run.json")[0]
    first = found.remedies[0]
    assert (first.rule, first.fix, first.typed) == (
        "create-graph",
        "set_to_none",
        "model.zero_grad()",
    )


def fires_on_fitted_models():
    """Each has an optimizer with states while it is fitted; the last one is a variable still."""
    model, optimizer = None, None

    def step(number):
        nonlocal model, optimizer
        if number % 4 == 0:
            model = nn.Sequential(nn.Embedding(WIDTH, WIDTH), nn.Linear(WIDTH, 1))
            optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
        optimizer.zero_grad()
        model(torch.arange(2)).square().sum().backward()
        optimizer.step()
        if number % 4 == 3:
            sharpness(model)

    return step


def test_the_last_models_optimizer_does_not_hold_those_before_it(tmp_path):
    found = findings_of(fires_on_fitted_models, tmp_path / "run.json", 48)[0]
    assert (found.remedies[0].rule, found.remedies[0].fix) == ("create-graph", "autograd_grad")
    assert found.remedies[0].code.endswith("sum().backward(create_graph=True)")
