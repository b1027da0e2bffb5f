"""unlabelled-rows: scores are computed for rows whose label the loss ignores."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from memprof.loading import load
from tests.rules.recorded import findings_of, names, record

ITEMS, WIDTH, ROWS = 1024, 16, 1024
SCORES = ROWS * ITEMS * 4
IGNORED = 0


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.items = nn.Embedding(ITEMS, WIDTH)
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, rows):
        return F.linear(self.layer(self.items(rows)), self.items.weight)


def trained(share, rows=ROWS):
    model, labels = Recommender(), torch.full((rows,), IGNORED)
    labels[: int(share * rows)] = 1

    def step(number):
        scores = model(torch.arange(rows) % ITEMS)
        F.cross_entropy(scores, labels, ignore_index=IGNORED).backward()
        model.zero_grad()

    return step


def fires():
    return trained(0.25)


def looks_alike():
    """Most rows have a label."""
    return trained(0.75)


def weighted():
    """Classes have weights: the loss does not say how many rows count."""
    model, labels = Recommender(), torch.zeros(ROWS, dtype=torch.long)
    weights = torch.rand(ITEMS)

    def step(number):
        F.cross_entropy(model(torch.arange(ROWS)), labels, weights, ignore_index=IGNORED).backward()
        model.zero_grad()

    return step


def test_rows_without_a_label_are_to_be_left_out_before_the_scores(tmp_path):
    (found,) = [one for one in findings_of(fires, tmp_path / "run.json") if not one.minor]
    (first,) = found.remedies
    assert (found.rule, first.fix) == ("unlabelled-rows", "narrow_first")
    assert found.site.code == "return F.linear(self.layer(self.items(rows)), self.items.weight)"
    assert found.bytes % SCORES == 0
    # a quarter of what is there remains
    assert first.saves_bytes == round(0.75 * found.match.saving.bytes)


def test_the_recording_says_how_many_rows_count(tmp_path):
    record(fires, tmp_path / "run.json", 16)
    (rows,) = load(tmp_path / "run.json").labelled
    assert (rows.size, rows.calls, rows.rows) == ([SCORES], [16], [16 * ROWS])
    assert rows.labelled == [16 * ROWS // 4]


def test_of_weighted_classes_nothing_is_known(tmp_path):
    assert "unlabelled-rows" not in names(weighted, tmp_path / "run.json")
