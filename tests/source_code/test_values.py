from __future__ import annotations

import pytest

from memprof.source_code.program import program_of
from memprof.source_code.values import is_fresh_tensor


@pytest.fixture
def fresh(tmp_path):
    """Whether the name that a statement passes to ``net`` is a tensor at the beginning."""

    def fresh(text, name="h"):
        path = tmp_path / "job.py"
        path.write_text(text)
        program = program_of(str(path))
        line = next(n for n, one in enumerate(program.lines, 1) if "net(" in one)
        place = program.at(line)
        return is_fresh_tensor(place, name, place.statement)

    return fresh


STEP = "    h = net(x, h)\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def f(x, h):\n", False),
        ("def f(x, h=None):\n", False),
        ("def f(x, h=0.0):\n    h = torch.zeros(3)\n", False),
        ("def f(x):\n    h = torch.zeros(3)\n", True),
        ("def f(x):\n    h, n = torch.zeros(3), 0\n", True),
        ("def f(x):\n    h = torch.zeros(3).to(x.device).view(1, 3)\n", True),
        ("def f(x):\n    h = (torch.zeros(3), torch.zeros(3))\n", False),
        ("def f(x):\n    h = torch.zeros(3), torch.zeros(3)\n", False),
        ("def f(x):\n    h, n = start(3)\n", False),
        ("def f(x):\n    h = start(3)\n", False),
        ("def f(x):\n    h = None\n", False),
        ("def f(x):\n    h = torch.zeros(3)\n    if x: h = None\n", False),
        ("def f(x):\n    global h\n    h = torch.zeros(3)\n", False),
        ("def f(x):\n    for h in x: pass\n", False),
        ("def f(x):\n    h = torch.zeros(3, requires_grad=True)\n", False),
        ("def f(x):\n", False),
    ],
)
def test_a_state_is_a_tensor_where_all_that_it_is_bound_to_is(fresh, text, expected):
    assert fresh(text + STEP) is expected


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("self.h = torch.zeros(3)", True),
        ("self.h = None", False),
        ("self.register_buffer('h', torch.zeros(3))", True),
        ("self.register_buffer('h', None)", False),
        ("self.h = h", False),
    ],
)
def test_an_attribute_is_looked_for_in_the_whole_file(fresh, start, expected):
    text = f"class A:\n    def __init__(self, h):\n        {start}\n"
    step = "    def step(self, x):\n        self.h = self.net(x, self.h)\n"
    assert fresh(text + step, "self.h") is expected
