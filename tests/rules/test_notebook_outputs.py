"""notebook-outputs: a notebook keeps the result of every cell."""

from __future__ import annotations

import torch

from tests.programs.shell import start_shell
from tests.rules.recorded import findings_of

WIDTH = 64


def cell(namespace, number):
    """What IPython does with the value of a cell's last line."""
    namespace["In"].append("model(batch)")
    namespace["Out"][number] = torch.zeros(WIDTH, WIDTH)


def fires():
    namespace = start_shell()

    def step(number):
        cell(namespace, number)

    return step


def looks_alike():
    """A program that stores inputs and outputs in a dict of its own, under the same keys."""
    namespace = {"In": [], "Out": {}, "_oh": {}}

    def step(number):
        cell(namespace, number)

    return step


def test_the_cell_is_to_end_without_a_result(tmp_path):
    (found,) = findings_of(fires, tmp_path / "run.json")
    first = found.remedies[0]
    assert found.rule == first.rule == "notebook-outputs"
    assert found.bytes_per_step == WIDTH * WIDTH * 4
    assert first.fix == "clear_container"
    assert "`%reset out`" in first.why
