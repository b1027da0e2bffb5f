"""full-factor: a decomposition makes a square factor, of which the first columns are read."""

from __future__ import annotations

import pytest
import torch

from tests.rules.recorded import findings_of

ROWS, COLUMNS = 1024, 32


def fires():
    """Modes of a tall matrix."""

    def step(number):
        u, s, vh = torch.linalg.svd(torch.rand(ROWS, COLUMNS))
        modes = u[:, :4] * s[:4]
        return (modes @ vh[:4]).sum().item()

    return step


def of_wide_ones():
    def step(number):
        snapshots = torch.rand(2, COLUMNS, ROWS // 2)
        _, _, axes = torch.linalg.svd(snapshots)
        return axes[0, :4].sum().item()

    return step


def looks_alike():
    """The rest of the square factor spans the null space, which is what is wanted."""

    def step(number):
        u, s, vh = torch.linalg.svd(torch.rand(ROWS, COLUMNS))
        return u[:, len(s) :].square().sum().item() + vh[:4].sum().item()

    return step


def of_square_axes():
    """Of the tall matrix's factors one is square as it is, and may be read whole."""

    def step(number):
        _, s, vh = torch.linalg.svd(torch.rand(ROWS, COLUMNS), full_matrices=True)
        return (vh.T / s).sum().item()

    return step


def of_all_axes():
    """The axes of a wide matrix are completed, and read whole."""

    def step(number):
        _, s, vh = torch.linalg.svd(torch.rand(COLUMNS, ROWS))
        return vh.sum().item() / s[0].item()

    return step


def thin():
    def step(number):
        u, s, vh = torch.linalg.svd(torch.rand(ROWS, COLUMNS), full_matrices=False)
        return (u[:, :4] * s[:4] @ vh[:4]).sum().item()

    return step


class Modes:
    def __init__(self, rank):
        self.rank = rank

    def __call__(self, matrix):
        q, _ = torch.linalg.qr(matrix, mode="complete")
        return q[..., : self.rank]


def given_to_a_model():
    """What a model is given is a view of the full factor, which stays as long."""
    modes, model = Modes(8), torch.nn.Linear(8, 1)

    def step(number):
        basis = modes(torch.rand(ROWS, COLUMNS))
        model(basis).mean().backward()
        model.zero_grad()

    return step


def by_one_name():
    """The factors are read as attributes of what the older function returns."""

    def step(number):
        factors = torch.svd(torch.rand(ROWS, COLUMNS), some=False)
        return factors.U.narrow(1, 0, 4).sum().item() + factors.S[0].item()

    return step


def null_space():
    """The columns after those of the matrix are what is wanted."""

    def step(number):
        q, _ = torch.linalg.qr(torch.rand(ROWS, COLUMNS), mode="complete")
        return q[:, COLUMNS:].sum().item()

    return step


def handed_on():
    """Whoever is given all factors may read them whole."""

    def norm_of(factors):
        return factors.U.norm().item()

    def step(number):
        factors = torch.svd(torch.rand(ROWS, COLUMNS), some=False)
        return norm_of(factors) + factors.U.narrow(1, 0, 4).sum().item()

    return step


def factors(program, path):
    return [one for one in findings_of(program, path) if one.rule == "full-factor"]


def test_the_factor_is_found_and_what_a_thin_one_saves(tmp_path):
    (found,) = factors(fires, tmp_path / "r.json")
    (first,) = found.remedies
    assert (found.minor, found.bytes) == (False, ROWS * ROWS * 4)
    assert first.saves_bytes == (ROWS - COLUMNS) * ROWS * 4
    assert (first.fix, first.code) == ("thin_factors", found.site.code)


def test_nothing_reads_the_other_factors(tmp_path):
    (found,) = factors(of_wide_ones, tmp_path / "r.json")
    assert found.bytes == 2 * (ROWS // 2) ** 2 * 4
    assert found.site.code == "_, _, axes = torch.linalg.svd(snapshots)"


def test_the_factor_that_is_square_as_it_is_may_be_read_whole(tmp_path):
    (found,) = factors(of_square_axes, tmp_path / "r.json")
    assert found.bytes == ROWS * ROWS * 4
    assert found.remedies[0].saves_bytes == (ROWS - COLUMNS) * ROWS * 4


@pytest.mark.parametrize("program", [looks_alike, thin, of_all_axes, null_space, handed_on])
def test_factors_that_are_needed_are_left_alone(program, tmp_path):
    assert not factors(program, tmp_path / "r.json")


@pytest.mark.parametrize(
    ("program", "typed"), [(given_to_a_model, 'mode="reduced"'), (by_one_name, "some=True")]
)
def test_each_function_has_its_own_argument_for_thin_factors(program, typed, tmp_path):
    (found,) = factors(program, tmp_path / "r.json")
    (first,) = found.remedies
    assert (first.fix, first.typed) == ("thin_factors", typed)
    alive = found.bytes // (ROWS * ROWS * 4)
    assert found.bytes == alive * ROWS * ROWS * 4
    assert first.saves_bytes == pytest.approx(alive * (ROWS - COLUMNS) * ROWS * 4, rel=0.05)
