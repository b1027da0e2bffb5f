"""Which items of tuples in a list nothing reads, by how the list is gone through."""

from __future__ import annotations

import ast

import pytest

from memprof.source_code.program import program_of
from memprof.source_code.unread_positions import given_at_position, is_position_unread

PROGRAM = """
def train(seed):
    model = Net()
    return model, model.fit(seed)

def main():
    results = [train(seed) for seed in range(9)]
    READ
"""


def made(tmp_path, read):
    path = tmp_path / "train.py"
    path.write_text(PROGRAM.replace("READ", read))
    program = program_of(str(path))
    assert program is not None
    place = program.at(7)
    assert place is not None
    return place


@pytest.mark.parametrize(
    ("read", "is_unread"),
    [
        ("return min(score for _, score in results)", True),
        ("return [row[1] for row in results]", True),
        ("return [row[-1] for row in results]", True),
        ("return results[3][1], len(results)", True),
        ("for at, (net, score) in enumerate(results): print(at, score)", True),
        ("for net, score in results: print(net, score)", False),
        ("return [row[0] for row in results]", False),
        ("return [row[-2] for row in results]", False),
        ("return [row[at] for row in results for at in (0, 1)]", False),
        ("return [row for row in results]", False),
        ("return min(results, key=lambda row: row[1])", False),
        ("return results[0]", False),
        ("return results", False),
        ("save(results)", False),
        ("_, score = results[0]", False),
        ("pass", False),
    ],
)
def test_an_item_is_unread_where_every_read_is_of_another(read, is_unread, tmp_path):
    assert is_position_unread(made(tmp_path, read), "results", 0, 2) is is_unread


def test_it_is_given_where_the_tuples_are_made(tmp_path):
    given = given_at_position(made(tmp_path, "return len(results)"), 1, 2)
    assert given is not None
    value, place = given
    assert (ast.unparse(value), place.line) == ("model.fit(seed)", 4)
    assert given_at_position(made(tmp_path, "pass"), 0, 3) is None
