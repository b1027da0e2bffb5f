"""kept-by-caller: a library keeps everything that a function of the program returns to it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

import memprof
from tests.rules.recorded import findings_of, names

WIDTH = 64
LIBRARY = Path(__file__).with_name("site-packages") / "looper" / "__init__.py"


def library():
    """The module, as if it were installed."""
    spec = importlib.util.spec_from_file_location("looper", LIBRARY)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Predictions:
    def __init__(self, **options):
        self.trainer = library().Trainer()
        self.options = options

    def predict_step(self, batch):
        return batch.softmax(1)

    def step(self, number):
        self.trainer.predict(self.predict_step, torch.rand(WIDTH, WIDTH), **self.options)


def fires():
    return Predictions().step


def looks_alike():
    """The switch is off, and the program lists its results by itself."""
    job, results = Predictions(keep_results=False), []

    def step(number):
        job.step(number)
        results.append(job.predict_step(torch.rand(WIDTH, WIDTH)))

    return step


def test_the_switch_of_the_library_is_named(tmp_path):
    (found,) = findings_of(fires, tmp_path / "run.json")
    first = found.remedies[0]
    assert found.rule == first.rule == "kept-by-caller"
    assert found.bytes_per_step == WIDTH * WIDTH * 4
    assert (first.fix, first.saves_bytes) == ("reduce_predictions", WIDTH * WIDTH * 4)
    assert first.code.startswith("self.trainer.predict(self.predict_step")
    assert "pass `keep_results=False` here" in first.why


def test_a_list_of_the_program_is_none(tmp_path):
    assert "kept-by-caller" not in names(looks_alike, tmp_path / "run.json")


def saved(number):
    """What is kept of it is in a file by then."""
    probabilities = torch.rand(WIDTH, WIDTH).softmax(1)
    memprof.step()
    return probabilities


def listed():
    library().run_each(saved, range(40))
    return lambda number: None


def mapped():
    pool = library().Pool()
    pool.map(saved, range(40))
    return lambda number: None


def beside():
    """A list of the program's own has what the function makes, which returns a number."""
    kept = []

    def keeps(number):
        kept.append(torch.rand(WIDTH, WIDTH))
        memprof.step()
        return number

    library().Pool().map(keeps, range(40))
    library().run_each(keeps, range(40))
    return lambda number: kept


@pytest.mark.parametrize(("program", "keeper"), [(listed, "run_each"), (mapped, "pool.map")])
def test_a_library_lists_what_a_function_returns(program, keeper, tmp_path):
    found = findings_of(program, tmp_path / "run.json", steps=0)[0]
    first = found.remedies[0]
    assert found.rule == first.rule == "kept-by-caller"
    assert found.bytes_per_step == WIDTH * WIDTH * 4
    assert (first.fix, first.code) == ("reduce_predictions", "return probabilities")
    assert f"`{keeper}` keeps every value that `saved` returns" in first.why


def test_what_the_program_lists_beside_is_none_of_the_results(tmp_path):
    found = findings_of(beside, tmp_path / "run.json", steps=0)
    assert [one.rule for one in found if not one.minor] == ["growing-container"]
