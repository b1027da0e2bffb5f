"""context-attribute: a custom Function stores its output as an attribute of `ctx`."""

from __future__ import annotations

import torch
from torch import nn

from tests.rules.recorded import findings_of

WIDTH = 64


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x * x * x
        ctx.y = y
        return y

    @staticmethod
    def backward(ctx, grad):
        return 3 * grad * ctx.y.abs().pow(2 / 3)


class Power(torch.autograd.Function):
    """Stores a number as an attribute, and its output as it should."""

    @staticmethod
    def forward(ctx, x):
        y = x * x * x
        ctx.exponent = 2 / 3
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return 3 * grad * y.abs().pow(ctx.exponent)


def fires():
    layer = nn.Linear(WIDTH, WIDTH)

    def step(number):
        Cube.apply(layer(torch.randn(WIDTH, WIDTH))).sum().item()

    return step


def looks_alike():
    layer, outputs = nn.Linear(WIDTH, WIDTH), []

    def step(number):
        outputs.append(Power.apply(layer(torch.randn(WIDTH, WIDTH))))

    return step


def test_it_is_to_be_saved_for_the_backward_pass(tmp_path):
    (found,) = findings_of(fires, tmp_path / "run.json")
    first = found.remedies[0]
    assert found.rule == first.rule == "context-attribute"
    assert (first.fix, first.code) == ("save_for_backward", "ctx.y = y")
    assert "+        ctx.save_for_backward(y)" in first.patch
    assert "+        return 3 * grad * ctx.saved_tensors[0].abs().pow(2 / 3)" in first.patch


def through_layers():
    layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def step(number):
        h = torch.randn(WIDTH, WIDTH)
        for layer in layers:
            h = Cube.apply(layer(h))
        h.sum().item()

    return step


def test_layers_that_hand_on_what_they_made_are_no_state_of_the_step_before(tmp_path):
    found, *_ = findings_of(through_layers, tmp_path / "run.json")
    assert found.remedies[0].fix == "save_for_backward"
    assert "detach" not in {one.fix for one in found.remedies}


class InDict(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x * x * x
        ctx.cache = {"y": y, "power": 2 / 3}
        return y

    @staticmethod
    def backward(ctx, grad):
        return 3 * grad * ctx.cache["y"].abs().pow(ctx.cache["power"])


class ByName(torch.autograd.Function):
    """What backward needs is set by its name, in a function for all of its kind."""

    @staticmethod
    def keep(ctx, **tensors):
        for name, tensor in tensors.items():
            setattr(ctx, name, tensor)


class Root(ByName):
    @staticmethod
    def forward(ctx, x):
        out = x.abs().sqrt()
        Root.keep(ctx, out=out)
        return out

    @staticmethod
    def backward(ctx, grad):
        return grad / (2 * ctx.out)


class Inherits(Cube):
    @staticmethod
    def forward(ctx, x):
        result = x * x * x
        ctx.y = result
        return result


def of_function(function):
    def program():
        layer = nn.Linear(WIDTH, WIDTH)

        def step(number):
            function.apply(layer(torch.randn(WIDTH, WIDTH))).sum().item()

        return step

    return program


def test_a_dict_is_nothing_that_a_patch_could_save(tmp_path):
    (found,) = findings_of(of_function(InDict), tmp_path / "run.json")
    first = found.remedies[0]
    assert (found.rule, first.fix) == ("context-attribute", "save_for_backward")
    assert (first.code, first.patch) == ('ctx.cache = {"y": y, "power": 2 / 3}', "")


def test_an_attribute_that_is_set_by_its_name_is_one(tmp_path):
    (found,) = findings_of(of_function(Root), tmp_path / "run.json")
    first = found.remedies[0]
    assert (found.rule, first.fix) == ("context-attribute", "save_for_backward")
    assert (first.code, first.patch) == ("setattr(ctx, name, tensor)", "")


def test_a_class_that_is_derived_from_a_function_is_one(tmp_path):
    (found,) = findings_of(of_function(Inherits), tmp_path / "run.json")
    first = found.remedies[0]
    assert (found.rule, first.fix) == ("context-attribute", "save_for_backward")
    assert first.code == "ctx.y = result"
