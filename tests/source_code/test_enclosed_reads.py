"""Which inner function keeps a variable for what it reads of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from memprof.source_code.enclosed_reads import enclosed_read
from memprof.source_code.program import program_of

HANDED_ON = """
def setup(path):
    loaded = load(path)
    def rate(step):
        return (loaded["step"] + step) / loaded["total"]
    return Scheduler(rate)
"""
A_LAMBDA = """
def setup(path):
    loaded = load(path)
    return Scheduler(lambda step: loaded.rate * step)
"""
ONLY_CALLED = """
def setup(path):
    loaded = load(path)
    def fill(model):
        model.load_state_dict(loaded["model"])
    return fill(Model())
"""
IN_A_LOOP = """
def train(path):
    loaded = load(path)
    def rate(step):
        return loaded["rate"] * step
    for step in range(10):
        learn(rate(step))
"""
SORTED = """
def setup(path):
    loaded = load(path)
    return sorted(names(path), key=lambda name: loaded[name])
"""
ITS_OWN = """
def setup(path):
    loaded = load(path)
    def rate(loaded):
        return loaded["step"]
    return Scheduler(rate)
"""
BOUND_ANEW = """
def setup(path):
    loaded = load(path)
    def rate(step):
        loaded = read(step)
        return loaded["step"]
    return Scheduler(rate)
"""


@pytest.mark.parametrize(
    ("text", "read"),
    [
        (HANDED_ON, ("`rate`", 5, ("loaded['step']", "loaded['total']"))),
        (A_LAMBDA, ("a lambda", 4, ("loaded.rate",))),
        (IN_A_LOOP, ("`rate`", 5, ("loaded['rate']",))),
        (SORTED, None),
        (ONLY_CALLED, None),
        (ITS_OWN, None),
        (BOUND_ANEW, None),
    ],
    ids=["handed on", "lambda", "in a loop", "sorted", "only called", "a parameter", "bound anew"],
)
def test_a_function_that_is_handed_on_keeps_what_it_reads(text, read, tmp_path: Path) -> None:
    path = tmp_path / "setup.py"
    path.write_text(text)
    program = program_of(str(path))
    assert program is not None
    place = program.at(3)
    assert place is not None
    found = enclosed_read(place, "loaded")
    if read is None:
        assert found is None
    else:
        assert found is not None
        assert (found.function, found.place.line, tuple(sorted(found.parts))) == read
