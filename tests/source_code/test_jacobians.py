"""Jacobians of a batch, and which of their parts a function reads."""

from __future__ import annotations

import pytest

from memprof.source_code.jacobians import diagonal_read
from memprof.source_code.program import program_of

MADE = "J = torch.autograd.functional.jacobian(f, x)\n"


@pytest.mark.parametrize(
    ("code", "read"),
    [
        (MADE + "return J.diagonal(dim1=0, dim2=2).logdet()", "J.diagonal(dim1=0, dim2=2)"),
        (MADE + "return torch.diagonal(J, 0, 0, 2)", "torch.diagonal(J, 0, 0, 2)"),
        (MADE + "J = J.diagonal(0, 0, 2)\nreturn J.det() + J.sum()", "J.diagonal(0, 0, 2)"),
        (MADE + "return J[n, :, n]", "J[n, :, n]"),
        (
            "J = jacrev(f)(x)\nreturn torch.einsum('bibj->bij', J)",
            "torch.einsum('bibj->bij', J)",
        ),
        (
            "return torch.func.jacrev(f)(x).diagonal(dim1=0, dim2=2)",
            "torch.func.jacrev(f)(x).diagonal(dim1=0, dim2=2)",
        ),
        (MADE + "return J.permute(0, 2, 1, 3)[n, n]", "J.permute(0, 2, 1, 3)[n, n]"),
        (MADE + "return J.transpose(1, 2)[n, n]", "J.transpose(1, 2)[n, n]"),
        ("J = made(f, x)\nreturn J[n, :, n]", "J[n, :, n]"),
        (
            "J = jacrev(f)(x)\nreturn torch.einsum('iij->ij', J)",
            "torch.einsum('iij->ij', J)",
        ),
        (MADE + "return J.diagonal(dim1=0, dim2=1).T", "J.diagonal(dim1=0, dim2=1)"),
        # all of it is read, or another diagonal
        ("J = jacrev(f)(x)\nreturn torch.einsum('ii->i', J)", ""),  # of one sample
        (MADE + "return J.permute(0, 2, 1, 3)[n, :, n]", ""),
        (MADE + "return J[n, n]", ""),
        (MADE + "return J.diagonal(dim1=0, dim2=1).sum()", ""),  # a divergence, of one sample
        (MADE + "return J.norm()", ""),
        (MADE + "keep(J)\nreturn J.diagonal(dim1=0, dim2=2)", ""),
        (MADE + "return J.diagonal(dim1=1, dim2=3)", ""),
        (MADE + "return J.diagonal()", ""),
        (MADE + "return J[:, 0, :]", ""),
        (MADE + "return J[0, :, 0]", ""),
        ("J = jacrev(f)(x)\nreturn torch.einsum('biaj->bij', J)", ""),
        # each sample by itself
        ("J = vmap(jacrev(f))(x)\nreturn J.diagonal(dim1=0, dim2=2)", ""),
    ],
)
def test_only_a_diagonal_of_samples_and_nothing_besides(code, read, tmp_path):
    path = tmp_path / "flow.py"
    body = "".join(f"    {line}\n" for line in code.splitlines())
    path.write_text(f"def log_det(f, x, n):\n{body}\ndef made(f, x):\n    return jacrev(f)(x)\n")
    found = diagonal_read(program_of(str(path)).at(2))
    assert (found.text if found is not None else "") == read


@pytest.mark.parametrize(
    ("code", "of_numbers"),
    [
        ("J.diagonal(dim1=0, dim2=1).T", True),
        ("torch.einsum('iij->ij', J)", True),
        ("J.diagonal(dim1=0, dim2=2)", False),
        ("torch.einsum('bibj->bij', J)", False),
    ],
)
def test_samples_are_the_first_two_dimensions_where_the_function_gives_numbers(
    code, of_numbers, tmp_path
):
    path = tmp_path / "flow.py"
    path.write_text(f"def slopes(f, x):\n    J = jacrev(f)(x)\n    return {code}\n")
    found = diagonal_read(program_of(str(path)).at(2))
    assert found.of_numbers is of_numbers
