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


class Characters(Corpus):
    """The table is filled by hand, as programs have it that once were of another library."""

    def __init__(self):
        text = "".join(chr(97 + number % 26) for number in range(COUNT))
        index_of = {one: at for at, one in enumerate(sorted(set(text)))}
        self.table = torch.zeros(COUNT, CLASSES)
        for at, character in enumerate(text):
            self.table[at, index_of[character]] = 1.0

    def batch(self, number):
        return self.table[number * BATCH : (number + 1) * BATCH]


class Drawings(Corpus):
    """Points in pictures are no classes."""

    def __init__(self):
        self.canvas = torch.zeros(COUNT, 4, CLASSES // 4)
        for number in range(COUNT):
            y, x = number % 4, number % (CLASSES // 4)
            self.canvas[number, y, x] = 1.0

    def batch(self, number):
        return self.canvas[number * BATCH : (number + 1) * BATCH]


class Mixed(Corpus):
    """Another method writes what is no one."""

    def __init__(self):
        index_of = {number: number for number in range(CLASSES)}
        self.table = torch.zeros(COUNT, CLASSES)
        for at in range(COUNT):
            self.table[at, index_of[at % CLASSES]] = 1.0

    def batch(self, number):
        return self.table[number * BATCH : (number + 1) * BATCH]

    def smooth(self, at):
        self.table[at] = 0.5


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


def filled_by_hand():
    return sums_of(Characters())


def mixed():
    return sums_of(Mixed())


def drawn():
    return sums_of(Drawings())


def test_ones_that_are_written_by_hand_are_a_table_too(tmp_path):
    (found,) = [
        one
        for one in findings_of(filled_by_hand, tmp_path / "run.json")
        if one.rule == "kept-one-hot"
    ]
    assert found.site.code == "self.table = torch.zeros(COUNT, CLASSES)"
    assert found.bytes == COUNT * CLASSES * 4
    for number, program in enumerate((drawn, mixed)):
        others = findings_of(program, tmp_path / f"{number}.json")
        assert "kept-one-hot" not in [one.rule for one in others]
