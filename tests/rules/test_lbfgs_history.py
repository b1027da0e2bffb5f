"""lbfgs-history: L-BFGS keeps a hundred pairs of vectors, each as long as all parameters."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from memprof.loading import load
from memprof.rules.unexplained_growth import unexplained_growth
from memprof.rules.waste.lbfgs_history import RULE, History
from memprof.source_code.program import source_of
from memprof.views.examination import examine
from tests.rules.recorded import findings_of

WIDTH = 64
VECTOR = (WIDTH * WIDTH + WIDTH) * 4


def training(width=WIDTH, lr=0.5, **options):
    def made(parameters):
        return torch.optim.LBFGS(parameters, lr=lr, max_iter=4, **options)

    return fitting(made, width)


def fitting(make, width):
    """Steps of the optimizer that ``make`` makes of a layer's parameters."""
    torch.manual_seed(0)
    model = nn.Linear(width, width)
    x, y = torch.randn(32, width), torch.randn(32, width)
    optimizer = make(model.parameters())

    def closure():
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        return loss

    return lambda number: optimizer.step(closure)


def fires():
    return training()


def looks_alike():
    """The history is short."""
    return training(history_size=10)


def test_a_short_history_saves_all_older_pairs(tmp_path):
    (found,) = [
        one for one in findings_of(fires, tmp_path / "run.json") if one.rule == "lbfgs-history"
    ]
    (only,) = found.remedies
    vectors = 2 * found.match.pairs
    assert f"are {found.match.pairs} pairs of vectors" in found.title
    assert (
        0 <= found.bytes - vectors * VECTOR < 2 * VECTOR
    )  # one more, and a number, of a step's end
    assert only.fix == "history_size"
    assert only.patch == ""  # it may be among the options
    assert only.saves_bytes >= (vectors - 20 - 2) * VECTOR


def by_name(name, parameters, **options):
    return {"lbfgs": torch.optim.LBFGS, "sgd": torch.optim.SGD}[name](parameters, **options)


def test_the_size_is_to_be_changed_where_it_is_given(tmp_path):
    def program():
        return fitting(lambda p: by_name("lbfgs", p, max_iter=4, history_size=50), WIDTH)

    (found,) = [
        one for one in findings_of(program, tmp_path / "run.json") if one.rule == "lbfgs-history"
    ]
    assert 'by_name("lbfgs", p, max_iter=4, history_size=50)' in found.remedies[0].code


def test_pairs_of_the_last_steps_count_as_well(tmp_path):
    (found,) = findings_of(lambda: training(width=256, lr=1e-3), tmp_path / "run.json", 12)
    # four a step; none in the very first iteration, and one comes after the peak
    assert (found.rule, found.match.pairs) == ("lbfgs-history", 12 * 4 - 2)


def test_growth_of_a_history_that_is_not_full_yet_is_explained(tmp_path):
    path = tmp_path / "run.json"
    found = findings_of(lambda: training(width=512, lr=1e-3), path)
    examination = examine(load(path))
    assert [one.rule for one in found if not one.minor] == ["lbfgs-history"]
    assert unexplained_growth(examination, found) is None
    assert unexplained_growth(examination, ()) is None  # it is bounded, whatever is said of it


@pytest.mark.parametrize(
    ("call", "patch", "says_default"),
    [
        ("LBFGS(p)", "LBFGS(p, history_size=10)", True),
        ("LBFGS(p, history_size=50)", "LBFGS(p, history_size=10)", False),
        ("LBFGS(p, history_size=10)", "", False),
        ("LBFGS(p, history_size=size)", "", False),
        ("LBFGS(p, 1, 20, None, 1e-7, 1e-9, 50)", "", False),
        ("LBFGS(p, *rest)", "", False),
        ("LBFGS(p, **options)", "", False),
    ],
)
def test_a_size_that_is_given_is_not_called_the_default(call, patch, says_default, tmp_path):
    file = tmp_path / "train.py"
    file.write_text(f"from torch.optim import LBFGS\n\noptimizer = {call}\n")
    program = source_of(str(file))
    case = SimpleNamespace(programs=[program], site=None)
    (advice,) = RULE.advice(History(row=0, rows=np.arange(60), nbytes=1, pairs=30), case)
    added = [one[1:] for one in advice.patch.splitlines() if one.startswith("+opt")]
    assert added == ([f"optimizer = {patch}"] if patch else [])
    assert ("default" in advice.why) == says_default
