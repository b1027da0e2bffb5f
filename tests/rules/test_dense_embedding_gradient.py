"""dense-embedding-gradient: the gradient of a whole table, of which a step looks up few rows."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.rules.recorded import findings_of, names

ROWS, WIDTH, BATCH = 8192, 32, 16
TABLE = ROWS * WIDTH * 4


def training(table, batch=BATCH, head=1):
    model = nn.Sequential(table, nn.Linear(WIDTH, head, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step(number):
        optimizer.zero_grad()
        model(torch.randint(ROWS, (batch,))).sum().backward()
        optimizer.step()

    return step


def fires():
    """A batch of sixteen items of thousands."""
    return training(nn.Embedding(ROWS, WIDTH))


def looks_alike():
    """A batch has an eighth of them."""
    return training(nn.Embedding(ROWS, WIDTH), batch=ROWS // 8)


def sparse():
    """The advice is taken."""
    return training(nn.Embedding(ROWS, WIDTH, sparse=True))


def with_a_head():
    """What predicts one of the items has a dense gradient of the same size."""
    return training(nn.Embedding(ROWS, WIDTH), head=ROWS)


class Walks(nn.Module):
    """One table that three lookups read: each has a gradient of its size, which are added up."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(ROWS, WIDTH)

    def forward(self, start, near, far):
        start, near, far = self.table(start), self.table(near), self.table(far)
        return (start * near).sum() - (start * far).sum()


def walks(batch):
    def build():
        model = Walks()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)

        def step(number):
            optimizer.zero_grad()
            model(*torch.randint(ROWS, (3, batch))).backward()
            optimizer.step()

        return step

    return build


@pytest.mark.parametrize(("batch", "times"), [(ROWS // 32, 1), (ROWS // 4, 0)])
def test_each_lookup_of_one_table_has_a_gradient_of_its_size(batch, times, tmp_path):
    found = findings_of(walks(batch), tmp_path / "run.json")
    of_rule = [one for one in found if one.rule == "dense-embedding-gradient"]
    assert [one.match.count for one in of_rule] == [2] * times  # the sum so far, and the next


class Pairs(nn.Module):
    """Two tables of one size, as word2vec has them: a tenth of the peak each, or so."""

    def __init__(self):
        super().__init__()
        self.center, self.context = nn.Embedding(ROWS, WIDTH), nn.Embedding(ROWS, WIDTH)

    def forward(self, center, context):
        return (self.center(center) * self.context(context)).sum()


def pairs():
    model = Pairs()
    optimizer = torch.optim.Adam(model.parameters())

    def step(number):
        optimizer.zero_grad()
        model(*torch.randint(ROWS, (2, BATCH))).backward()
        optimizer.step()

    return step


def test_gradients_of_several_tables_count_together(tmp_path):
    (found,) = [
        one
        for one in findings_of(pairs, tmp_path / "run.json")
        if one.rule == "dense-embedding-gradient"
    ]
    assert found.bytes == 2 * TABLE
    assert "2 gradients of embeddings" in found.title


def test_the_table_is_told_where_it_is_made(tmp_path):
    (found,) = findings_of(fires, tmp_path / "run.json")
    (first,) = found.remedies
    assert (found.rule, found.minor, found.bytes) == ("dense-embedding-gradient", False, TABLE)
    assert found.title.endswith("of whose rows a step looks up 0.2 % at most")
    assert found.site.code == "return training(nn.Embedding(ROWS, WIDTH))"
    assert first.fix == "sparse_gradient"
    # The table itself stays, and what a batch takes.
    assert TABLE < first.peak_after < TABLE + 4 * BATCH * WIDTH * 4


@pytest.mark.parametrize("program", [sparse, with_a_head])
def test_nothing_is_said_where_it_is_sparse_or_dense_anyway(program, tmp_path):
    assert "dense-embedding-gradient" not in names(program, tmp_path / "run.json")


class ByFunction(nn.Module):
    def __init__(self):
        super().__init__()
        self.users = nn.Parameter(torch.empty(ROWS, WIDTH).normal_())
        self.items = nn.Parameter(torch.empty(ROWS // 2, WIDTH).normal_())

    def forward(self, users, items):
        users = torch.nn.functional.embedding(users, self.users)
        return (users * torch.nn.functional.embedding(items, self.items)).sum()


class ByIndex(ByFunction):
    def forward(self, users, items):
        return (self.users[users] * self.items[items]).sum()


class Dense(ByFunction):
    """All rows are read, of which some are taken."""

    def forward(self, users, items):
        return (self.users.exp()[users] * self.items.exp()[items]).sum()


class Mixed(ByFunction):
    """The largest table is looked up and multiplied as a whole besides."""

    def forward(self, users, items):
        return (self.users[users] * self.items[items]).sum() + self.users.square().sum()


def of_tables(model):
    def program():
        made = model()
        optimizer = torch.optim.SGD(made.parameters(), 0.1)

        def step(number):
            optimizer.zero_grad()
            made(torch.randint(ROWS, (BATCH,)), torch.randint(ROWS // 2, (BATCH,))).backward()
            optimizer.step()

        return step

    return program


@pytest.mark.parametrize("model", [ByFunction, ByIndex])
def test_a_program_may_look_rows_up_itself(model, tmp_path):
    found, *_ = findings_of(of_tables(model), tmp_path / "run.json")
    (first,) = found.remedies
    assert (found.rule, found.minor) == ("dense-embedding-gradient", False)
    assert found.bytes >= TABLE + TABLE // 2  # an index makes one of its own on the way
    assert "gradients of tables" in found.title
    assert first.typed == "torch.nn.functional.embedding(index, table, sparse=True)"
    assert first.code in (
        "users = torch.nn.functional.embedding(users, self.users)",
        "return (self.users[users] * self.items[items]).sum()",
    )


@pytest.mark.parametrize("model", [Dense, Mixed])
def test_a_table_that_is_read_as_a_whole_has_a_dense_gradient(model, tmp_path):
    found = findings_of(of_tables(model), tmp_path / "run.json")
    assert not [one for one in found if one.rule == "dense-embedding-gradient" and not one.minor]


class Tied(ByFunction):
    """What predicts an item multiplies by the very table that the items are looked up in."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(WIDTH, ROWS, bias=False)
        self.head.weight = self.users

    def forward(self, users, items):
        return self.head(self.users[users]).sum()


def test_a_table_that_a_head_has_as_its_weight_has_a_dense_gradient(tmp_path):
    assert "dense-embedding-gradient" not in names(of_tables(Tied), tmp_path / "run.json")


class Scored(nn.Module):
    """An evaluation scores every row between two steps."""

    def __init__(self):
        super().__init__()
        self.items = nn.Embedding(ROWS, WIDTH)

    def forward(self, first, second):
        return (self.items(first) * self.items(second)).sum()


def evaluated_whole():
    model = Scored()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step(number):
        optimizer.zero_grad()
        model(*torch.randint(ROWS, (2, BATCH))).backward()
        optimizer.step()
        if number % 4 == 3:
            with torch.no_grad():
                model.items(torch.arange(ROWS)).sum(1).topk(5)

    return step


def test_lookups_of_an_evaluation_need_no_gradient(tmp_path):
    found, *_ = findings_of(evaluated_whole, tmp_path / "run.json")
    assert (found.rule, found.remedies[0].fix) == ("dense-embedding-gradient", "sparse_gradient")
