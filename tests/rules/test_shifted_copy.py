"""shifted-copy: all of a data set is kept once more, some rows further on."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.rules.recorded import findings_of, names

ROWS, WIDTH = 2048, 128
NBYTES = ROWS * WIDTH * 4


class Joined:
    def __init__(self, obs):
        self.obs = obs
        self.following = torch.cat([obs[1:], obs[-1:]])


class Rolled:
    def __init__(self, obs):
        self.obs = obs
        self.following = obs.roll(-1, 0)


class Copied:
    def __init__(self, obs):
        self.obs = obs
        self.following = obs[1:].clone()


class Entries:
    """Both are entries of a dictionary."""

    def __init__(self, obs):
        self.data = dict(obs=obs[:-1], following=obs[1:].clone())  # noqa: C408 - as many write
        self.obs, self.following = self.data["obs"], self.data["following"]


class Literal(Entries):
    def __init__(self, obs):
        self.data = {"obs": obs[:-1], "following": obs[1:].clone()}
        self.obs, self.following = self.data["obs"], self.data["following"]


class Halves:
    """One half of the rows to train on, and as many others to test: none is there twice."""

    def __init__(self, obs):
        self.obs = obs[: ROWS // 2].clone()
        self.following = obs[ROWS // 2 :].clone()


class Extended:
    """The rows of two tensors."""

    def __init__(self, obs):
        self.obs = obs
        self.following = torch.cat([obs[: ROWS // 2], torch.randn(ROWS // 2, WIDTH)])


def training(data):
    layer = nn.Linear(WIDTH, 4)

    def step(number):
        layer.zero_grad()
        at = torch.randint(len(data.following) - 1, (32,))
        (layer(data.obs[at]) - layer(data.following[at])).square().mean().backward()

    return step


def fires():
    return training(Joined(torch.randn(ROWS, WIDTH)))


def looks_alike():
    return training(Extended(torch.randn(ROWS, WIDTH)))


@pytest.mark.parametrize("kind", [Joined, Rolled, Copied, Entries, Literal])
def test_the_copy_is_told_with_what_it_is_a_copy_of(kind, tmp_path):
    found = findings_of(lambda: training(kind(torch.randn(ROWS, WIDTH))), tmp_path / "run.json")[0]
    (only,) = found.remedies
    assert (found.rule, only.fix, only.typed) == ("shifted-copy", "store_once", "obs[index + 1]")
    if issubclass(kind, Entries):
        assert only.why.startswith("`self.data['following']`, ")
    assert found.bytes == only.saves_bytes == NBYTES - (kind not in (Joined, Rolled)) * WIDTH * 4


def test_a_copy_beside_nothing_as_large_is_none(tmp_path):
    def program():
        data = Joined(torch.randn(ROWS, WIDTH))
        data.obs = data.following
        return training(data)

    assert "shifted-copy" not in names(program, tmp_path / "run.json")


class Left:
    """All rows but a few in the middle: a selection, as a fold of a cross validation is."""

    def __init__(self, obs):
        self.obs = obs
        self.following = torch.cat([obs[:100], obs[110:]])


def test_a_selection_is_no_shift(tmp_path):
    rules = names(lambda: training(Left(torch.randn(ROWS, WIDTH))), tmp_path / "run.json")
    assert "shifted-copy" not in rules


class Further:
    def __init__(self, obs):
        self.obs = obs
        self.following = torch.roll(obs, -3, 0)


def test_two_halves_are_no_copies_of_one_another(tmp_path):
    rules = names(lambda: training(Halves(torch.randn(ROWS, WIDTH))), tmp_path / "run.json")
    assert "shifted-copy" not in rules


def test_what_is_typed_has_the_rows_that_the_program_goes_further(tmp_path):
    found = findings_of(lambda: training(Further(torch.randn(ROWS, WIDTH))), tmp_path / "run.json")
    assert found[0].remedies[0].typed == "obs[index + 3]"


class Summed:
    """Begins with the rows further on, and adds up in place all that come later."""

    def __init__(self, obs):
        self.obs = obs
        self.to_come = torch.cat([obs[1:], obs[-1:]])
        for at in range(ROWS - 2, ROWS - 40, -1):
            self.to_come[at].add_(self.to_come[at + 1], alpha=0.5)

    @property
    def following(self):
        return self.to_come


def test_what_is_changed_in_place_has_other_values(tmp_path):
    rules = names(lambda: training(Summed(torch.randn(ROWS, WIDTH))), tmp_path / "run.json")
    assert "shifted-copy" not in rules
