"""shuffled-copy: a data set is copied in another order, to be gone through in batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from tests.rules.recorded import findings_of

ROWS, FEATURES, BATCH = 1024, 256, 64
NBYTES = ROWS * FEATURES * 4


def copied(x):
    perm = torch.randperm(len(x))
    shuffled = x[perm]
    for at in range(0, len(shuffled), BATCH):
        yield shuffled[at : at + BATCH]


def selected(x):
    order = torch.randperm(len(x))
    mixed = torch.index_select(x, 0, order)
    yield from mixed.split(BATCH)


def entries(x):
    """Of a dictionary, whose entries are split together."""
    data = {"x": x, "y": x[:, 0]}
    order = torch.randperm(len(x))
    mixed = {k: v.index_select(0, order) for k, v in data.items()}
    for batch, _ in zip(mixed["x"].split(BATCH), mixed["y"].split(BATCH), strict=True):
        yield batch


def by_numpy(x):
    """NumPy makes the order."""
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(x))).long()
    mixed = x[order]
    for at in range(0, len(x), BATCH):
        rows = slice(at, at + BATCH)
        yield mixed[rows]


def in_the_loop(x):
    """The copy has no name."""
    idx = torch.randperm(len(x))
    for batch, _ in zip(x[idx].split(BATCH), range(len(x)), strict=False):
        yield batch


def without_a_name(x):
    mixed = x[torch.randperm(len(x))]
    for at in range(0, len(x), BATCH):
        yield mixed[at : at + BATCH]


def in_order(x, y):
    order = torch.randperm(len(x))
    return x[order], y[order]


def of_a_function(x):
    """A function returns the copy, and a loader takes its rows."""
    mixed, y = in_order(x, x[:, 0])
    for batch, _ in DataLoader(TensorDataset(mixed, y), batch_size=BATCH):
        yield batch


def whole_of_a_function(x):
    """A function returns the copy, and all of it is read."""
    mixed, y = in_order(x, x[:, 0])
    for at in range(0, len(x), BATCH):
        yield mixed[at : at + BATCH] - mixed.mean(0) + y[0]


def replaced_by_a_function(x):
    """The copy takes the name of the set, which its own caller has let go of."""
    x, _ = in_order(x.clone(), x[:, 0])
    first, second = x[: ROWS // 2], x[ROWS // 2 :]
    yield from first.split(BATCH)
    yield second.mean(0)


def of_scores(x):
    """An order of scores, in the loop."""
    yield from x[x[:, 0].argsort()].split(BATCH)


def parts_for_two_purposes(x):
    """One part is to train on, and the other for a test: both are needed to the end."""
    order = torch.randperm(len(x))
    mixed = x.index_select(0, order)
    first, second = mixed.split((3 * ROWS // 4, ROWS // 4))
    for batch in first.split(BATCH):
        yield batch + second.mean(0)


def with_another_read(x):
    """The whole of an entry is read besides."""
    order = torch.randperm(len(x))
    mixed = {k: v[order] for k, v in {"x": x}.items()}
    for batch in mixed["x"].split(BATCH):
        yield batch - mixed["x"].mean(0)


def by_batches(x):
    for rows in torch.randperm(len(x)).split(BATCH):
        yield x[rows]


def all_at_once(x):
    """What is handed on is needed whole."""
    perm = torch.randperm(len(x))
    mixed = x[perm]
    yield mixed[:BATCH] + mixed.mean(0)


def of_a_choice(x):
    """The order is one of scores, and the result the best of them."""
    order = x[:, 0].argsort()
    ranked = x[order]
    for at in range(0, len(ranked), BATCH):
        yield ranked[at : at + BATCH]


def going_through(batches_of):
    def program():
        x = torch.rand(ROWS, FEATURES)

        def step(number):
            return sum(batch.square().mean().item() for batch in batches_of(x))

        return step

    return program


fires = going_through(copied)
looks_alike = going_through(by_batches)


def copies(program, path):
    return [one for one in findings_of(program, path) if one.rule == "shuffled-copy"]


def in_place():
    """The set itself is put in another order, and is there once."""
    data = {"x": torch.rand(ROWS, FEATURES)}

    def epoch():
        x = data.pop("x")
        perm = torch.randperm(len(x))
        x = x[perm]
        total = sum(x[at : at + BATCH].mean().item() for at in range(0, len(x), BATCH))
        data["x"] = x[:]
        return total

    return lambda number: epoch()


def test_each_batch_is_to_be_taken_by_its_part_of_the_order(tmp_path):
    (one,) = copies(fires, tmp_path / "run.json")
    (first,) = one.remedies
    assert (one.minor, one.bytes) == (False, NBYTES)
    assert (first.fix, first.code) == ("index_batches", "shuffled = x[perm]")
    assert first.typed == "x[perm[i : i + batch]]"
    assert NBYTES - 2 * BATCH * FEATURES * 4 <= first.saves_bytes <= NBYTES


@pytest.mark.parametrize(
    ("batches_of", "nbytes", "typed"),
    [
        (selected, NBYTES, "x[order[i : i + batch]]"),
        (
            entries,
            NBYTES + ROWS * 4,
            "{k: v[order[i : i + batch]] for k, v in data.items()}",
        ),
        (by_numpy, NBYTES, "x[order[i : i + batch]]"),
        (in_the_loop, NBYTES, "x[idx[i : i + batch]]"),
        (without_a_name, NBYTES, "x[perm[i : i + batch]]"),
        (of_a_function, NBYTES + ROWS * 4, "x[order[i : i + batch]]"),
    ],
)
def test_what_is_selected_and_split_is_such_a_copy(batches_of, nbytes, typed, tmp_path):
    (one,) = copies(going_through(batches_of), tmp_path / "run.json")
    (first,) = one.remedies
    assert (one.minor, one.bytes) == (False, nbytes)
    assert (first.fix, first.typed) == ("index_batches", typed)


@pytest.mark.parametrize(
    "batches_of",
    [
        *(by_batches, all_at_once, of_a_choice, parts_for_two_purposes, with_another_read),
        *(whole_of_a_function, replaced_by_a_function, of_scores),
    ],
)
def test_other_copies_are_left_alone(batches_of, tmp_path):
    assert copies(going_through(batches_of), tmp_path / "run.json") == []


def test_a_set_that_is_put_in_order_itself_is_no_copy(tmp_path):
    assert copies(in_place, tmp_path / "run.json") == []


class Table:
    def __init__(self):
        self.x = torch.rand(ROWS, FEATURES)

    def shuffle(self):
        order = torch.randperm(ROWS)
        self.x = self.x[order]

    def epoch(self):
        self.shuffle()
        return sum(batch.square().mean().item() for batch in self.x.split(BATCH))


class WithItems(Table):
    """Batches are taken by a slice that a variable has."""

    def __getitem__(self, number):
        rows = slice(number * BATCH, (number + 1) * BATCH)
        return self.x[rows]

    def epoch(self):
        self.shuffle()
        return sum(self[number].square().mean().item() for number in range(ROWS // BATCH))


class Shuffled(Table):
    """It is put in order once, and stays so."""

    def __init__(self):
        super().__init__()
        self.shuffle()

    def epoch(self):
        return sum(batch.square().mean().item() for batch in self.x.split(BATCH))


def of_an_object(kind):
    def program():
        table = kind()
        return lambda number: table.epoch()

    return program


@pytest.mark.parametrize("kind", [Table, WithItems])
def test_an_object_that_puts_its_set_in_order_for_each_epoch_has_it_twice(kind, tmp_path):
    (one,) = copies(of_an_object(kind), tmp_path / "run.json")
    (first,) = one.remedies
    assert (one.minor, one.bytes) == (False, NBYTES)
    assert (first.fix, first.code) == ("index_batches", "self.x = self.x[order]")
    assert first.typed == "self.x[order[i : i + batch]]"
    assert NBYTES - 2 * BATCH * FEATURES * 4 <= first.saves_bytes <= NBYTES


def test_an_object_that_puts_its_set_in_order_once_has_no_copy(tmp_path):
    assert copies(of_an_object(Shuffled), tmp_path / "run.json") == []
