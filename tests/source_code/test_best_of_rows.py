"""What is read of a table whose rows are each searched for their best few: nothing else of it."""

from __future__ import annotations

import pytest

from memprof.source_code.best_of_rows import best_of_rows
from memprof.source_code.program import program_of

FIRST = 2


def best(tmp_path, *after):
    source = tmp_path / "search.py"
    lines = ["def search(a, b, k, mask):", "    scores = cos_sim(a, b)"]
    source.write_text("\n".join([*lines, *(f"    {line}" for line in after)]) + "\n")
    return best_of_rows(program_of(str(source)).at(FIRST))


@pytest.mark.parametrize(
    ("after", "text"),
    [
        (["return scores.topk(k, dim=1).indices"], "scores.topk(k, dim=1)"),
        (["return torch.topk(scores, k)"], "torch.topk(scores, k)"),
        (
            ["scores.fill_diagonal_(-1.0)", "scores[mask] = 0", "return scores.argmax(1)"],
            "scores.argmax(1)",
        ),
        (
            ["scores = scores.masked_fill(mask, -1)", "best = scores.max(dim=1)", "return best"],
            "scores.max(dim=1)",
        ),
        (["scores *= 2", "print(scores.shape)", "return scores.topk(k)"], "scores.topk(k)"),
        (["return scores.topk(k), scores.mean()"], ""),
        (["return scores"], ""),
        (["return (scores > 0.5).nonzero()"], "(scores > 0.5).nonzero()"),
        (
            ["scores = torch.triu(scores, diagonal=1)", "return torch.where(scores >= k)"],
            "torch.where(scores >= k)",
        ),
        (["near = scores > 0.5", "return near.sum()"], ""),
        (["return torch.where(scores > k, scores, mask)"], ""),
        (["near = scores / 2", "return scores.topk(k), near"], ""),
        (["return scores[0].topk(k)"], ""),
        (["return scores.topk(k, dim=0)"], ""),  # of columns: rows cannot be taken apart
        (["return scores.argmax()"], ""),
        (["scores = mask @ scores", "return scores.argmax(1)"], ""),
        (["scores = scores / scores.max()", "return scores.argmax(1)"], ""),
        (["return scores.argsort(1)"], ""),  # as large as the table
        (["return scores.topk(k), scores.argmax(1)"], ""),
    ],
)
def test_rows_are_searched_and_nothing_else_is_read(tmp_path, after, text):
    assert best(tmp_path, *after) == text


def test_a_table_that_needs_all_rows_is_none(tmp_path):
    source = tmp_path / "search.py"
    source.write_text(
        "def search(a, b):\n    near = torch.cdist(a, b).mean(0)\n    return near.topk(3)\n"
    )
    assert best_of_rows(program_of(str(source)).at(FIRST)) == ""
