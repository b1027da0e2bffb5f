"""What is only handed on to what computes, and what may be kept."""

from __future__ import annotations

import pytest

from memprof.source_code.ended_variables import is_let_go, is_replaced_in_loop
from memprof.source_code.program import source_of

METHOD = """
class Net(nn.Module):
    def forward(self, x, parts):
        h = F.relu(self.first(x))
        {rest}
"""
LOOP = """
class Net(nn.Module):
    def forward(self, x):
        hidden = []
        for layer in self.layers:
            x = F.relu(layer(x))
            {rest}
        return x
"""


def place_of_line(text, line, folder):
    file = folder / "net.py"
    file.write_text(text)
    program = source_of(str(file))
    assert program is not None
    return program.at(line)


@pytest.mark.parametrize(
    ("rest", "ends"),
    [
        ("return self.second(h)", True),
        ("return h + 1", True),
        ("return torch.cat([h, x])", True),
        ("h = self.second(h); return h", True),
        ("return h", False),
        ("return h, self.second(h)", False),
        ("return self.second(h), h", False),
        ("self.h = h; return self.second(h)", False),
        ("parts.append(h); return self.second(h)", False),
        ("return Output(h)", False),
        ("return h.flatten(1)", False),
        ("return h[:, 0]", False),
        ("return x", False),
    ],
)
def test_what_is_handed_to_a_method_or_is_an_operand_ends(rest, ends, tmp_path):
    place = place_of_line(METHOD.format(rest=rest), 4, tmp_path)
    assert is_let_go(place) == ends


@pytest.mark.parametrize(
    ("rest", "is_gone"),
    [
        ("pass", True),
        ("hidden.append(x)", False),
        ("self.last = x", False),
    ],
)
def test_a_loop_goes_on_from_what_it_made(rest, is_gone, tmp_path):
    place = place_of_line(LOOP.format(rest=rest), 6, tmp_path)
    assert is_replaced_in_loop(place) == is_gone
