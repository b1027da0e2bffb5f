"""Calls of a loop that are given other data in each turn, and nothing of what they returned."""

from __future__ import annotations

import pytest

from memprof.source_code.fed_anew import is_fed_anew
from memprof.source_code.program import program_of


@pytest.mark.parametrize(
    ("code", "is_anew"),
    [
        ("for question in questions:\n    out = model(question, cache)", True),
        ("for n in range(9):\n    x = torch.randint(9, (1, 8))\n    out = model(x, cache)", True),
        ("for n in range(9):\n    x = ask(n)\n    x = x + 1\n    out = model(x, cache)", True),
        # the next token is chosen by what the call before returned
        ("for n in range(9):\n    out = model(x, cache)\n    x = out.argmax(-1)", False),
        ("for n in range(9):\n    out = model(x, cache)\n    y = out[0]\n    x = y[:1]", False),
        # a text in pieces
        ("for piece in text.split(64):\n    out = model(piece, cache)", False),
        ("for n in range(0, 64, 8):\n    out = model(text[n : n + 8], cache)", False),
        # nothing is new, and no loop
        ("for n in range(9):\n    out = model(x, cache)", False),
        ("out = model(x, cache)", False),
    ],
)
def test_what_is_new_in_each_turn(code, is_anew, tmp_path):
    path = tmp_path / "job.py"
    path.write_text(code)
    program = program_of(str(path))
    line = next(n for n, text in enumerate(program.lines, 1) if "model(" in text)
    assert is_fed_anew(program.at(line)) is is_anew
