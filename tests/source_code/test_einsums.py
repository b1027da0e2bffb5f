"""What a call of `einsum` computes of its two operands."""

from __future__ import annotations

import ast

import pytest

from memprof.source_code.einsums import einsum_of


def whole(code):
    return einsum_of(ast.parse(code).body[0].value)


@pytest.mark.parametrize(
    ("equation", "factors"),
    [
        ("ij,jk->ik", ["q", "k"]),
        ("ij, jk", ["q", "k"]),
        ("bhid,bhjd->bhij", ["q", "k.mT"]),
        ("...id,...jd->...ij", ["q", "k.mT"]),
        ("nd,nc->cd", ["k.mT", "q"]),
        ("bihd,bjhd->bhij", None),
        ("ij,ij->i", None),
        ("ij,jk->ijk", None),
        ("ij,kl->ik", None),
    ],
)
def test_a_product_of_matrices_has_two_factors(equation, factors):
    found = whole(f"torch.einsum({equation!r}, q, k)").factors
    assert (found and [*map(ast.unparse, found)]) == factors


@pytest.mark.parametrize(
    ("equation", "is_product", "is_sum"),
    [
        ("bihd,bjhd->bhij", True, False),
        ("id,bjd->bij", True, False),
        ("ij,ij->i", False, True),
        ("ij,ij", False, True),
        ("ij,ji->", False, True),
        ("ij,ij->ij", False, False),
        ("ij,j->i", False, False),
    ],
)
def test_values_are_multiplied_one_by_one_or_row_by_column(equation, is_product, is_sum):
    found = whole(f"torch.einsum({equation!r}, q, k)")
    assert (found.is_product, found.is_sum_of_values) == (is_product, is_sum)


@pytest.mark.parametrize(
    "code",
    [
        'torch.einsum("ij->i", q)',
        'torch.einsum("ii,ij->j", q, k)',
        'torch.einsum("ij,jk->il", q, k)',
        "torch.einsum(equation, q, k)",
        'torch.einsum("ij,jk->ik", *both)',
        'torch.einsum("i,j,k->ijk", a, b, c)',
        "torch.matmul(q, k)",
    ],
)
def test_other_calls_are_none(code):
    assert whole(code) is None
