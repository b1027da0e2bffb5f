"""Where a function that a statement calls binds what it returns."""

from __future__ import annotations

from textwrap import dedent

import pytest

from memprof.source_code.program import program_of
from memprof.source_code.returned_values import returned_from

EPOCH = """
def train(model, loader):
    losses, score = 0.0, 0.0
    for batch in loader:
        score += dice(model(batch))
        losses += loss(batch).item()
    return {returned}
def main(model, loader):
    for epoch in range(9):
        {binding} = train(model, loader)
"""


@pytest.mark.parametrize(
    ("returned", "binding", "lines"),
    [
        ("score", "mean", [3, 5]),
        ("score / len(loader)", "mean", [3, 5]),
        ("losses / len(loader), score / len(loader)", "loss, mean", [3, 5, 6]),
        ("len(loader) / score", "mean", []),
        ("float(score)", "mean", []),
    ],
)
def test_sums_that_a_function_returns_are_followed_into_it(returned, binding, lines, tmp_path):
    file = tmp_path / "train.py"
    file.write_text(dedent(EPOCH).format(returned=returned, binding=binding))
    program = program_of(str(file))
    places = returned_from(program.at(10), [program])
    assert sorted(one.line for one in places) == lines


SMOOTHED = """
class Meter:
    def update(self, x):
        return x
class Smoother:
    def __call__(self, x):
        self.value = x
        out = 2 * x
        return self.value, out
    def update(self, x):
        self.last = x
        return self.last
def averaging():
    mean = None
    def average(x):
        nonlocal mean
        mean = x
        return mean
    def other(x):
        return x
    return average
def score(x, meter):
    scored = meter(x)
    return scored
def scaled(x):
    out = x
    return score(out, Smoother())
def main(x):
    smoother, average = Smoother(), averaging()
    meter = Smoother()
    ema = averaging()
    y = {call}
class Trainer:
    def __init__(self, other):
        self.meter = Smoother()
        self.handed = other
def start():
    Trainer(Smoother())
"""


@pytest.mark.parametrize(
    ("call", "lines"),
    [
        ("meter(x)", [7]),
        ("smoother(x)", [7]),
        ("meter.update(x)", [11]),
        ("ema(x)", [17]),
        ("score(x, smoother)", [7, 23]),
        ("scaled(x)", [7]),
        ("self.meter(x)", [7]),
        ("self.handed(x)", [7]),
        ("self.meter.update(x)", [11]),
        ("unknown(x)", []),
        ("x.update(x)", []),
    ],
)
def test_what_outlives_the_call_is_followed_further(call, lines, tmp_path):
    file = tmp_path / "train.py"
    file.write_text(SMOOTHED.replace("{call}", call))
    program = program_of(str(file))
    places = returned_from(program.at(32), [program])
    assert sorted(one.line for one in places) == lines
