"""Functions and lines of the program that run and that no window has recorded."""

from __future__ import annotations

import json
import sys
import time

import pytest

torch = pytest.importorskip("torch", reason="windows record tensors")

import memprof  # noqa: E402
from memprof.record.unseen_code import UnseenCode  # noqa: E402
from memprof.sources.protocol import Interner  # noqa: E402

AS_USERS_HAVE_IT = UnseenCode.is_running


@pytest.fixture
def unseen_code(monkeypatch):
    """The look that tests go without, and its table of frames."""
    monkeypatch.setattr(UnseenCode, "is_running", AS_USERS_HAVE_IT)
    interner = Interner()
    return UnseenCode(interner), interner


def intern_callers(interner, frame, *, in_class=""):
    """What a window would have, of which this function's caller allocated something."""
    while frame is not None:
        code = frame.f_code
        name = in_class + code.co_name
        interner.frame(name, code.co_filename, frame.f_lineno)
        frame = frame.f_back


def evaluate(unseen):
    return unseen.is_running(sys._getframe())


def evaluate_twice(unseen):
    first = unseen.is_running(sys._getframe())
    return first, unseen.is_running(sys._getframe())


@pytest.mark.parametrize("in_class", ["", "Trainer."], ids=["torch's recorder", "ours"])
def test_a_function_that_was_not_recorded_is_told_of_once(unseen_code, in_class):
    unseen, interner = unseen_code
    intern_callers(interner, sys._getframe(), in_class=in_class)
    assert not unseen.is_running(sys._getframe())
    assert evaluate(unseen)
    assert not evaluate(unseen)


def test_a_function_that_was_recorded_since_is_none(unseen_code):
    unseen, interner = unseen_code
    intern_callers(interner, sys._getframe())
    interner.frame(evaluate.__name__, __file__, 1)
    assert not evaluate(unseen)


def test_a_second_loop_of_a_function_is_told_of_when_it_lasts(unseen_code):
    unseen, interner = unseen_code
    intern_callers(interner, sys._getframe())
    interner.frame(evaluate_twice.__name__, __file__, 1)
    assert evaluate_twice(unseen) == (False, True)
    assert evaluate_twice(unseen) == (False, False)


def test_code_of_libraries_is_none_of_the_programs(unseen_code):
    unseen, interner = unseen_code
    intern_callers(interner, sys._getframe())
    assert not unseen.is_running(sys._getframe())
    looks = []

    class Looks(json.JSONEncoder):
        def default(self, one):
            interner.frame("Looks.default", __file__, 1)
            intern_callers(interner, sys._getframe(0))
            looks.append(unseen.is_running(sys._getframe(1)))

    json.dumps(object(), cls=Looks)
    assert looks == [False]


def train(tracker):
    for _ in range(8):
        torch.ones(1000).add(1)
        tracker.step()


def judge():
    """Batches for a second and a half: memprof looks once a second."""
    outputs = []
    until_s = time.monotonic() + 1.5
    while time.monotonic() < until_s:
        outputs.append(torch.zeros(500))
        time.sleep(0.01)


@pytest.mark.usefixtures("unseen_code")
def test_an_evaluation_after_the_recorded_steps_has_a_window(tmp_path):
    with memprof.track(
        tmp_path / "run.json", sources=["cpu"], allowance_s=60, max_events=40
    ) as tracker:
        train(tracker)
        judge()
    first, second = memprof.load(tmp_path / "run.json").windows
    assert (first.reason, first.end) == ("start", "max_events")
    assert second.reason == "code"
    assert second.first_step == 8
