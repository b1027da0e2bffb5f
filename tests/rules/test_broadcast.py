"""broadcast: two vectors of n values come out as an n × n table."""

from __future__ import annotations

import pytest
import torch

from tests.rules.recorded import findings_of, names


def fires():
    def step(number):
        guess, wanted = torch.randn(1024, 1), torch.randn(1024)
        loss = (guess - wanted).square().mean()
        loss.item()

    return step


def looks_alike():
    """A table of n × n from two vectors of n values as well: a product, and scaled."""

    def step(number):
        queries, keys = torch.randn(1024, 1), torch.randn(1, 1024)
        scores = queries @ keys / 8
        scores.sum().item()

    return step


def test_the_table_has_as_many_rows_as_columns(tmp_path):
    found = next(
        one for one in findings_of(fires, tmp_path / "run.json") if one.rule == "broadcast"
    )
    assert found.match.side == 1024
    assert found.remedies[0].fix == "reshape"


def accuracy():
    """As many bytes as a table of truth values of twice the side, of numbers of half the width."""

    def step(number):
        guesses, labels = torch.randint(9, (1024, 1)), torch.randint(9, (1024,))
        return (guesses == labels).float().mean().item()

    return step


def test_truth_values_that_are_made_numbers_take_four_bytes_each(tmp_path):
    found = next(
        one for one in findings_of(accuracy, tmp_path / "run.json") if one.rule == "broadcast"
    )
    assert (found.match.side, found.remedies[0].fix) == (1024, "reshape")


def steps_by_hand():
    """A weight of n × n is moved along its gradient, beside two vectors of n values."""
    weight = torch.nn.Parameter(torch.randn(1024, 1024))

    def step(number):
        first, second = torch.randn(1024), torch.randn(1024)
        (weight @ first + second).sum().backward()
        with torch.no_grad():
            drift = weight.grad * 0.5 + weight
            weight.sub_(drift)
        weight.grad = None
        return first, second

    return step


def test_what_moves_a_square_weight_is_no_broadcast(tmp_path):
    found = findings_of(steps_by_hand, tmp_path / "run.json")
    assert not [one for one in found if one.rule == "broadcast"]


def tables_of_all_pairs():
    """Each position against each: the axis that it takes is written there."""

    def step(number):
        position = torch.arange(1024)
        far = (position[:, None] - position[None]).abs() > 8
        near = position.unsqueeze(1) == position
        assert not (far & near).any()

    return step


def test_a_table_that_is_asked_for_by_an_axis_is_meant(tmp_path):
    found = findings_of(tables_of_all_pairs, tmp_path / "run.json")
    assert not [one for one in found if one.rule == "broadcast"]


def decoded_by_a_module():
    """The line divides, and a module that it calls makes the table of two vectors."""

    class Outer(torch.nn.Module):
        def forward(self, x):
            return x[:, None] - torch.randn(1024)

    outer = Outer()

    def step(number):
        scaled = torch.randn(1024)
        outer(scaled / torch.tensor(2.0)).square().mean().item()

    return step


def test_what_a_module_makes_is_no_broadcast_of_the_line_that_calls_it(tmp_path):
    found = findings_of(decoded_by_a_module, tmp_path / "run.json")
    assert not [one for one in found if one.rule == "broadcast"]


def distances():
    """The divisions are of the points; the table is of their pairs."""

    def step(number):
        first, second, scale = torch.randn(1024, 1), torch.randn(1024, 1), 2 * torch.ones(1)
        return torch.cdist(first / scale, second / scale).sum().item()

    return step


def test_a_function_of_all_pairs_is_meant(tmp_path):
    assert "broadcast" not in [one.rule for one in findings_of(distances, tmp_path / "run.json")]


def points_scaled():
    """65,536 points of two values are as large as 512 × 512 values of two bytes."""
    scale, others = torch.randn(2), [torch.zeros(256), torch.zeros(256)]
    points = torch.randn(65536, 2)

    def step(number):
        moved = others[0][:2] + scale * points
        moved.sum().item()

    return step


def test_values_of_two_bytes_are_those_of_a_program_that_asks_for_them(tmp_path):
    found = findings_of(points_scaled, tmp_path / "run.json")
    assert not [one for one in found if one.rule == "broadcast"]


def loss_module():
    """A loss that is called as a module, of a part of all that is wanted."""
    model, criterion = torch.nn.Linear(4, 1), torch.nn.SmoothL1Loss()
    wanted = torch.randn(16 * 1024)

    def step(number):
        loss = criterion(model(torch.randn(1024, 4)), wanted[number * 1024 :][:1024])
        loss.backward()
        model.zero_grad()

    return step


def loss_of_tables():
    model, criterion = torch.nn.Linear(1, 1024), torch.nn.SmoothL1Loss()

    def step(number):
        loss = criterion(model(torch.randn(1024, 1)), torch.randn(1024, 1024))
        loss.backward()
        model.zero_grad()

    return step


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_a_loss_says_that_its_operands_are_alike_though_one_is_a_part(tmp_path):
    found, *_ = findings_of(loss_module, tmp_path / "run.json")
    assert (found.rule, found.match.side) == ("broadcast", 1024)
    assert "broadcast" not in names(loss_of_tables, tmp_path / "other.json")


def scaled_table():
    """A table of distances is scaled anew in each step, beside two vectors of its side."""
    points, weights, wanted = torch.randn(1024, 3), torch.randn(1024), torch.randn(1024)
    table = torch.cdist(points, points)

    def step(number):
        scaled = table / (number + 1.5)
        return (scaled @ weights).dot(wanted).item()

    return step


def test_what_is_made_of_a_table_by_a_number_is_no_broadcast(tmp_path):
    assert "broadcast" not in names(scaled_table, tmp_path / "run.json")
