"""Of what operators make large tensors, and what later operators make of these."""

from __future__ import annotations

import pytest
import torch

import memprof
from memprof.loading import load
from memprof.views.operator_graph import made_by_operators

ROWS, COLUMNS = 512, 1024
NBYTES = ROWS * COLUMNS * 4


def noted(program, tmp_path, times=1):
    """(operator, bytes, given, {operator: (count, read, made)}) of each, of what programs make."""
    with memprof.track(tmp_path / "run.json", sources=("cpu",)):
        for _ in range(times):
            program(torch.rand(ROWS, 1), torch.rand(COLUMNS))
    rows = made_by_operators(load(tmp_path / "run.json").operator_graphs).values()
    return [
        (
            one.operator,
            one.size,
            one.given,
            {r.operator: (r.count, r.read, r.size) for r in one.reads},
        )
        for one in rows
    ]


def test_what_is_made_and_what_of_it(tmp_path):
    def program(rows, columns):
        return (rows - columns).exp().sum(1)

    given = (ROWS + COLUMNS) * 4
    assert noted(program, tmp_path, times=3) == [
        ("sub", NBYTES, given, {"exp": (3, NBYTES, NBYTES)}),
        ("exp", NBYTES, NBYTES, {"sum": (3, NBYTES, ROWS * 4)}),
    ]


def test_a_view_is_no_read_and_what_reads_it_reads_so_much(tmp_path):
    def program(rows, columns):
        table = rows * columns
        return table.t()[:8].clone(), table.detach().max().item()

    ((_, _, _, reads),) = noted(program, tmp_path)
    assert reads == {"clone": (1, 8 * ROWS * 4, 8 * ROWS * 4), "max": (1, NBYTES, 4)}


def test_what_is_changed_in_place_is_not_read_by_that(tmp_path):
    def program(rows, columns):
        table = rows * columns
        return table.add_(1).mul_(2).amin()

    ((operator, _, _, reads),) = noted(program, tmp_path)
    assert (operator, list(reads)) == ("mul", ["amin"])


def test_what_is_written_into_is_what_made_that(tmp_path):
    def program(rows, columns):
        total = torch.zeros(ROWS, COLUMNS)
        total += rows * columns
        return total.sum()

    made = {operator: reads for operator, _, _, reads in noted(program, tmp_path)}
    assert made == {"zeros": {"sum": (1, NBYTES, 4)}, "mul": {"zeros": (1, NBYTES, NBYTES)}}


def test_sequences_of_tensors_are_looked_into(tmp_path):
    def program(rows, columns):
        table = rows * columns
        return torch.cat([table, table]), table[torch.arange(4)]

    made = {operator: reads for operator, _, _, reads in noted(program, tmp_path)}
    assert made["mul"]["cat"] == (2, NBYTES, 2 * NBYTES)
    assert made["mul"]["index"] == (1, NBYTES, 4 * COLUMNS * 4)


def test_of_what_is_there_as_an_operator_is_missed_nothing_is_said(tmp_path):
    """A sparse tensor does not say whose parts it has."""
    chosen = torch.eye(ROWS).to_sparse()

    def program(rows, columns):
        table = rows * columns
        product = torch.sparse.mm(chosen, table)
        return product, table.sum(), (columns - rows).max()

    made = {operator: reads for operator, _, _, reads in noted(program, tmp_path)}
    assert made["mul"] == {}
    assert made["sub"] == {"max": (1, NBYTES, 4)}


def test_a_backward_pass_is_left_out(tmp_path):
    def program(rows, columns):
        rows.requires_grad_()
        (rows * columns).exp().sum().backward()

    made = {operator: set(reads) for operator, _, _, reads in noted(program, tmp_path)}
    assert made == {"mul": {"exp"}, "exp": {"sum"}}


@pytest.mark.parametrize(
    ("column", "value"),
    [("size", "1"), ("given", "1"), ("count", "1"), ("operator", '"aten::mul"'), ("reads", "[]")],
)
def test_columns_that_differ_in_length_are_damage(column, value, tmp_path):
    with memprof.track(tmp_path / "run.json", sources=("cpu",)):
        (torch.rand(ROWS, 1) - torch.rand(COLUMNS)).sum()
    file = tmp_path / "run.json"
    lines = file.read_text().splitlines()
    (at,) = (n for n, line in enumerate(lines) if '"operator_graph"' in line)
    lines[at] = lines[at].replace(f'"{column}":[', f'"{column}":[{value},')
    file.write_text("\n".join(lines))
    run = load(file)
    assert not run.operator_graphs
    assert any("its columns differ in length" in note.message for note in run.notes)
