"""frozen-by-attribute: a module has no `requires_grad`, and setting it freezes nothing."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from tests.rules.recorded import findings_of, names, peak_of

WIDTH, BATCH = 256, 32


def layers():
    return nn.Sequential(
        nn.Linear(WIDTH, WIDTH, bias=False), nn.Tanh(), nn.Linear(WIDTH, WIDTH, bias=False)
    )


class Probe(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = layers()
        self.backbone.requires_grad = False
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x):
        return self.head(self.backbone(x))


class Frozen(nn.Module):
    """Its parameters are frozen one by one, and a tensor that is no module's as well."""

    def __init__(self):
        super().__init__()
        self.base = layers()
        for parameter in self.base.parameters():
            parameter.requires_grad = False
        self.shift = torch.ones(WIDTH)
        self.shift.requires_grad = False
        self.top = nn.Linear(WIDTH, 4)

    def forward(self, x):
        return self.top(self.base(x + self.shift))


class ByLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = layers()
        for layer in self.stem.children():
            layer.requires_grad = False
        self.last = nn.Linear(WIDTH, 4)

    def forward(self, x):
        return self.last(self.stem(x))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = layers()

    def forward(self, x):
        return self.inner(x)


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(WIDTH, 4)

    def forward(self, x):
        return self.out(x)


def of_a_variable():
    encoder = Encoder()
    encoder.requires_grad = False
    head = Head()
    optimizer = torch.optim.AdamW([*encoder.parameters(), *head.parameters()])

    def step(number):
        head(encoder(torch.randn(BATCH, WIDTH))).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def training(net):
    optimizer = torch.optim.AdamW(one for one in net.parameters() if one.requires_grad)

    def step(number):
        net(torch.randn(BATCH, WIDTH)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def fires():
    return training(Probe())


def looks_alike():
    return training(Frozen())


def of_each_layer():
    return training(ByLayer())


def test_the_statement_is_named_and_the_method_put_in_its_place(tmp_path):
    found = next(
        one
        for one in findings_of(fires, tmp_path / "run.json")
        if one.rule == "frozen-by-attribute"
    )
    first = found.remedies[0]
    assert "`Probe.backbone`, which was to be frozen and is not" in found.title
    assert (first.fix, first.code) == ("freeze_params", "self.backbone.requires_grad = False")
    assert first.typed == "self.backbone.requires_grad_(False)"
    assert "+        self.backbone.requires_grad_(False)" in first.patch
    # gradients and the two states of AdamW of two matrices
    assert found.bytes >= 3 * 2 * WIDTH * WIDTH * 4


def test_what_a_loop_sets_of_each_layer_is_that_of_all(tmp_path):
    assert "frozen-by-attribute" in names(of_each_layer, tmp_path / "run.json")


def test_what_is_set_of_a_variable_is_that_of_its_class(tmp_path):
    found = findings_of(of_a_variable, tmp_path / "run.json")
    (one,) = [one for one in found if one.rule == "frozen-by-attribute"]
    assert one.remedies[0].code == "encoder.requires_grad = False"


def test_parameters_are_frozen_by_it(tmp_path):
    assert "frozen-by-attribute" not in names(looks_alike, tmp_path / "run.json")


class Meant(nn.Module):
    """`Probe` with the method that its author meant."""

    def __init__(self):
        super().__init__()
        self.body = layers()
        self.body.requires_grad_(False)
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x):
        return self.head(self.body(x))


def at_once(net):
    """All parameters are updated at once, with temporaries of the size of all that are trained."""
    optimizer = torch.optim.Adam(net.parameters(), foreach=True)

    def step(number):
        net(torch.randn(2, WIDTH)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def test_what_the_optimizer_computes_on_the_way_is_saved_as_well(tmp_path):
    found = findings_of(lambda: at_once(Probe()), tmp_path / "run.json")
    (one,) = [one for one in found if one.rule == "frozen-by-attribute"]
    findings_of(lambda: at_once(Meant()), tmp_path / "meant.json")
    saved = peak_of(tmp_path / "run.json") - peak_of(tmp_path / "meant.json")
    assert one.remedies[0].saves_bytes == pytest.approx(saved, rel=0.02)


def freeze(module):
    for child in module.modules():
        setattr(child, "requires_grad", False)  # noqa: B010
    return module.eval()


def freeze_each(module):
    for parameter in module.parameters():
        setattr(parameter, "requires_grad", False)  # noqa: B010
    return module.eval()


class ByFunction(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = freeze(layers())
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x):
        return self.head(self.trunk(x))


class ByParameter(nn.Module):
    """The same by a function that sets it of the parameters, which have it."""

    def __init__(self):
        super().__init__()
        self.stalk = freeze_each(layers())
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x):
        return self.head(self.stalk(x))


def test_what_a_function_sets_of_the_modules_it_is_given_is_that_of_the_attribute(tmp_path):
    found = findings_of(lambda: training(ByFunction()), tmp_path / "run.json")[0]
    first = found.remedies[0]
    assert "`ByFunction.trunk`, which was to be frozen and is not" in found.title
    assert (found.rule, first.fix) == ("frozen-by-attribute", "freeze_params")
    assert first.code.startswith('setattr(child, "requires_grad", False)')
    assert first.typed == "child.requires_grad_(False)"


def test_what_a_function_sets_of_parameters_freezes_them(tmp_path):
    found = names(lambda: training(ByParameter()), tmp_path / "run.json")
    assert "frozen-by-attribute" not in found


