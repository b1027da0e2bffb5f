"""out-of-place: a large tensor is computed anew from itself, and nothing reads the old one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.rules.recorded import findings_of, names, peak_of

ROWS, WIDTH = 4096, 256
NBYTES = ROWS * WIDTH * 4


def training(data):
    layer = nn.Linear(WIDTH, 4)

    def step(number):
        layer.zero_grad()
        layer(data[:32]).square().mean().backward()

    return step


def normalized():
    data = torch.randn(ROWS, WIDTH)
    mean, std = data.mean(0), data.std(0)
    data = (data - mean) / std
    return training(data)


def of_its_own_extremes():
    data = torch.randn(ROWS, WIDTH)
    data = (data - data.amin(0)) / (data.amax(0) - data.amin(0))
    return training(data)


def in_place():
    data = torch.randn(ROWS, WIDTH)
    mean, std = data.mean(0), data.std(0)
    data.sub_(mean).div_(std)
    return training(data)


def kept():
    """The old values are read as well."""
    raw = data = torch.randn(ROWS, WIDTH)
    data = (data - 1) / 2
    step = training(data)
    return lambda number: (step(number), raw[number].sum().item())


def fires():
    return normalized()


def looks_alike():
    return kept()


@pytest.mark.parametrize(
    ("program", "typed"),
    [(normalized, "data.sub_(mean).div_(std)"), (of_its_own_extremes, "")],
)
def test_old_values_and_what_is_made_on_the_way_are_told(program, typed, tmp_path):
    found = findings_of(program, tmp_path / "run.json")[0]
    first = found.remedies[0]
    assert (found.rule, first.fix) == ("out-of-place", "in_place")
    assert found.title.endswith("are `data` and what is computed of it, to be `data` again")
    if typed:
        assert first.typed == typed
    assert ("First compute what else is read of `data`" in first.why) is not bool(typed)
    assert found.bytes == 3 * NBYTES


def test_the_saving_is_that_of_methods_in_place(tmp_path):
    found = findings_of(normalized, tmp_path / "run.json")[0]
    findings_of(in_place, tmp_path / "in_place.json")
    saved = peak_of(tmp_path / "run.json") - peak_of(tmp_path / "in_place.json")
    assert found.remedies[0].saves_bytes == pytest.approx(saved, rel=0.05)


def test_values_that_something_keeps_are_left_alone(tmp_path):
    assert "out-of-place" not in names(looks_alike, tmp_path / "run.json")
