"""frozen-twin: a frozen model stands beside the same frozen model with adapters."""

from __future__ import annotations

import copy

import torch
from torch import nn

from tests.rules.recorded import findings_of

WIDTH, HEIGHT = 512, 128


def made():
    return nn.Sequential(nn.Linear(WIDTH, HEIGHT), nn.Tanh(), nn.Linear(HEIGHT, WIDTH))


class PeftModel(nn.Module):
    """A frozen model with a small part beside it that is trained, as PEFT has them."""

    def __init__(self, base, *, frozen=True):
        super().__init__()
        self.base, self.adapter = base.requires_grad_(not frozen), nn.Linear(WIDTH, 2)

    def forward(self, x):
        return self.base(x) + self.adapter(x).sum(-1, keepdim=True)


def trained(policy, reference):
    trainable = [one for one in policy.parameters() if one.requires_grad]
    optimizer = torch.optim.SGD(trainable, 0.01)

    def step(number):
        x = torch.randn(8, WIDTH)
        with torch.no_grad():
            expected = reference(x)
        (policy(x) - expected).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def fires():
    base = made()
    reference = copy.deepcopy(base).eval().requires_grad_(False)
    return trained(PeftModel(base), reference)


def looks_alike():
    """The base is trained, too: the reference is what it was."""
    base = made()
    reference = copy.deepcopy(base).eval().requires_grad_(False)
    return trained(PeftModel(base, frozen=False), reference)


def loaded_twice():
    """The same call makes both."""
    base = made()
    reference = made()
    return trained(PeftModel(base), reference.requires_grad_(False))


def of_another():
    """A teacher of the same sizes, which another call makes."""
    base = made()
    teacher = nn.Sequential(nn.Linear(WIDTH, HEIGHT), nn.ReLU(), nn.Linear(HEIGHT, WIDTH))
    return trained(PeftModel(base), teacher.requires_grad_(False))


class Preferences:
    """The same function makes both, one of which is adapted at once."""

    def __init__(self):
        self.reference = made().eval()
        self.reference.requires_grad_(False)
        self.policy = PeftModel(made())


def made_within_other_calls():
    of_both = Preferences()
    return trained(of_both.policy, of_both.reference)


def made_of(activation):
    return nn.Sequential(nn.Linear(WIDTH, HEIGHT), activation(), nn.Linear(HEIGHT, WIDTH))


def made_for_other_arguments():
    """A teacher of the same sizes, with another activation."""
    teacher = made_of(nn.ReLU).eval().requires_grad_(False)
    policy = PeftModel(made_of(nn.Tanh))
    return trained(policy, teacher)


def test_the_copy_is_what_could_go(tmp_path):
    (found, *_) = findings_of(fires, tmp_path / "run.json")
    weights = (2 * WIDTH * HEIGHT + WIDTH + HEIGHT) * 4
    assert (found.rule, found.minor, found.bytes) == ("frozen-twin", False, weights)
    assert found.site.code == "reference = copy.deepcopy(base).eval().requires_grad_(False)"
    (remedy,) = found.remedies
    assert (remedy.fix, remedy.saves_bytes) == ("disable_adapter", weights)


def test_a_model_that_the_same_call_makes_is_the_same(tmp_path):
    rules = {one.rule for one in findings_of(loaded_twice, tmp_path / "run.json")}
    assert "frozen-twin" in rules


def test_a_model_of_the_same_sizes_may_be_another(tmp_path):
    rules = {one.rule for one in findings_of(of_another, tmp_path / "run.json")}
    assert "frozen-twin" not in rules


def test_the_call_that_makes_both_may_stand_within_others(tmp_path):
    found = findings_of(made_within_other_calls, tmp_path / "run.json")[0]
    assert (found.rule, found.remedies[0].fix) == ("frozen-twin", "disable_adapter")
    assert found.bytes == (2 * WIDTH * HEIGHT + WIDTH + HEIGHT) * 4
    assert found.remedies[0].code == "self.reference = made().eval()"


def test_a_call_with_other_arguments_makes_another(tmp_path):
    rules = {one.rule for one in findings_of(made_for_other_arguments, tmp_path / "run.json")}
    assert "frozen-twin" not in rules


class Tuning:
    """It copies the base that it is handed, whose maker is called elsewhere."""

    def __init__(self, base):
        self.reference = copy.deepcopy(base).requires_grad_(False)
        self.policy = PeftModel(base)


def copied_in_a_class():
    base = made()
    tuning = Tuning(base)
    return trained(tuning.policy, tuning.reference)


def test_the_line_that_copies_is_named(tmp_path):
    (found, *_) = findings_of(copied_in_a_class, tmp_path / "run.json")
    code = "self.reference = copy.deepcopy(base).requires_grad_(False)"
    assert (found.rule, found.remedies[0].code) == ("frozen-twin", code)
