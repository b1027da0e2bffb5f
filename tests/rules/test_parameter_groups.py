"""parameter-groups: an optimizer is given parameters again and again, and keeps all of them."""

from __future__ import annotations

import torch
from torch import nn

from tests.rules.recorded import findings_of

WIDTH = 64


def fires():
    """A new head for every task."""
    optimizer = torch.optim.SGD(nn.Linear(WIDTH, WIDTH).parameters(), 0.1)

    def step(number):
        head = nn.Linear(WIDTH, WIDTH)
        optimizer.add_param_group({"params": head.parameters()})
        head(torch.randn(8, WIDTH)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def looks_alike():
    """Both layers are added once; what grows is a list of outputs."""
    layers = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    optimizer = torch.optim.SGD(layers[0].parameters(), 0.1, momentum=0.9)
    optimizer.add_param_group({"params": layers[1].parameters()})
    outputs = []

    def step(number):
        out = layers[1](layers[0](torch.randn(WIDTH, WIDTH)))
        out.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        outputs.append(out.detach())

    return step


def test_old_groups_are_to_be_taken_out(tmp_path):
    found, *_ = findings_of(fires, tmp_path / "run.json")
    first = found.remedies[0]
    assert found.rule == first.rule == "parameter-groups"
    assert found.bytes_per_step == (WIDTH * WIDTH + WIDTH) * 4
    assert first.fix == "del_ref"
    assert first.code == 'optimizer.add_param_group({"params": head.parameters()})'


def by_a_name():
    """A new head for every task, by a name that the method was given."""
    optimizer = torch.optim.SGD(nn.Linear(WIDTH, WIDTH).parameters(), 0.1)

    def step(number):
        head = nn.Linear(WIDTH, WIDTH)
        group = {"params": list(head.parameters()), "lr": 0.2}
        enlarge = optimizer.add_param_group
        enlarge(group)
        head(torch.randn(8, WIDTH)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def test_the_call_by_a_name_is_told(tmp_path):
    found, *_ = findings_of(by_a_name, tmp_path / "run.json")
    first = found.remedies[0]
    assert found.rule == first.rule == "parameter-groups"
    assert (first.fix, first.code) == ("del_ref", "enlarge(group)")


def by_adding():
    """New prompts for every document, which join the group that there is."""
    optimizer = torch.optim.SGD(nn.Linear(WIDTH, WIDTH).parameters(), 0.1)

    def step(number):
        prompts = [nn.Parameter(torch.randn(WIDTH, WIDTH))]
        for group in optimizer.param_groups:
            group["params"] += prompts
        prompts[0].sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def test_parameters_that_are_added_to_a_group_s_list_are_told(tmp_path):
    found, *_ = findings_of(by_adding, tmp_path / "run.json")
    first = found.remedies[0]
    assert found.rule == first.rule == "parameter-groups"
    assert found.bytes_per_step == WIDTH * WIDTH * 4
    assert (first.fix, first.code) == ("del_ref", 'group["params"] += prompts')
    assert "take old ones out of the group's `params`" in first.why


def enlarged():
    """Each step trains all layers that the model has had until then."""
    layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH)])
    optimizer = torch.optim.SGD(layers.parameters(), 0.1)

    def step(number):
        layers.append(nn.Linear(WIDTH, WIDTH))
        optimizer.add_param_group({"params": layers[-1].parameters()})
        out = torch.randn(8, WIDTH)
        for layer in layers:
            out = layer(out)
        out.sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def test_a_model_that_is_enlarged_is_no_headline(tmp_path):
    found = findings_of(enlarged, tmp_path / "run.json")
    assert {one.rule for one in found if not one.minor} == set()
    assert "parameter-groups" in {one.rule for one in found}
