"""replaced-parameters: an optimizer keeps the states of parameters that were replaced."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.rules.recorded import findings_of

WIDTH = 64


class Splats:
    def __init__(self):
        self.points = nn.Parameter(torch.rand(WIDTH, WIDTH))
        self.optimizer = torch.optim.Adam([{"params": [self.points]}])

    def step(self, number):
        self.points.square().sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        new = nn.Parameter(self.points.detach().clone())
        self.optimizer.param_groups[0]["params"][0] = new
        self.points = new


class Table(Splats):
    """The same with the whole list of the group put in anew, and momentum instead of Adam."""

    def __init__(self):
        self.points = nn.Parameter(torch.rand(WIDTH, WIDTH))
        self.trainer = torch.optim.SGD([self.points], 0.01, momentum=0.9)

    def step(self, number):
        self.points.square().sum().backward()
        self.trainer.step()
        self.points = nn.Parameter(self.points.detach().clone())
        for group in self.trainer.param_groups:
            group["params"] = [self.points]


class Updated(Splats):
    """The same with the group as a dict, updated."""

    def __init__(self):
        self.points = nn.Parameter(torch.rand(WIDTH, WIDTH))
        self.trainer = torch.optim.Adam([self.points], 0.01)

    def step(self, number):
        self.points.square().sum().backward()
        self.trainer.step()
        self.points = nn.Parameter(self.points.detach().clone())
        for group in self.trainer.param_groups:
            group.update(params=[self.points])


class Named(Splats):
    """The same with the group's list by a name of its own."""

    def step(self, number):
        self.points.square().sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        old, self.points = self.points, nn.Parameter(self.points.detach().clone())
        params = self.optimizer.param_groups[0]["params"]
        for at, one in enumerate(params):
            if one is old:
                params[at] = self.points


class Cleared(Splats):
    """The same with all groups taken out, and one put in anew."""

    def step(self, number):
        self.points.square().sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.points = nn.Parameter(self.points.detach().clone())
        self.optimizer.param_groups.clear()
        self.optimizer.add_param_group({"params": [self.points]})


class Swapped(Splats):
    """Its states go with the parameters; what grows is a list of old values."""

    def __init__(self):
        super().__init__()
        self.values = []

    def step(self, number):
        self.points.square().sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.values.append(self.points.detach().clone())
        new = nn.Parameter(self.points.detach().clone())
        self.optimizer.state.pop(self.points)
        self.optimizer.param_groups[0]["params"][0] = new
        self.points = new


def fires():
    return Splats().step


def fires_with_a_new_list():
    return Table().step


def fires_with_an_update():
    return Updated().step


def fires_by_a_name_of_the_list():
    return Named().step


def fires_with_all_groups_taken_out():
    return Cleared().step


def looks_alike():
    return Swapped().step


@pytest.mark.parametrize(
    ("program", "code", "cut"),
    [
        (fires, 'self.optimizer.param_groups[0]["params"][0] = new', "self.optimizer.state[old]"),
        (fires_with_a_new_list, 'group["params"] = [self.points]', "optimizer.state[old]"),
        (fires_with_an_update, "group.update(params=[self.points])", "optimizer.state[old]"),
        (fires_by_a_name_of_the_list, "params[at] = self.points", "self.optimizer.state[old]"),
        (
            fires_with_all_groups_taken_out,
            "self.optimizer.param_groups.clear()",
            "self.optimizer.state[old]",
        ),
    ],
)
def test_the_line_that_replaces_a_parameter_is_to_delete_its_state(program, code, cut, tmp_path):
    found = findings_of(program, tmp_path / "run.json", steps=24)[0]
    first = found.remedies[0]
    assert found.rule == first.rule == "replaced-parameters"
    assert (first.fix, first.code) == ("del_ref", code)
    assert f"`del {cut}`" in first.why
    assert found.bytes_per_step >= 2 * WIDTH * WIDTH * 4


class Moved(Splats):
    """The moments are taken over for the new parameter, and those of the old one stay."""

    def step(self, number):
        self.points.square().sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        new = nn.Parameter(self.points.detach().clone())
        for group in self.optimizer.param_groups:
            stored = self.optimizer.state.get(self.points)
            self.optimizer.state[new] = dict(stored)
            group["params"][0] = new
        self.points = new


def moves():
    return Moved().step


def test_the_line_that_takes_the_old_state_is_where_it_can_go(tmp_path):
    first = findings_of(moves, tmp_path / "run.json", 24)[0].remedies[0]
    assert (first.rule, first.fix) == ("replaced-parameters", "del_ref")
    assert first.code == "stored = self.optimizer.state.get(self.points)"
