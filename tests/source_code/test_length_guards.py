"""Containers whose filling code takes from them by their length are told from those that grow."""

from __future__ import annotations

import pytest

from memprof.source_code.length_guards import is_kept_to_length
from memprof.source_code.program import place_of
from memprof.trace import Frame

CLASS = """class Store:
    def put(self, key, value):
        self.entries[key] = value
{after}
    def evict(self):
        while len(self.entries) > self.capacity:
            self.entries.popitem(last=False)
"""

FUNCTION = """def main():
    rows = []
    for x in stream():
{body}
"""


def kept(tmp_path, text, statement):
    source = tmp_path / "program.py"
    source.write_text(text)
    line = next(at for at, one in enumerate(text.splitlines(), 1) if one.strip() == statement)
    return is_kept_to_length(place_of(Frame("", str(source), line)))


@pytest.mark.parametrize(
    ("after", "is_kept"),
    [
        (
            "        while len(self.entries) > 8:\n            self.entries.popitem(last=False)",
            True,
        ),
        ("        if self.capacity < len(self.entries):\n            del self.entries[old]", True),
        ("        self.evict()", True),
        ("        pass", False),  # nothing calls evict
        ("        if len(self.entries) > 0:\n            self.entries.pop(key, None)", False),
        ("        if len(self.others) > 8:\n            self.entries.pop(key, None)", False),
        ("        if len(self.entries) > 8:\n            log('many')", False),
        ("        other.evict()", False),
    ],
)
def test_a_method_that_evicts_by_length_keeps_its_dict_short(tmp_path, after, is_kept):
    text = CLASS.format(after=after)
    assert kept(tmp_path, text, "self.entries[key] = value") is is_kept


@pytest.mark.parametrize(
    ("body", "statement", "is_kept"),
    [
        ("rows.append(x)\nrows = rows[-100:]", "rows.append(x)", True),
        ("rows.append(x)\ndel rows[:-100]", "rows.append(x)", True),
        ("if len(rows) < 100:\n    rows.append(x)", "rows.append(x)", True),
        ("if 100 > len(rows):\n    rows.append(x)", "rows.append(x)", True),
        ("if len(rows) > 100:\n    rows.append(x)", "rows.append(x)", False),
        ("if len(rows) == 9:\n    rows[0] = x\nelse:\n    rows.append(x)", "rows.append(x)", True),
        ("rows.append(x)\nwhile len(rows) > 9:\n    rows.pop(0)", "rows.append(x)", True),
        ("rows.append(x)\nif len(rows) > 9:\n    rows.pop(0)", "rows.append(x)", True),
        ("for y in x:\n    rows.append(y)\nif len(rows) > 9:\n    rows.pop(0)", "rows.append(y)", False),
        ("rows.extend(x)\nif len(rows) > 9:\n    rows.pop(0)", "rows.extend(x)", False),
        ("rows.extend(x)\nif len(rows) > 9:\n    rows.clear()", "rows.extend(x)", True),
        ("rows[x.key].append(x)\nif len(rows[x.key]) > 9:\n    rows[x.key].pop(0)",
         "rows[x.key].append(x)", False),
    ],
)  # fmt: skip
def test_a_function_that_cuts_a_list_to_a_length_keeps_it_short(tmp_path, body, statement, is_kept):
    indented = "\n".join(f"        {line}" for line in body.splitlines())
    assert kept(tmp_path, FUNCTION.format(body=indented), statement) is is_kept
