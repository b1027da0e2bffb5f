"""lbfgs-history: where the program says how many pairs are kept."""

from __future__ import annotations

import pytest
import torch

from tests.rules.recorded import names
from tests.rules.test_lbfgs_history import fitting

WIDTH = 256


@pytest.mark.parametrize(("size", "is_told"), [(20, False), (40, False), (50, True)])
def test_a_history_that_was_chosen_counts_beyond_forty_pairs(size, is_told, tmp_path):
    def made(parameters):
        return torch.optim.LBFGS(parameters, lr=1e-3, max_iter=4, history_size=size)

    rules = names(lambda: fitting(made, WIDTH), tmp_path / "run.json")
    assert ("lbfgs-history" in rules) is is_told
