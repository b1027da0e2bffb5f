"""Where a function that a statement calls binds what it returns."""

from __future__ import annotations

from textwrap import dedent

import pytest

from memprof.source_code.call_sites import returned_from
from memprof.source_code.program import program_of

EPOCH = """
def train(model, loader):
    losses, score = 0.0, 0.0
    for batch in loader:
        score += dice(model(batch))
        losses += loss(batch).item()
    return {returned}
def main(model, loader):
    for epoch in range(9):
        {binding} = train(model, loader)
"""


@pytest.mark.parametrize(
    ("returned", "binding", "lines"),
    [
        ("score", "mean", [3, 5]),
        ("score / len(loader)", "mean", [3, 5]),
        ("losses / len(loader), score / len(loader)", "loss, mean", [3, 5, 6]),
        ("len(loader) / score", "mean", []),
        ("float(score)", "mean", []),
    ],
)
def test_sums_that_a_function_returns_are_followed_into_it(returned, binding, lines, tmp_path):
    file = tmp_path / "train.py"
    file.write_text(dedent(EPOCH).format(returned=returned, binding=binding))
    program = program_of(str(file))
    places = returned_from(program.at(10), [program])
    assert sorted(one.line for one in places) == lines
