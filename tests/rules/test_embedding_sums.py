"""embedding-sums: a row is looked up for each index, and only sums of rows are read."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.rules.recorded import findings_of, peak_of

ITEMS, WIDTH, USERS, HISTORY = 64, 64, 128, 64
ROWS = USERS * HISTORY * WIDTH * 4


def training(profile_of):
    table, head = nn.Embedding(ITEMS, WIDTH), nn.Linear(WIDTH, 1)
    optimizer = torch.optim.SGD([*table.parameters(), *head.parameters()], 0.1)

    def step(number):
        optimizer.zero_grad()
        history = torch.randint(ITEMS, (USERS, HISTORY))
        head(profile_of(table, history)).mean().backward()
        optimizer.step()

    return step


def fires():
    def profile_of(table, history):
        return table(history).mean(dim=1)

    return training(profile_of)


def by_a_name():
    def profile_of(table, history):
        rows = table(history)
        return rows.sum(1)

    return training(profile_of)


def looks_alike():
    """One function looks up and adds."""

    def profile_of(table, history):
        return F.embedding_bag(history, table.weight, mode="mean")

    return training(profile_of)


def over_the_features():
    """The rows remain."""

    def profile_of(table, history):
        return table(history).mean(dim=2)[:, :WIDTH]

    return training(profile_of)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.layers = nn.Embedding(ITEMS, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, words):
        return self.head(self.layers(self.embed(words)).mean(1))


def through_a_layer():
    """What a layer makes of the rows is added up."""
    model = Tagger()

    def step(number):
        model.zero_grad()
        model(torch.randint(ITEMS, (USERS, HISTORY))).mean().backward()

    return step


def rows_are_read():
    def profile_of(table, history):
        rows = table(history)
        return rows.mean(dim=1) + rows[:, -1]

    return training(profile_of)


def through_a_function():
    """The gradient of the rows is that of their mean, which another line takes."""

    def profile_of(table, history):
        rows = F.embedding(history, table.weight)
        return torch.mean(rows, dim=-2)

    return training(profile_of)


class OfFields(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(ITEMS, WIDTH) for _ in range(2))
        self.head = nn.Linear(2 * WIDTH, 1)

    @staticmethod
    def pooled(rows):
        return torch.einsum("bnd->bd", rows)

    def forward(self, fields):
        parts = [self.pooled(table(one)) for table, one in zip(self.tables, fields, strict=True)]
        return self.head(torch.cat(parts, dim=1))


class OfFeatures(OfFields):
    """The features of a row are added up, and each row remains."""

    @staticmethod
    def added(rows):
        return torch.einsum("bnd->bn", rows)

    def forward(self, fields):
        parts = [self.added(table(one)) for table, one in zip(self.tables, fields, strict=True)]
        return self.head(torch.cat(parts, dim=1))


def of_fields(kind=OfFields):
    model = kind()

    def step(number):
        model.zero_grad()
        model([torch.randint(ITEMS, (USERS, HISTORY)) for _ in range(2)]).mean().backward()

    return step


def features_of_fields():
    return of_fields(OfFeatures)


class OfNamedFields(OfFields):
    """A loop goes through named tables, and what a mask leaves takes the name of the rows."""

    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleDict({one: nn.Embedding(ITEMS, WIDTH) for one in ("near", "far")})

    def forward(self, fields):
        parts, mask = [], torch.ones(USERS, HISTORY)
        for (_, table), one in zip(self.tables.items(), fields, strict=True):
            rows = table(one)
            rows = rows * mask.unsqueeze(-1)
            parts.append(rows.sum(dim=1) / mask.sum(dim=1, keepdim=True))
        return self.head(torch.cat(parts, dim=1))


class OfNamedFieldsReadLater(OfNamedFields):
    """The last field's rows are read behind the loop."""

    def forward(self, fields):
        parts, mask = [], torch.ones(USERS, HISTORY)
        for (_, table), one in zip(self.tables.items(), fields, strict=True):
            rows = table(one)
            rows = rows * mask.unsqueeze(-1)
            parts.append(rows.sum(dim=1))
        return self.head(torch.cat(parts, dim=1)) + rows.amax()


def named_fields_are_read_later():
    return of_fields(OfNamedFieldsReadLater)


def sums_told(program, path):
    return [one for one in findings_of(program, path) if one.rule == "embedding-sums"]


@pytest.mark.parametrize(
    ("program", "read", "mode"),
    [(fires, "table(history).mean(dim=1)", "mean"), (by_a_name, "rows.sum(1)", "sum")],
)
def test_one_function_for_both_is_told_and_what_it_saves(program, read, mode, tmp_path):
    (one,) = sums_told(program, tmp_path / "run.json")
    (first,) = one.remedies
    assert (one.minor, first.fix) == (False, "embedding_bag")
    assert one.title.endswith(f"of which only `{read}` is read")
    assert first.typed == f'nn.EmbeddingBag(…, mode="{mode}")'
    assert one.bytes == ROWS
    findings_of(looks_alike, tmp_path / "bag.json")
    saved = peak_of(tmp_path / "run.json") - peak_of(tmp_path / "bag.json")
    indices = USERS * HISTORY * 8  # the function keeps to which sum each belongs
    assert first.saves_bytes == pytest.approx(saved, abs=2 * indices)


@pytest.mark.parametrize(
    "program",
    [
        *(looks_alike, over_the_features, through_a_layer, rows_are_read, features_of_fields),
        named_fields_are_read_later,
    ],
)
def test_rows_that_are_needed_are_left_alone(program, tmp_path):
    assert sums_told(program, tmp_path / "run.json") == []


def test_the_gradient_of_the_rows_may_come_from_the_line_that_adds_them_up(tmp_path):
    (one,) = sums_told(through_a_function, tmp_path / "run.json")
    assert one.title.endswith("of which only `torch.mean(rows, dim=-2)` is read")
    assert one.remedies[0].code == "rows = F.embedding(history, table.weight)"
    assert one.bytes == ROWS
    findings_of(looks_alike, tmp_path / "bag.json")
    saved = peak_of(tmp_path / "run.json") - peak_of(tmp_path / "bag.json")
    assert one.remedies[0].saves_bytes == pytest.approx(saved, abs=2 * USERS * HISTORY * 8)


def test_tables_of_a_list_are_looked_up_one_by_one_and_summed_by_einsum(tmp_path):
    (one,) = sums_told(of_fields, tmp_path / "run.json")
    (first,) = one.remedies
    assert one.title.endswith("of which only `torch.einsum('bnd->bd', rows)` is read")
    assert first.typed == 'nn.EmbeddingBag(…, mode="sum")'
    assert first.code.startswith("parts = [self.pooled(table(one))")
    assert one.bytes == ROWS


def test_rows_may_have_one_name_before_and_behind_a_mask(tmp_path):
    (one,) = sums_told(lambda: of_fields(OfNamedFields), tmp_path / "run.json")
    (first,) = one.remedies
    assert one.title.endswith("of which only `rows.sum(dim=1)` is read")
    assert (first.fix, first.code) == ("embedding_bag", "rows = table(one)")
    assert one.bytes == ROWS