@dataclass
class Settings:
    frozen: tuple[str, ...] = ("stem_of_names",)


class Named(nn.Module):
    """The modules are frozen by names that settings have."""

    def __init__(self):
        super().__init__()
        self.stem_of_names, self.end = layers(), nn.Linear(WIDTH, 4)

    def forward(self, x):
        return self.end(self.stem_of_names(x))


def of_names():
    net, settings = Named(), Settings()
    for name in settings.frozen:
        part = getattr(net, name)
        part.requires_grad = False
    return training(net)


def test_modules_that_are_got_by_their_names_are_those_of_the_settings(tmp_path):
    found = findings_of(of_names, tmp_path / "run.json")[0]
    assert "`Named.stem_of_names`, which was to be frozen and is not" in found.title
    assert found.remedies[0].typed == "part.requires_grad_(False)"


class ByKey(nn.Module):
    """The modules are entries of a dict, and one is to be frozen by its key."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleDict({"body": layers(), "end": nn.Linear(WIDTH, 4)})
        self.parts["body"].requires_grad = False

    def forward(self, x):
        return self.parts["end"](self.parts["body"](x))


class ByChild(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last_one = layers(), nn.Linear(WIDTH, 4)

    def freeze_children(self, but):
        for name, part in self.named_children():
            if name in but:
                continue
            part.requires_grad = False
        return self

    def forward(self, x):
        return self.last_one(self.first(x))


class ByWeight(nn.Module):
    def __init__(self):
        super().__init__()
        self.lower, self.upper = layers(), nn.Linear(WIDTH, 4)

    def freeze_all_but(self, prefix):
        for name, weight in self.named_parameters():
            if not name.startswith(prefix):
                weight.requires_grads = False
        return self

    def forward(self, x):
        return self.upper(self.lower(x))


def freeze_named(model, chosen):
    for name, module in model.named_modules():
        if any(part in name for part in chosen):
            module.requires_grad = False


class ByModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.beneath, self.above = layers(), nn.Linear(WIDTH, 4)

    def forward(self, x):
        return self.above(self.beneath(x))


class ByNumber(nn.Module):
    def __init__(self):
        super().__init__()
        self.stack = nn.ModuleList([layers(), layers()])
        self.outermost = nn.Linear(WIDTH, 4)
        for number in range(2):
            self.stack[number].requires_grad = False

    def forward(self, x):
        for layer in self.stack:
            x = layer(x)
        return self.outermost(x)


class ByTuple(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows, self.columns = layers(), layers()
        self.both = nn.Linear(WIDTH, 4)
        for one in (self.rows, self.columns):
            one.requires_grad = False

    def forward(self, x):
        return self.both(self.columns(self.rows(x)))


class ByChain(nn.Module):
    def __init__(self):
        super().__init__()
        self.inmost, self.middle = nn.Linear(WIDTH, 8, bias=False), nn.Linear(8, WIDTH)
        self.deep = layers()
        self.inmost.requires_grad = self.deep.requires_grad = False
        self.outside = nn.Linear(WIDTH, 4)

    def forward(self, x):
        return self.outside(self.deep(self.middle(self.inmost(x))))


def of_a_number():
    return training(ByNumber())


def of_a_tuple():
    return training(ByTuple())


def of_a_chain():
    return training(ByChain())


def of_a_key():
    return training(ByKey())


def of_children():
    return training(ByChild().freeze_children({"last_one"}))


def of_parameters_by_name():
    return training(ByWeight().freeze_all_but("upper"))


def of_modules_by_name():
    model = ByModule()
    freeze_named(model, chosen=["beneath"])
    return training(model)


@pytest.mark.parametrize(
    ("program", "modules", "typed"),
    [
        (of_a_key, "`ByKey.parts.body`", "self.parts['body'].requires_grad_(False)"),
        (of_a_number, "`ByNumber.stack`", "self.stack[number].requires_grad_(False)"),
        (of_a_tuple, "`ByTuple.columns` and `ByTuple.rows`", "one.requires_grad_(False)"),
        (of_children, "`ByChild.first`", "part.requires_grad_(False)"),
        (of_parameters_by_name, "`ByWeight.lower`", "weight.requires_grad = False"),
        (of_modules_by_name, "`ByModule.beneath`", "module.requires_grad_(False)"),
    ],
)
def test_parts_are_chosen_by_their_names(program, modules, typed, tmp_path):
    found = findings_of(program, tmp_path / "run.json")[0]
    assert f"{modules}, which was to be frozen and is not" in found.title
    assert found.rule == "frozen-by-attribute"
    assert found.remedies[0].typed == typed


def test_a_patch_leaves_out_no_other_target_of_the_statement(tmp_path):
    first = findings_of(of_a_chain, tmp_path / "run.json")[0].remedies[0]
    assert first.typed == "self.deep.requires_grad_(False)"
    assert first.patch == ""


class Sized(nn.Module):
    def __init__(self):
        super().__init__()
        self.large, self.small = layers(), nn.Linear(WIDTH, 4)

    def forward(self, x):
        return self.small(self.large(x))


def freeze_small(model, most):
    for name, module in model.named_children():
        if name != "large" or sum(one.numel() for one in module.parameters()) < most:
            module.requires_grad = False


def of_an_unknown_condition():
    model = Sized()
    freeze_small(model, 5)
    return training(model)


def test_what_a_condition_lets_through_must_be_known(tmp_path):
    found = names(of_an_unknown_condition, tmp_path / "run.json")
    assert "frozen-by-attribute" not in found
