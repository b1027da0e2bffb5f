"""gathered-weights: a matrix is copied for each row that is multiplied by it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.rules.recorded import findings_of, names, peak_of

ROWS, KINDS, WIDTH = 2000, 8, 32


class Experts(nn.Module):
    """A matrix for each kind of row."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(KINDS, WIDTH, WIDTH) / WIDTH)
        self.bias = nn.Parameter(torch.zeros(KINDS, WIDTH))


class Gathered(Experts):
    def forward(self, rows, kinds):
        own = self.weight[kinds]
        return torch.bmm(rows.unsqueeze(1), own).squeeze(1)


class InPlace(Experts):
    def forward(self, rows, kinds):
        return torch.einsum("ni,nio->no", rows, self.weight[kinds])


class LookedUp(nn.Module):
    """The matrices are rows of an embedding."""

    def __init__(self):
        super().__init__()
        self.matrices = nn.Embedding(KINDS, WIDTH * WIDTH)

    def forward(self, rows, kinds):
        weight = self.matrices(kinds).view(-1, WIDTH, WIDTH)
        return torch.bmm(rows.unsqueeze(1), weight).squeeze(1)


class Computed(Experts):
    """Of a name: what the matrices are made of is smaller still."""

    def forward(self, rows, kinds):
        weight = self.weight * 2
        own = torch.index_select(weight, 0, kinds)
        return (rows.unsqueeze(1) @ own).squeeze(1)


class ComputedElsewhere(Experts):
    """A method of the program's makes what the name stands for."""

    def matrices(self):
        return self.weight * 2

    def forward(self, rows, kinds):
        weight = self.matrices()
        own = weight.index_select(0, kinds)
        return torch.bmm(rows.unsqueeze(1), own).squeeze(1)


class Together(Experts):
    def forward(self, rows, kinds):
        out = rows.new_zeros(len(rows), WIDTH)
        for kind in range(KINDS):
            own = (kinds == kind).nonzero().squeeze(1)
            out = out.index_add(0, own, rows[own] @ self.weight[kind])
        return out


class AlsoRead(Experts):
    """The copies are returned: they are what it is for."""

    def forward(self, rows, kinds):
        own = self.weight[kinds]
        return torch.bmm(rows.unsqueeze(1), own).squeeze(1) + own.sum((1, 2))[:, None]


class OfTheirOwn(nn.Module):
    """Nearly as many matrices as rows: there is nothing to share."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(ROWS, WIDTH, WIDTH) / WIDTH)

    def forward(self, rows, kinds):
        own = self.weight[kinds]
        return torch.bmm(rows.unsqueeze(1), own).squeeze(1)


def training(kind_of_model):
    net = kind_of_model()
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)

    def step(_):
        rows, kinds = torch.randn(ROWS, WIDTH), torch.randint(0, KINDS, (ROWS,))
        net(rows, kinds).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def fires():
    return training(Gathered)


def looks_alike():
    return training(OfTheirOwn)


@pytest.mark.parametrize(
    ("kind_of_model", "code", "source"),
    [
        (Gathered, "own = self.weight[kinds]", "self.weight"),
        (InPlace, 'return torch.einsum("ni,nio->no", rows, self.weight[kinds])', "self.weight"),
        (
            LookedUp,
            "weight = self.matrices(kinds).view(-1, WIDTH, WIDTH)",
            "self.matrices.weight",
        ),
        (Computed, "own = torch.index_select(weight, 0, kinds)", "weight"),
        (ComputedElsewhere, "own = weight.index_select(0, kinds)", "weight"),
    ],
)
def test_the_index_is_told_and_of_what_it_copies(kind_of_model, code, source, tmp_path):
    found = findings_of(lambda: training(kind_of_model), tmp_path / "run.json")
    (one,) = [finding for finding in found if finding.rule == "gathered-weights"]
    assert one.site.code == code
    assert f"copies of `{source}`" in one.title
    assert f"{ROWS // KINDS} times as large" in one.remedies[0].why
    assert one.remedies[0].fix == "multiply_by_kind"
    assert not one.minor


def test_what_it_promises_is_what_the_change_saves(tmp_path):
    found = findings_of(fires, tmp_path / "run.json")
    (one,) = [finding for finding in found if finding.rule == "gathered-weights"]
    findings_of(lambda: training(Together), tmp_path / "fixed.json")
    before, after = (peak_of(tmp_path / name) for name in ("run.json", "fixed.json"))
    assert one.remedies[0].saves_bytes == pytest.approx(before - after, rel=0.1)


def test_nothing_is_said_where_the_copies_are_needed_or_are_none(tmp_path):
    for kind_of_model in (OfTheirOwn, AlsoRead, Together):
        found = names(lambda model=kind_of_model: training(model), tmp_path / "run.json")
        assert "gathered-weights" not in found, kind_of_model


class Bootstrap:
    """Days are drawn with all assets, and every one is multiplied by the same weights."""

    def __init__(self):
        self.returns = torch.randn(250, WIDTH)

    def paths(self, days, weights):
        draws = self.returns[days]
        return draws @ weights


class Projected(Bootstrap):
    def paths(self, days, weights):
        return (self.returns @ weights)[days]


class EachItsOwn(Bootstrap):
    """Each row is multiplied by a column of its own: it has to be gathered."""

    def __init__(self):
        self.returns = torch.randn(KINDS, WIDTH, WIDTH)

    def paths(self, days, weights):
        column = torch.randn(len(days), WIDTH).unsqueeze(-1)
        draws = self.returns[days]
        return torch.matmul(draws, column)


class HandedItsOwn(EachItsOwn):
    """The same, and another function gives the columns their dimension."""

    def multiplied(self, days, column):
        draws = self.returns[days]
        return draws @ column

    def paths(self, days, weights):
        column = torch.randn(len(days), WIDTH)
        return self.multiplied(days, column[:, :, None])


def drawing(kind, shape, most):
    job = kind()
    return lambda _: job.paths(torch.randint(most, shape), torch.rand(WIDTH)).mean().item()


def test_what_all_rows_are_multiplied_by_comes_before_they_are_gathered(tmp_path):
    program = lambda kind: lambda: drawing(kind, (100, 250), 250)  # noqa: E731
    (one,) = findings_of(program(Bootstrap), tmp_path / "run.json")
    first = one.remedies[0]
    assert (one.rule, one.minor, one.bytes) == ("gathered-weights", False, 100 * 250 * WIDTH * 4)
    assert (first.fix, first.typed) == ("transform_nodes", "(self.returns @ weights)[days]")
    findings_of(program(Projected), tmp_path / "fixed.json")
    before, after = (peak_of(tmp_path / name) for name in ("run.json", "fixed.json"))
    assert first.saves_bytes == pytest.approx(before - after, rel=0.1)
    for kind in (EachItsOwn, HandedItsOwn):
        own = findings_of(lambda one=kind: drawing(one, (ROWS,), KINDS), tmp_path / "own.json")
        assert own[0].remedies[0].fix == "multiply_by_kind", kind
