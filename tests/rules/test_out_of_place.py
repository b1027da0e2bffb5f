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


def by_methods():
    """An entry of what a function loads, scaled by a chain of methods."""
    batch = {"image": torch.rand(ROWS, WIDTH)}
    low, high = batch["image"].aminmax()
    batch["image"] = batch["image"].sub(low).div(high - low).clamp(min=0.1)
    return training(batch["image"])


def by_methods_of_its_own_extremes():
    data = torch.rand(ROWS, WIDTH)
    data = data.sub(data.amin()).div(data.amax())
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


def kept_beside():
    """What is computed has a name of its own, and the old values are the targets."""
    batch = {"image": torch.rand(ROWS, WIDTH)}
    batch["clean"] = batch["image"]
    batch["image"] = batch["image"].mul(2).sub(1)
    step = training(batch["image"])
    return lambda number: (step(number), batch["clean"][number].sum().item())


def fires():
    return normalized()


def looks_alike():
    return kept()


@pytest.mark.parametrize(
    ("program", "name", "typed"),
    [
        (normalized, "data", "data.sub_(mean).div_(std)"),
        (of_its_own_extremes, "data", ""),
        (
            by_methods,
            "batch['image']",
            "batch['image'].sub_(low).div_(high - low).clamp_(min=0.1)",
        ),
        (by_methods_of_its_own_extremes, "data", ""),
    ],
)
def test_old_values_and_what_is_made_on_the_way_are_told(program, name, typed, tmp_path):
    found = findings_of(program, tmp_path / "run.json")[0]
    first = found.remedies[0]
    assert (found.rule, first.fix) == ("out-of-place", "in_place")
    assert found.title.endswith(f"are `{name}` and what is computed of it, to be `{name}` again")
    if typed:
        assert first.typed == typed
    assert (f"First compute what else is read of `{name}`" in first.why) is not bool(typed)
    assert found.bytes == 3 * NBYTES


def test_the_saving_is_that_of_methods_in_place(tmp_path):
    found = findings_of(normalized, tmp_path / "run.json")[0]
    findings_of(in_place, tmp_path / "in_place.json")
    saved = peak_of(tmp_path / "run.json") - peak_of(tmp_path / "in_place.json")
    assert found.remedies[0].saves_bytes == pytest.approx(saved, rel=0.05)


@pytest.mark.parametrize("program", [kept, kept_beside])
def test_values_that_something_keeps_are_left_alone(program, tmp_path):
    assert "out-of-place" not in names(program, tmp_path / "run.json")


def scaled(x):
    mean, std = x.mean(0), x.std(0)
    return (x - mean) / std


def by_a_function():
    """The caller binds the result to the name of what it hands over."""
    data = torch.randn(ROWS, WIDTH)
    data = scaled(data)
    return training(data)


def by_functions_of_torch():
    batch = {"image": torch.rand(ROWS, WIDTH)}
    low, high = batch["image"].aminmax()
    batch["image"] = torch.div(torch.sub(batch["image"], low), high - low)
    return training(batch["image"])


def by_one_statement_after_the_other():
    """None of them decides the peak alone."""
    data = torch.randn(ROWS, WIDTH)
    data = torch.exp(data)
    data = 2 * data
    data = data - 1
    return training(data)


def of_another_name():
    """The old values are the targets."""
    raw = torch.randn(ROWS, WIDTH)
    data = scaled(raw)
    step = training(data)
    return lambda number: (step(number), raw[number].sum().item())


IN_PLACE = "methods that end in `_` compute in their memory."


@pytest.mark.parametrize(
    ("program", "name", "typed", "ends"),
    [
        (
            by_a_function,
            "data",
            "x.sub_(mean).div_(std)",
            f"{IN_PLACE} Then `scaled` changes what it is handed.",
        ),
        (
            by_functions_of_torch,
            "batch['image']",
            "batch['image'].sub_(low).div_(high - low)",
            IN_PLACE,
        ),
    ],
)
def test_functions_compute_a_name_from_itself_as_well(program, name, typed, ends, tmp_path):
    (found,) = findings_of(program, tmp_path / "run.json")
    assert (found.rule, found.bytes) == ("out-of-place", 3 * NBYTES)
    assert found.title.endswith(f"are `{name}` and what is computed of it, to be `{name}` again")
    (first,) = found.remedies
    assert (first.fix, first.typed) == ("in_place", typed)
    assert first.why.endswith(ends)


def test_statements_that_all_reach_the_peak_are_told_together(tmp_path):
    (found,) = findings_of(by_one_statement_after_the_other, tmp_path / "run.json")
    (first,) = found.remedies
    assert (found.rule, found.bytes, first.fix) == ("out-of-place", 2 * NBYTES, "in_place")
    of_a_step = 16 << 10  # bytes, which then are the peak beside the data
    assert NBYTES - of_a_step < first.saves_bytes <= NBYTES
    assert (first.code, first.typed) == ("data = data - 1", "data.sub_(1)")
    line = by_one_statement_after_the_other.__code__.co_firstlineno
    assert first.why.endswith(f" Lines that do the same: {line + 3}, {line + 4}.")


def test_what_a_function_is_handed_may_be_kept_by_its_caller(tmp_path):
    assert "out-of-place" not in names(of_another_name, tmp_path / "run.json")
