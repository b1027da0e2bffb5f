"""largest: one tensor makes much of the peak, and nothing more is known of it."""

from __future__ import annotations

import torch
from torch import nn

from tests.rules.recorded import findings_of


def fires():
    def step(number):
        queries, keys = torch.randn(512, 32), torch.randn(1024, 32)
        scores = queries @ keys.T
        scores.argmax(1).sum().item()

    return step


def looks_alike():
    """A large table that is looked up in: a parameter, and no result."""
    table = nn.Embedding(4096, 256)

    def step(number):
        table(torch.arange(64)).sum().backward()
        table.zero_grad()

    return step


def only_in_the_backward_pass():
    images = torch.randn(8, 8, 128, 128, requires_grad=True)
    pool = nn.AvgPool2d(8)

    def step(number):
        loss = pool(images).square().sum()
        torch.autograd.grad(loss, [images])

    return step


def test_in_a_backward_pass_it_is_at_the_line_that_calls_the_module(tmp_path):
    found = findings_of(only_in_the_backward_pass, tmp_path / "run.json")
    (found,) = [one for one in found if one.rule == "largest"]
    assert "pool(images)" in found.site.code
    assert found.title.endswith("made in a backward pass")
    assert found.remedies == ()  # what learns needs it, and its module makes it at once


def test_a_part_of_it_would_do(tmp_path):
    (found,) = [one for one in findings_of(fires, tmp_path / "run.json") if one.rule == "largest"]
    assert found.bytes == 512 * 1024 * 4
    assert found.match.tentative
    assert found.title.endswith("are one tensor")
    assert found.remedies[0].fix == "chunk"


def of_a_library():
    """A library's function makes the scores of all pairs, of which the best are looked for."""
    code = "def cos_sim(a, b):\n    return a @ b.T\n"
    namespace: dict[str, object] = {}
    exec(compile(code, "/x/site-packages/library/scores.py", "exec"), namespace)
    cos_sim = namespace["cos_sim"]

    def step(number):
        scores = cos_sim(torch.randn(512, 32), torch.randn(1024, 32))
        scores.fill_diagonal_(-1.0)
        values, _ = scores.topk(5, dim=1)
        return values

    return step


def read_otherwise():
    step_of_all = of_a_library()
    cos_sim = step_of_all.__closure__[0].cell_contents

    def step(number):
        scores = cos_sim(torch.randn(512, 32), torch.randn(1024, 32))
        return scores.topk(5, dim=1).values, scores.mean()

    return step


def test_rows_that_are_searched_for_their_best_can_be_made_in_parts_by_a_library_too(tmp_path):
    (found,) = [
        one for one in findings_of(of_a_library, tmp_path / "run.json") if one.rule == "largest"
    ]
    (first,) = found.remedies
    assert (first.fix, first.saves_bytes >= 512 * 1024 * 4) == ("chunk", True)
    assert first.code == "scores = cos_sim(torch.randn(512, 32), torch.randn(1024, 32))"
    assert "`scores.topk(5, dim=1)`" in first.why
    found = findings_of(read_otherwise, tmp_path / "other.json")
    assert [one.remedies for one in found if one.rule == "largest"] == [()]


def on_lines_of_its_own():
    weight = torch.nn.Parameter(torch.randn(2, 512))

    def step(number):
        waves = torch.sin(torch.randn(4096, 2) @ weight)
        waves = waves.exp().tanh().cos().sin()
        waves.mean().backward()
        weight.grad = None

    return step


def test_what_waits_for_a_backward_pass_would_wait_in_parts_as_well(tmp_path):
    (found,) = [
        one
        for one in findings_of(on_lines_of_its_own, tmp_path / "run.json")
        if one.rule == "largest"
    ]
    assert found.minor
    assert [one.fix for one in found.remedies] == ["checkpoint", "mixed_precision"]


BOXES = """\
import torch

def overlap(a, b):
    apart = a[:, None, :2] - b[:, :2]
    near = apart.exp()
    both = apart * near
    hull = both + near
    inner = hull.sum(-1)
    del apart, near, both, hull
    parts = [inner]
    for _ in range(7):
        parts.append(parts[-1] * 0.5)
    return parts[-1].clone()
"""
MATCHER = """\
def step(number):
    a, b = torch.rand(1500, 4), torch.rand(1500, 4)
    cost = overlap(a, b)
    return cost.exp().sort(1).values.std().item()
"""


def test_what_a_librarys_function_has_of_several_sizes_at_a_time_is_of_its_line(tmp_path):
    """Without those of one size the others would be the peak."""
    names_of = {"torch": torch}
    library = tmp_path / "site-packages" / "boxes" / "ops.py"
    library.parent.mkdir(parents=True)
    for path, text in ((library, BOXES), (tmp_path / "train.py", MATCHER)):
        path.write_text(text)
        exec(compile(text, str(path), "exec"), names_of)
    found = findings_of(lambda: names_of["step"], tmp_path / "run.json", steps=12)
    first = found[0].remedies[0]
    assert (found[0].rule, first.fix) == ("largest", "chunk")
    assert "tensors that one line makes on its way to a result" in found[0].title
    assert first.code.startswith("cost = overlap(a, b)")
    assert first.peak_after <= first.peak_before / 2
