"""summed-products: products of all pairs are made one by one, and then summed."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from tests.rules.recorded import findings_of, names

ROWS, WIDTH = 64, 64
PRODUCTS = ROWS * WIDTH * WIDTH * 4


def fires():
    """A covariance is the mean of outer products."""

    def step(number):
        x = torch.rand(ROWS, WIDTH)
        outer = x.unsqueeze(2) * x.unsqueeze(1)
        return outer.mean(0).sum().item()

    return step


def looks_alike():
    """A mask is multiplied before the mean: there are no more products than values."""

    def step(number):
        values, mask = torch.rand(ROWS, WIDTH, WIDTH), torch.ones(ROWS, WIDTH)
        masked = values * mask.unsqueeze(-1)
        return masked.sum(1).sum().item()

    return step


def in_one_statement():
    def step(number):
        x = torch.rand(ROWS, WIDTH)
        return (x[:, :, None] * x[:, None]).sum(dim=0).amax().item()

    return step


def outer(a, b):
    return torch.einsum("ni,nj->nij", a, b)


def by_a_function():
    """What another function multiplies is summed where it is called."""

    def step(number):
        x = torch.rand(ROWS, WIDTH)
        return outer(x, x).sum(dim=0).div(ROWS - 1).amax().item()

    return step


def by_einsum():
    def step(number):
        x = torch.rand(ROWS, WIDTH)
        pairs = torch.einsum("ni,nj->nij", x, x)
        return pairs.mean(0).amax().item()

    return step


def outer_products(a, b):
    return a[:, :, None] * b[:, None]


def also_largest():
    """One caller of the function sums, and another one needs each product."""

    def step(number):
        x = torch.rand(ROWS, WIDTH)
        return outer_products(x, x).sum(0).amax().item() + outer_products(x, x).amax().item()

    return step


def weights_by_einsum():
    """A weight for each row and column: no more products than values."""

    def step(number):
        values, weights = torch.rand(ROWS, WIDTH, WIDTH), torch.rand(ROWS, WIDTH)
        weighed = torch.einsum("nij,nj->nij", values, weights)
        return weighed.sum(0).amax().item()

    return step


class Contrast(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.similarity = torch.nn.CosineSimilarity(dim=2)

    def forward(self, x):
        one = x.unsqueeze(1)
        return self.similarity(one, x.unsqueeze(0))


def cosines_by_a_module():
    contrast = Contrast()

    def step(number):
        contrast(torch.rand(WIDTH, ROWS, requires_grad=True)).exp().sum().backward()

    return step


def cosines_of_a_module_without_gradients():
    contrast = Contrast()

    def step(number):
        return contrast(torch.rand(WIDTH, ROWS)).amax().item()

    return step


class Scaled(torch.nn.Module):
    """What compares is a part of a part of the model, which is handed the operands."""

    def __init__(self):
        super().__init__()
        self.cos = torch.nn.CosineSimilarity(dim=-1)

    def forward(self, x, y):
        return self.cos(x, y) / 0.05


class Loss(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.sim = Scaled()

    def forward(self, x):
        return self.sim(x.unsqueeze(1), x.unsqueeze(0)).exp().sum()


def cosines_of_what_is_handed_over():
    loss = Loss()

    def step(number):
        loss(torch.rand(WIDTH, ROWS, requires_grad=True)).backward()

    return step


def cosines():
    def step(number):
        x = torch.rand(WIDTH, ROWS)
        scores = F.cosine_similarity(x[:, None], x[None], dim=-1)
        return scores.amax().item()

    return step


@pytest.mark.parametrize(
    "program",
    [
        cosines_by_a_module,
        cosines_of_a_module_without_gradients,
        cosines_of_what_is_handed_over,
    ],
)
def test_the_module_that_compares_makes_the_same_products(program, tmp_path):
    found = findings_of(program, tmp_path / "run.json")[0]
    assert (found.rule, found.remedies[0].fix) == ("summed-products", "einsum")


def test_cosines_of_all_pairs_are_such_products(tmp_path):
    found = findings_of(cosines, tmp_path / "run.json")[0]
    assert (found.rule, found.remedies[0].fix) == ("summed-products", "einsum")
    assert found.bytes >= PRODUCTS


def of_squares():
    """What is summed is no product of pairs any more."""

    def step(number):
        x = torch.rand(ROWS, WIDTH)
        outer = x.unsqueeze(2) * x.unsqueeze(1)
        return outer.square().mean(0).sum().item()

    return step


@pytest.mark.parametrize("program", [fires, in_one_statement, by_einsum, by_a_function])
def test_the_products_are_told(program, tmp_path):
    (found,) = findings_of(program, tmp_path / "run.json")
    first, second = found.remedies
    assert (found.rule, found.minor, found.bytes) == ("summed-products", False, PRODUCTS)
    assert (first.fix, second.fix) == ("einsum", "chunk")
    assert first.peak_after < 4 * ROWS * WIDTH * 4


@pytest.mark.parametrize("program", [looks_alike, of_squares, also_largest, weights_by_einsum])
def test_nothing_is_said_of_what_no_product_of_matrices_would_sum(program, tmp_path):
    assert "summed-products" not in names(program, tmp_path / "run.json")


def weighed_by_a_mask():
    """Of a table of all pairs one half is summed: the other half is multiplied by 0."""
    upper = torch.triu(torch.ones(ROWS, WIDTH, WIDTH)[0])

    def step(number):
        x = torch.rand(ROWS, WIDTH)
        products = x.unsqueeze(2) * x.unsqueeze(1)
        return (products * upper).sum(dim=(1, 2)).amax().item()

    return step


def test_products_of_which_a_mask_takes_some_are_summed_as_well(tmp_path):
    found = findings_of(weighed_by_a_mask, tmp_path / "run.json")[0]
    assert (found.rule, found.remedies[0].fix) == ("summed-products", "einsum")
    assert found.bytes >= PRODUCTS


def by_einsum(x):
    return torch.einsum("ni,nj->nij", x, x).mean(0)


def by_columns_and_rows(x):
    outer = torch.bmm(x.unsqueeze(2), x.unsqueeze(1))
    return outer.sum(dim=0) / len(x)


def by_an_operator(x):
    return (x[..., None] @ x[:, None]).mean(0)


def by_views(x):
    columns = x.view(len(x), WIDTH, 1)
    rows = x.view(len(x), 1, -1)
    return columns.mul(rows).sum(0)


def by_expanded_views(x):
    first = x.unsqueeze(2).expand(-1, -1, WIDTH)
    second = x.unsqueeze(1).expand(-1, WIDTH, -1)
    return torch.mul(first, second).mean(dim=0)


def value_by_value(x):
    """Both have the same shape: there are no more products than values."""
    table = torch.rand(len(x), WIDTH * WIDTH)
    return table.view(len(x), 1, -1).mul(table.view(len(x), 1, -1)).sum(0)


def of_each_row(x):
    """The matrix of each row is read, too."""
    outer = torch.einsum("ni,nj->nij", x, x)
    return outer.mean(0) + outer.amax(0)


def of_one_operand(x):
    """A table of weights has a place for each value: there are no more products than values."""
    table = torch.rand(len(x), WIDTH, WIDTH)
    return torch.einsum("nij,nj->nij", table, x).mean(0)


def stepwise(matrix_of):
    return lambda: lambda number: matrix_of(torch.rand(ROWS, WIDTH)).sum().item()


@pytest.mark.parametrize(
    "matrix_of", [by_einsum, by_columns_and_rows, by_an_operator, by_views, by_expanded_views]
)
def test_products_that_a_function_of_torch_makes_are_told(matrix_of, tmp_path):
    found = findings_of(stepwise(matrix_of), tmp_path / "run.json")[0]
    assert (found.rule, found.minor, found.bytes) == ("summed-products", False, PRODUCTS)
    assert (found.remedies[0].fix, found.remedies[0].saves_bytes > PRODUCTS // 2) == (
        "einsum",
        True,
    )


@pytest.mark.parametrize("matrix_of", [of_each_row, of_one_operand, value_by_value])
def test_nothing_is_said_of_products_that_are_read_or_are_few(matrix_of, tmp_path):
    assert "summed-products" not in names(stepwise(matrix_of), tmp_path / "run.json")


def of_places():
    """A table of sums has as many values as each feature has places."""

    def step(number):
        features = torch.rand(1, 32, 1024)
        gram = torch.einsum("ncp,ndp->ncdp", features, features).sum(-1) / 1024
        return gram.square().mean().item()

    return step


def test_an_einsum_that_is_summed_is_no_broadcast_by_mistake(tmp_path):
    found = [one for one in findings_of(of_places, tmp_path / "run.json") if not one.minor]
    assert [one.rule for one in found] == ["summed-products"]
    assert found[0].bytes == 32 * 32 * 1024 * 4
