"""unread-field, where dicts in a list have objects of which a part is read."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tests.rules.recorded import findings_of

WIDTH = 64


@dataclass
class Answer:
    certainty: float
    whole_output: torch.Tensor


def of_entries():
    """Dicts in a list: of the outputs under one key a part is read, and before that another."""
    rows = []

    def step(number):
        made = Answer(certainty=0.5, whole_output=torch.rand(WIDTH, WIDTH))
        certainty = made.whole_output.max().item()
        rows.append({"certainty": certainty, "made": made})
        return sum(row["made"].certainty for row in rows)

    return step


def test_of_an_entry_what_is_read_through_it_is_to_be_kept(tmp_path):
    (found,) = findings_of(of_entries, tmp_path / "run.json")
    first = found.remedies[0]
    assert (found.rule, first.fix) == ("unread-field", "del_ref")
    assert "only `['made'].certainty` is read, and its `whole_output` is kept as well" in first.why
