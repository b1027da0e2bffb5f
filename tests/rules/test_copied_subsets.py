"""copied-subsets: the rows of each fold are copied out of a data set that stays as well."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import Subset, TensorDataset

from tests.rules.recorded import findings_of, names

ROWS, WIDTH, FOLDS = 512, 256, 4
WHOLE = ROWS * WIDTH * 4


class KFold:
    """Cuts a set into parts, as scikit-learn does: by arrays of indices."""

    def __init__(self, parts):
        self.parts = parts

    def split(self, rows):
        for rest in torch.arange(len(rows)).chunk(self.parts):
            chosen = torch.ones(len(rows), dtype=torch.bool)
            chosen[rest] = False
            yield chosen.nonzero().squeeze(1), rest


def data():
    return torch.rand(ROWS, WIDTH), torch.arange(ROWS)


def trained(folds):
    def step(number):
        part = folds[number % FOLDS][0]
        x, _ = part[number]
        return (x * 2).sum().item()

    return step


def fires():
    """Four folds, each a copy of the whole set in two parts."""
    x, y = data()
    folds = []
    for train, rest in KFold(FOLDS).split(y):
        folds.append((TensorDataset(x[train], y[train]), TensorDataset(x[rest], y[rest])))
    step = trained(folds)
    return lambda number: step(number) + float(len(x))


def plain_rows():
    """The same without data sets."""
    x, y = data()
    folds = []
    for train, _ in KFold(FOLDS).split(y):
        folds.append((list(zip(x[train], y[train], strict=True)), x))
    return trained(folds)


def looks_alike():
    """Indices alone are kept."""
    x, y = data()
    whole = TensorDataset(x, y)
    return trained([(Subset(whole, train), whole) for train, _ in KFold(FOLDS).split(y)])


def set_itself_goes():
    """One part is copied, and the set is dropped."""
    x, y = data()
    order = torch.randperm(ROWS)
    folds = [(TensorDataset(x[order], y[order]), None)] * FOLDS
    del x
    return trained(folds)


def test_copies_of_folds(tmp_path):
    found = findings_of(fires, tmp_path / "run.json", steps=24)[0]
    first = found.remedies[0]
    assert (found.rule, first.fix, found.minor) == ("copied-subsets", "subset", False)
    # of each fold the rows and their numbers of both parts
    assert found.bytes == FOLDS * (WHOLE + ROWS * 8)
    assert first.peak_after == pytest.approx(WHOLE, rel=0.03)
    assert found.title.endswith("are 4 copies of rows of `x`, which stays as well")
    assert first.typed == "torch.utils.data.Subset(TensorDataset(x, y), train)"


def test_rows_without_a_data_set(tmp_path):
    assert "copied-subsets" in names(plain_rows, tmp_path / "run.json")


@pytest.mark.parametrize("program", [looks_alike, set_itself_goes])
def test_what_is_needed(program, tmp_path):
    assert "copied-subsets" not in names(program, tmp_path / "run.json")
