"""Where a program multiplies with every item of a container, or calls each."""

from __future__ import annotations

import pytest

from memprof.source_code.program import program_of
from memprof.source_code.uses_of_items import calling_lines, searching_lines

INDEX = """
class Index:
    def add(self, rows):
        self.shelves.append(rows)
    def search(self, queries):
        {search}
class Other:
    def go(self, queries):
        {other}
"""


@pytest.mark.parametrize(
    ("search", "other", "lines"),
    [
        ("return [queries @ shelf.T for shelf in self.shelves]", "pass", {6}),
        ("return [torch.mm(queries, one) for one, _ in zip(self.shelves, ids)]", "pass", {6}),
        (
            "for n, one in enumerate(self.shelves):\n            torch.dot(queries, one)",
            "pass",
            {7},
        ),
        ("return [shelf.sum() for shelf in self.shelves]", "pass", set()),
        ("return [queries @ self.weight for shelf in self.shelves]", "pass", set()),
        ("return torch.cat(self.shelves)", "pass", set()),
        # what another class does with its own is no use of this one
        ("pass", "return [queries @ shelf.T for shelf in self.shelves]", set()),
    ],
)
def test_a_product_with_every_item_is_a_search(search, other, lines, tmp_path):
    path = tmp_path / "index.py"
    path.write_text(INDEX.format(search=search, other=other))
    assert searching_lines(program_of(str(path)).at(4)) == lines


ENSEMBLE = """
class Ensemble:
    def add(self, model):
        self.members.append(model)
    def predict(self, x):
        {predict}
"""


@pytest.mark.parametrize(
    ("predict", "lines"),
    [
        ("return sum(member(x) for member in self.members)", {6}),
        ("return [member.head(x) for member in self.members]", {6}),
        ("for member in self.members:\n            x = x + member(x)", {7}),
        ("return [member(x) for member, _ in zip(self.members, x)]", {6}),
        ("return self.members[-1](x)", set()),
        ("return [member(x) for member in self.members[-3:]]", set()),
        ("return [member(x) for member in random.sample(self.members, 2)]", set()),
        ("return [len(x) for member in self.members]", set()),
        ("for one in self.members:\n            if one(x).any():\n                break", set()),
    ],
)
def test_a_call_of_every_item_is_a_use_of_all(predict, lines, tmp_path):
    path = tmp_path / "ensemble.py"
    path.write_text(ENSEMBLE.format(predict=predict))
    assert calling_lines(program_of(str(path)).at(4)) == lines


HANDED_OVER = """
def vote(x, experts):
    return [expert(x) for expert in experts]
def other(experts):
    return len(experts)
def main(x):
    models = []
    for fold in range(5):
        models.append(fit(fold))
        {use}
"""


@pytest.mark.parametrize(
    ("use", "lines"),
    [("vote(x, models)", {3}), ("vote(models, x)", set()), ("other(models)", set())],
)
def test_a_function_that_is_given_the_container_may_call_them(use, lines, tmp_path):
    path = tmp_path / "folds.py"
    path.write_text(HANDED_OVER.format(use=use))
    assert calling_lines(program_of(str(path)).at(9)) == lines
