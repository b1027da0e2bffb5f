"""kept-one-hot: a one-hot table of a whole data set is kept, of which each step reads a part."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from tests.rules.recorded import findings_of

COUNT, CLASSES, BATCH = 2048, 32, 16


class Corpus:
    def __init__(self):
        self.ids = torch.arange(COUNT) % CLASSES
        self.inputs = F.one_hot(self.ids, CLASSES).float()

    def batch(self, number):
        return self.inputs[number * BATCH : (number + 1) * BATCH]


class Indices(Corpus):
    """The indices are kept, and each batch is encoded."""

    def __init__(self):
        self.ids = torch.arange(COUNT) % CLASSES

    def batch(self, number):
        return F.one_hot(self.ids[number * BATCH : (number + 1) * BATCH], CLASSES).float()


class Projected(Corpus):
    """All of the table is read at once."""

    def __init__(self):
        self.ids = torch.arange(COUNT) % CLASSES
        self.rows = F.one_hot(self.ids, CLASSES).float()

    def batch(self, number):
        return self.rows.mean(0) * number


def sums_of(corpus):
    def step(number):
        (corpus.batch(number) * 2).sum().item()

    return step


def fires():
    return sums_of(Corpus())


def looks_alike():
    return sums_of(Indices())


def test_the_indices_are_to_be_kept(tmp_path):
    found, *_ = findings_of(fires, tmp_path / "run.json")
    (remedy,) = found.remedies
    assert found.rule == "kept-one-hot"
    assert found.bytes == COUNT * CLASSES * 4
    assert (remedy.fix, remedy.code) == (
        "class_indices",
        "self.inputs = F.one_hot(self.ids, CLASSES).float()",
    )


def test_a_table_that_is_read_whole_is_none(tmp_path):
    found = findings_of(lambda: sums_of(Projected()), tmp_path / "run.json")
    assert [one.site.code for one in found if one.rule == "kept-one-hot"] == []
