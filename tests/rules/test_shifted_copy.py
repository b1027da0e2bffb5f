"""shifted-copy: all of a data set is kept once more, some rows further on."""

from __future__ import annotations

from typing import NamedTuple

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


class Filled:
    """Written into an empty tensor."""

    def __init__(self, obs):
        self.obs = obs
        self.filled = torch.empty_like(obs)
        self.filled[:-1] = obs[1:]
        self.filled[-1] = obs[-1]

    @property
    def following(self):
        return self.filled


class FilledRowByRow:
    """Likewise, in a loop."""

    def __init__(self, obs):
        self.obs = obs
        self.next_rows = torch.zeros(ROWS, WIDTH)
        for at in range(ROWS - 1):
            self.next_rows[at] = obs[at + 1]
        self.next_rows[-1] = obs[-1]

    @property
    def following(self):
        return self.next_rows


class RolledByName:
    def __init__(self, obs):
        self.obs = obs
        self.following = torch.roll(obs, shifts=-1, dims=0)


class Cloned:
    def __init__(self, obs):
        self.obs = obs
        self.following = torch.clone(obs[1:])


class FilledElsewhere:
    """Another tensor's rows come first."""

    def __init__(self, obs):
        self.obs = obs
        self.others = torch.empty_like(obs)
        self.others[:-1] = torch.randn(ROWS - 1, WIDTH)
        self.others[-1] = obs[-1]

    @property
    def following(self):
        return self.others


class WrittenLater:
    """Its rows are others as soon as it is used."""

    def __init__(self, obs):
        self.obs = obs
        self.doubled = torch.empty_like(obs)
        self.doubled[:-1] = obs[1:]
        for at in range(0, ROWS, 64):
            self.doubled[at] = obs[at] * 2

    @property
    def following(self):
        return self.doubled


class Pairs(NamedTuple):
    obs: torch.Tensor
    following: torch.Tensor


def pairs_of(obs):
    """One line makes both, each a copy."""
    at = torch.arange(len(obs) - 1)
    return Pairs(obs[at], obs[at + 1])


def clones_of(obs):
    return Pairs(obs[:-1].clone(), obs[1:].clone())


def next_of(states):
    return torch.vstack((states[1:], states[-1].unsqueeze(0)))


class OfFunction:
    """A function of the program has the statement, and the class says whose rows they are."""

    def __init__(self, obs):
        self.obs = obs
        self.following = next_of(self.obs)


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


@pytest.mark.parametrize(
    ("kind", "source", "rows"),
    [
        (Filled, "obs", ROWS),
        (FilledRowByRow, "obs", ROWS),
        (RolledByName, "obs", ROWS),
        (Cloned, "obs", ROWS - 1),
        (pairs_of, "obs", ROWS - 1),
        (clones_of, "obs", ROWS - 1),
        (OfFunction, "self.obs", ROWS),
    ],
)
def test_the_copy_is_told_however_it_is_made(kind, source, rows, tmp_path):
    found = findings_of(lambda: training(kind(torch.randn(ROWS, WIDTH))), tmp_path / "run.json")[0]
    (only,) = found.remedies
    typed = f"{source}[index + 1]"
    assert (found.rule, only.fix, only.typed) == ("shifted-copy", "store_once", typed)
    assert found.bytes == only.saves_bytes == rows * WIDTH * 4


@pytest.mark.parametrize("kind", [FilledElsewhere, WrittenLater])
def test_what_has_other_rows_is_none(kind, tmp_path):
    rules = names(lambda: training(kind(torch.randn(ROWS, WIDTH))), tmp_path / "run.json")
    assert "shifted-copy" not in rules


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


def last_rows():
    """The last rows of each customer: the oldest goes when a new one comes."""
    rows = {number: torch.zeros(ROWS // 8, WIDTH) for number in range(16)}

    def step(number):
        item = torch.rand(WIDTH)
        row = rows[number % 8]
        rows[number % 8] = torch.cat([row[1:], item.unsqueeze(0)])
        return rows[number % 8].sum().item()

    return step


def test_a_copy_that_takes_the_place_of_what_it_is_of_is_none(tmp_path):
    found = findings_of(last_rows, tmp_path / "run.json", steps=40)
    assert "shifted-copy" not in [one.rule for one in found]
