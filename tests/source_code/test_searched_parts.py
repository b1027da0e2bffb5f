"""Where a program searches through all that a container has."""

from __future__ import annotations

import pytest

from memprof.source_code.program import program_of
from memprof.source_code.searched_parts import searching_lines

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
