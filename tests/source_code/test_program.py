"""The statement at a line of a file, and at a column of it."""

from __future__ import annotations

import ast

import pytest

from memprof.source_code.program import program_of

SOURCE = """\
import torch


@torch.no_grad()
@timed
def evaluate(model, batches):
    match model.mode:
        case "all" if batches:
            total = sum(
                model(batch)
                for batch in batches
            )
        case _:
            total = 0; left = batches
    try:
        print(total)
    except ValueError:
        raise
    else:
        total += 1
    finally:
        close()
    return total


class Late:
    value = 3
    def method(self): return self.value
"""
"""Its statements begin at lines 1, 4 (with decorators), 7, 9, 14 …"""


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SOURCE)
    return program_of(str(path))


@pytest.mark.parametrize(
    ("line", "text", "around"),
    [
        (1, "import torch", 0),
        (2, None, 0),
        (4, "def evaluate(model, batches):", 0),  # by its decorator
        (7, "match model.mode:", 1),
        (8, "match model.mode:", 1),  # a case is no statement
        (10, "total = sum(", 3),
        (12, "total = sum(", 3),
        (14, "total = 0; left = batches", 3),
        (17, "try:", 1),
        (18, "raise", 3),
        (20, "total += 1", 2),
        (22, "close()", 2),
        (23, "return total", 1),
        (25, None, 0),
        (28, "def method(self): return self.value", 2),
        (29, None, 0),
    ],
)
def test_the_innermost_statement_covers_the_line(line, text, around, program):
    place = program.at(line)
    if text is None:
        assert place is None
        return
    assert (place.code.strip(), len(place.around)) == (text, around)
    assert isinstance(place.statement, ast.stmt)


def test_a_node_is_in_the_statement_at_its_column(program):
    names = [node for node in program.nodes if isinstance(node, ast.Name) and node.lineno == 14]
    statements = [program.place(node).statement for node in names]
    assert [ast.unparse(one) for one in statements] == [
        "total = 0",
        "left = batches",
        "left = batches",
    ]
    assert ast.unparse(program.at(14).statement) == "total = 0"


def test_what_stands_on_one_line_with_its_header_is_found(program):
    (value,) = [node for node in program.nodes if isinstance(node, ast.Attribute)][-1:]
    assert ast.unparse(program.place(value).statement) == "return self.value"
    assert program.place(value).function.name == "method"
    assert program.place(value).class_.name == "Late"
