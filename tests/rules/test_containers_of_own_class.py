"""Objects of a program's own classes that are lists or dicts, and fill themselves."""

from __future__ import annotations

import torch
from torch import nn

from tests.rules.recorded import findings_of

WIDTH = 64


class History(list):
    """Is called as a hook."""

    def __call__(self, module, inputs, output):
        self.extend(one.detach() for one in (output,))


class Recent(list):
    def __call__(self, module, inputs, output):
        self.append(output.detach())
        del self[:-4]


class Tables(dict):
    def __missing__(self, key):
        _user, size = key
        self[key] = torch.zeros(size, WIDTH)
        return self[key]


def watched(history):
    def program():
        layer, outputs = nn.Linear(WIDTH, WIDTH).requires_grad_(False), history()
        layer.register_forward_hook(outputs)

        def step(number):
            layer(torch.ones(WIDTH, WIDTH))
            return outputs[-1].mean().item()

        return step

    return program


def looked_up(users):
    def program():
        tables = Tables()
        return lambda number: tables[number % users, WIDTH].sum().item()

    return program


def test_a_list_that_extends_itself_is_emptied_there(tmp_path):
    found, *_ = findings_of(watched(History), tmp_path / "run.json", steps=40)
    first = found.remedies[0]
    assert (found.rule, first.fix) == ("growing-container", "clear_container")
    assert first.code == "self.extend(one.detach() for one in (output,))"
    assert first.why.startswith("`History` (")


def test_a_dict_that_makes_what_is_missing_is_a_cache(tmp_path):
    found, *_ = findings_of(looked_up(1000), tmp_path / "run.json", steps=40)
    first = found.remedies[0]
    assert (found.rule, first.fix) == ("unbounded-dict", "bound_cache")
    assert first.code == "self[key] = torch.zeros(size, WIDTH)"
    assert found.bytes_per_step == WIDTH * WIDTH * 4


def test_a_list_that_shortens_itself_and_a_dict_of_few_keys_do_not_grow(tmp_path):
    for at, program in enumerate((watched(Recent), looked_up(4))):
        found = findings_of(program, tmp_path / f"run{at}.json", steps=40)
        assert not any(one.bytes_per_step for one in found)
