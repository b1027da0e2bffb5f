"""reduced-later, where all parameters of a model are joined for one number."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.rules.recorded import findings_of, peak_of

WIDTH = 256


def by_parameter(model):
    return sum(one.abs().sum() for one in model.parameters())


def by_all(model):
    every = torch.cat([one.view(-1) for one in model.parameters()])
    return torch.norm(every, 1)


def returned(model):
    every = torch.cat([one.reshape(-1) for one in model.parameters()])
    return every, every.abs().sum()


def penalized(penalty):
    def program():
        model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(8)))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

        def step(number):
            given = penalty(model)
            value = given[1] if isinstance(given, tuple) else given
            (model(torch.randn(16, WIDTH)).square().mean() + 1e-4 * value).backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    return program


def joined(penalty, path):
    return [one for one in findings_of(penalized(penalty), path) if one.rule == "reduced-later"]


def test_each_parameter_gives_its_part_of_the_sum(tmp_path):
    (found,) = joined(by_all, tmp_path / "run.json")
    (first,) = found.remedies
    assert "are all parameters joined, and what is made of that" in found.title
    assert first.fix == "running_total"
    assert first.code == "every = torch.cat([one.view(-1) for one in model.parameters()])"
    findings_of(penalized(by_parameter), tmp_path / "each.json")
    saved = peak_of(tmp_path / "run.json") - peak_of(tmp_path / "each.json")
    assert 0 < first.saves_bytes <= 1.1 * saved


@pytest.mark.parametrize("penalty", [returned, by_parameter])
def test_what_is_read_otherwise_may_be_needed(penalty, tmp_path):
    assert not joined(penalty, tmp_path / "run.json")


def norm_of_all(gradients):
    return torch.cat([one.flatten() for one in gradients]).norm()


def norm_of_norms(gradients):
    return torch.stack([one.norm() for one in gradients]).norm()


def joined_for_more(gradients):
    """As for a sum over several processes, which is of all of them in one tensor."""
    every = torch.cat([one.flatten() for one in gradients])
    halves = every.unflatten(0, (2, -1))
    return every.norm() + (halves[0] * halves[1]).sum()


def clipped(norm_of):
    def program():
        model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(8)))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

        def step(number):
            model(torch.randn(16, WIDTH)).square().mean().backward()
            norm = norm_of([one.grad for one in model.parameters()])
            for one in model.parameters():
                one.grad.div_(norm.clamp(min=1))
            optimizer.step()
            optimizer.zero_grad()

        return step

    return program


def test_each_gradient_gives_its_part_of_the_norm(tmp_path):
    found = findings_of(clipped(norm_of_all), tmp_path / "run.json")[0]
    first = found.remedies[0]
    assert (found.rule, found.minor) == ("reduced-later", False)
    assert found.bytes == 8 * (WIDTH * WIDTH + WIDTH) * 4
    assert (first.fix, "norm of these norms" in first.why) == ("running_total", True)
    assert first.code == "return torch.cat([one.flatten() for one in gradients]).norm()"
    findings_of(clipped(norm_of_norms), tmp_path / "each.json")
    saved = peak_of(tmp_path / "run.json") - peak_of(tmp_path / "each.json")
    assert first.saves_bytes == pytest.approx(saved, rel=0.05)


@pytest.mark.parametrize("norm_of", [norm_of_norms, joined_for_more])
def test_gradients_that_are_joined_for_more_are_left_alone(norm_of, tmp_path):
    found = findings_of(clipped(norm_of), tmp_path / "run.json")
    assert "reduced-later" not in {one.rule for one in found}
