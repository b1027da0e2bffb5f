from __future__ import annotations

import ast

import pytest

from memprof.source_code.idioms import optimizers_made
from memprof.source_code.program import program_of
from memprof.source_code.values import (
    goes_backward,
    is_fresh_tensor,
    is_object,
    is_raised,
    returned_by,
    values_of,
)


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


@pytest.fixture
def source(tmp_path):
    """Writes a file; its program, and the place of the line that holds a text."""

    def source(text):
        path = tmp_path / "job.py"
        path.write_text(text)
        program = program_of(str(path))
        return program, lambda part: program.at(
            next(n for n, line in enumerate(text.splitlines(), 1) if part in line)
        )

    return source


def test_results_with_attributes_of_their_own_are_objects(source):
    _, at = source("out = net(x)\nloss = out.logits.sum()\nwide = net(x)\nn = wide.shape[0]\n")
    assert is_object(at("out = net"), at("out = net").statement.value)
    assert not is_object(at("wide = net"), at("wide = net").statement.value)


@pytest.mark.parametrize(
    "use", ["a, b = out", "y = out[0]", "for y in out: pass", "f(*out)", "y = list(zip(out, x))"]
)
def test_results_that_are_taken_apart_may_be_tuples(source, use):
    _, at = source(f"out = net(x)\n{use}\n")
    assert is_object(at("out = net"), at("out = net").statement.value)


def test_a_backward_pass_is_followed_through_names_and_across_methods(source):
    text = "class Net:\n    def add(self, x):\n        self.parts.append(x)\n"
    text += "    def end(self):\n        total = sum(self.parts)\n        total.backward()\n"
    _, at = source(text)
    assert goes_backward(at("append"), "self.parts")
    assert not goes_backward(at("append"), "self.other")


def test_an_exception_that_is_raised_again_is_more_than_its_text(source):
    text = "def f(g):\n    try:\n        g()\n    except E as e:\n        last = e\n"
    _, at = source(text + "    raise last\n")
    assert is_raised(at("last = e"), "last")
    _, at = source(text + "    return last is None\nf(f)\n")
    assert not is_raised(at("last = e"), "last")


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ("print(len(errors), errors[0])", False),
        ("for each in errors: print(str(each))", False),
        ("raise errors[0]", True),
        ("for each in errors: raise each", True),
        ("raise ValueError() from errors[-1]", True),
        ("print(errors[0].args)", True),
        ("traceback.print_exception(errors[0])", True),
        ("log.error('failed', exc_info=errors[0])", True),
        ("print([type(each) for each in errors])", True),
    ],
)
def test_exceptions_in_a_container_are_followed_to_where_they_are_used(source, end, expected):
    text = "def f(g):\n    errors = []\n    try:\n        g()\n    except E as e:\n"
    _, at = source(text + f"        errors.append(e)\n    {end}\n")
    assert is_raised(at("append"), "errors") is expected


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("import torch\nopt = torch.optim.SGD(net.parameters())\n", True),
        ("from torch.optim import AdamW as Optimizer\nopt = Optimizer(net.parameters())\n", True),
        ("from torch import optim as o\ndef f():\n    return o.Adam(net.parameters())\n", True),
        ("from torch.optim.adam import Adam\nopt = Adam(net.parameters())\n", True),
        ("class SGD:\n    pass\nopt = SGD(net.parameters())\n", False),
        ("from mine import SGD\nopt = SGD(net.parameters())\n", False),
        ("import torch\nopt = torch.optim.LBFGS(net.parameters())\n", False),
    ],
)
def test_an_optimizer_is_known_by_where_its_name_comes_from(tmp_path, text, made):
    path = tmp_path / "job.py"
    path.write_text(text)
    assert bool(list(optimizers_made([program_of(str(path))]))) is made


AROUND = """h = 1

def outer(g):
    k = 2
    class Other:
        k = 3

    def inner(x):
        net(h, g, k, x)

    def beside():
        k = 4
"""


@pytest.mark.parametrize(
    ("name", "values"), [("h", ["1"]), ("g", [None]), ("k", ["2"]), ("x", [None]), ("other", [])]
)
def test_a_variable_may_be_of_the_function_around_or_of_the_file(name, values, tmp_path):
    path = tmp_path / "job.py"
    path.write_text(AROUND)
    place = program_of(str(path)).at(9)
    assert [one and ast.unparse(one) for one in values_of(place, name)] == values


RETURNED = """class One:
    def made(self, x):
        return x * 2

    def forward(self, x):
        a = self.made(x)
        b = x.made(x)
        c = scaled(x)

class Other:
    def made(self, x):
        return x * 3

def scaled(x):
    if x is None:
        return
    def inner():
        return 5
    return x * 4
"""


@pytest.mark.parametrize(("line", "values"), [(6, ["x * 2"]), (7, []), (8, ["x * 4"])])
def test_what_a_function_of_the_file_returns(line, values, tmp_path):
    path = tmp_path / "job.py"
    path.write_text(RETURNED)
    place = program_of(str(path)).at(line)
    assert [ast.unparse(value) for _, value in returned_by(place, place.statement.value)] == values
