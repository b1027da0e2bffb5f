"""Values that nobody computed: what a program finds, and which of its lines are said to have read some."""

from __future__ import annotations

import json
import re

import pytest

from memprof.dry_run.library import Source
from memprof.dry_run.values import ValueRead

PROGRAM = """\
import json
import torch

model = torch.nn.Linear(10, 10).cuda()
x = torch.randn(64, 10, device="cuda")
loss = model(x).sum()
found = {"finite loss": bool(torch.isfinite(loss))}
found["finite"] = bool(x.isfinite().all()), torch.isfinite(x).all(1).all().cpu().item()
found["both"] = bool(loss.isfinite() & torch.isfinite(loss)), bool(loss.isfinite().logical_and(loss.isfinite()))
found["not finite"] = bool((~torch.isfinite(x)).any()), bool(torch.isnan(loss)), bool(torch.isinf(x).any())
found["no such condition"] = bool((x > 0).all()), [bool((torch.isfinite(x), x > 0)[1].all()) for _ in range(3)]
found["normal"] = torch.normal(x, x.abs()).shape, torch.normal(0.0, x.abs()).shape
weights = torch.ones(64, dtype=torch.int, device="cuda") * 2
found["cov"] = torch.cov(x.T, fweights=weights, aweights=x[:, 0].abs()).shape
found["eig"] = torch.linalg.eig(x[:10] @ x[:10].T).eigenvalues.shape
found["multinomial"] = torch.multinomial(x.softmax(-1), 1).shape
found["repeated"] = torch.repeat_interleave(x, (x[:, 0] > 0).long(), dim=0).shape
try:
    torch.normal(x, torch.rand(7, 3, device="cuda"))
except RuntimeError as error:
    found["after an error"] = loss.item(), x.sum().item()
square = torch.randn(8, 8, device="cuda", requires_grad=True)
square[square > 0].sum().backward()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(dry_run, tmp_path_factory) -> tuple[dict, list[str]]:
    """What the program found, and what the report says was not seen."""
    folder = tmp_path_factory.mktemp("values")
    (folder / "values.py").write_text(PROGRAM)
    done = dry_run("--gpu", "a100-80gb", "--json", "-o", "run.json", "values.py", cwd=folder)
    assert done.returncode == 0, done.stderr[-3000:]
    first, _, rest = done.stdout.partition("\n")
    return json.loads(first), json.loads(rest)["not_seen"]


def test_values_are_finite_and_every_other_condition_is_false(found):
    told, _ = found
    assert told["finite loss"]
    assert told["finite"] == told["both"] == [True, True]
    assert told["not finite"] == [False, False, False]
    assert told["no such condition"] == [False, [False, False, False]]


def test_operators_that_check_their_arguments_run(found):
    told, _ = found
    assert told["normal"] == [[64, 10], [64, 10]]
    assert told["cov"] == [10, 10]
    assert told["eig"] == [10]
    assert told["multinomial"] == [64, 1]
    assert told["repeated"] == [0, 10]


def test_an_operator_that_raises_leaves_no_answer_to_the_next_reading(found):
    assert found[0]["after an error"] == [0.0, 0.0]


def test_each_line_that_read_a_value_is_listed_with_what_it_got(found):
    lines = PROGRAM.splitlines()
    readings = {}
    for note in found[1]:
        place = re.search(
            r"values\.py:(\d+) in <module> read \d+ B from the device.*: (.*), ", note
        )
        if place:
            readings[lines[int(place[1]) - 1].split("]")[0]] = place[2]
    readings.pop('found["multinomial"', None)  # torch 2.4 reads what later ones check on the device
    assert readings == {
        'found = {"finite loss": bool(torch.isfinite(loss))}': "that they are finite",
        'found["finite"': "that they are finite",
        'found["both"': "that they are finite",
        'found["not finite"': "zeros",
        'found["no such condition"': "zeros",
        'found["cov"': "zeros",
        'found["eig"': "zeros",  # whether it converged
        'found["repeated"': "zeros",
        '    found["after an error"': "zeros",
        "square[square > 0": "zeros",
    }


def test_a_reading_in_a_thread_of_autograd_has_no_line():
    assert str(ValueRead("", 0, "", 8, Source.ZEROS, 2)) == (
        "the backward pass read 8 B from the device 2 times: zeros, because no kernel computed "
        "anything"
    )
