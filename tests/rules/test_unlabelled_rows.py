"""unlabelled-rows: scores are computed for rows whose label the loss ignores."""

from __future__ import annotations

import pytest
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


class Masked(nn.Module):
    """The classes are in the dimension behind the first, as the loss takes them of a sequence."""

    def __init__(self):
        super().__init__()
        self.items = nn.Embedding(ITEMS, WIDTH)
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.criterion = nn.CrossEntropyLoss()

    def forward(self, rows, labels):
        hidden = self.layer(self.items(rows))
        scores = torch.einsum("bnd,vd->bvn", hidden, self.items.weight)
        return self.criterion(scores, labels)


def of_sequences(share):
    model, labels = Masked(), torch.full((4, ROWS // 4), -100)
    labels[:, torch.arange(ROWS // 4) % 4 < 4 * share] = 1  # no padding at the end

    def step(number):
        model(torch.arange(ROWS).view(4, -1) % ITEMS, labels).backward()
        model.zero_grad()

    return step


def segmented():
    """Of few classes: the scores of a place are no large part of what the model makes of it."""
    layer, labels = nn.Conv2d(3, 64, 1), torch.full((4, 64, 64), -100)
    labels[:, :8] = 1

    def step(number):
        F.cross_entropy(layer(torch.randn(4, 3, 64, 64)), labels).backward()

    return step


def weighted():
    """Classes have weights: the loss does not say how many rows count."""
    model, labels = Recommender(), torch.zeros(ROWS, dtype=torch.long)
    weights = torch.rand(ITEMS)

    def step(number):
        F.cross_entropy(model(torch.arange(ROWS)), labels, weights, ignore_index=IGNORED).backward()
        model.zero_grad()

    return step


def row_by_row():
    """The loss of each row by itself, which says nothing of how many count."""
    model, labels = Recommender(), torch.zeros(ROWS, dtype=torch.long)

    def step(number):
        scores = model(torch.arange(ROWS))
        F.cross_entropy(scores, labels, reduction="none").mean().backward()
        model.zero_grad()

    return step


def distilled():
    """A teacher's scores of all rows are learned from as well."""
    model, labels = Recommender(), torch.full((ROWS,), IGNORED)
    labels[: ROWS // 4] = 1
    teacher = torch.rand(ROWS, ITEMS).softmax(-1)

    def step(number):
        scores = model(torch.arange(ROWS))
        loss = F.cross_entropy(scores, labels, ignore_index=IGNORED)
        learned = scores.log_softmax(-1)
        (loss - (learned * teacher).sum()).backward()
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


def test_scores_with_the_classes_in_the_second_dimension_are_told_as_well(tmp_path):
    found = findings_of(lambda: of_sequences(0.25), tmp_path / "run.json")[0]
    (remedy,) = found.remedies
    assert (found.rule, remedy.fix) == ("unlabelled-rows", "narrow_first")
    assert found.title.endswith("are scores of 16,384 rows, of which the loss counts 4,096")
    assert remedy.code == 'scores = torch.einsum("bnd,vd->bvn", hidden, self.items.weight)'
    assert found.bytes % SCORES == 0


def test_most_labels_of_sequences_and_few_classes_are_left_alone(tmp_path):
    assert "unlabelled-rows" not in names(lambda: of_sequences(0.75), tmp_path / "most.json")
    assert "unlabelled-rows" not in names(segmented, tmp_path / "few.json")


def test_the_recording_says_how_many_rows_count(tmp_path):
    record(fires, tmp_path / "run.json", 16)
    (rows,) = load(tmp_path / "run.json").labelled
    assert (rows.size, rows.calls, rows.rows) == ([SCORES], [16], [16 * ROWS])
    assert rows.labelled == [16 * ROWS // 4]


@pytest.mark.parametrize("program", [weighted, row_by_row])
def test_of_losses_that_do_not_count_rows_nothing_is_known(program, tmp_path):
    assert "unlabelled-rows" not in names(program, tmp_path / "run.json")


def test_rows_that_another_line_reads_may_be_needed(tmp_path):
    found = findings_of(distilled, tmp_path / "run.json")
    assert [one.minor for one in found if one.rule == "unlabelled-rows"] == [True]


@pytest.mark.parametrize(("kind", "labelled"), [(torch.bfloat16, [[280_000]]), (torch.float16, [])])
def test_counts_in_a_short_type_are_no_more_than_there_are_rows(kind, labelled, tmp_path):
    """In bfloat16 it is rounded up, in float16 it is infinite: then nothing is known."""

    def program():
        scores, labels = torch.rand(70_000, 16, dtype=kind), torch.ones(70_000, dtype=torch.long)
        return lambda number: F.nll_loss(scores, labels, ignore_index=IGNORED).item()

    record(program, tmp_path / "run.json", 4)
    run = load(tmp_path / "run.json")
    assert not any("damaged" in note.message for note in run.notes)
    assert [one.labelled for one in run.labelled] == labelled
