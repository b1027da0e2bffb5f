"""stored-exception: exceptions are stored, and hold the frames of the calls that failed."""

from __future__ import annotations

import torch

from memprof.rules.finding import Kind
from tests.rules.recorded import findings_of

WIDTH = 64


def attempt():
    batch = torch.zeros(WIDTH, WIDTH)
    raise ValueError(len(batch))


def fires():
    failures = []

    def step(number):
        try:
            attempt()
        except ValueError as error:
            failures.append(error)

    return step


def looks_alike():
    """As many exceptions without their frames, and a list of tensors."""
    failures, outputs = [], []

    def step(number):
        try:
            attempt()
        except ValueError as error:
            failures.append(error.with_traceback(None))
        outputs.append(torch.zeros(WIDTH, WIDTH))

    return step


def test_the_text_of_the_exception_is_to_be_stored(tmp_path):
    (found,) = findings_of(fires, tmp_path / "run.json")
    first = found.remedies[0]
    assert found.rule == first.rule == "stored-exception"
    assert found.bytes_per_step == WIDTH * WIDTH * 4
    assert first.fix == "clear_traceback"
    assert "+            failures.append(str(error))" in first.patch


FAILING = frozenset((0, 2, 6, 7, 8, 9, 11, 12, 13, 15, 17, 18, 22))
"""Of 28 steps: chance, and rarer by chance in the second half."""


def now_and_then():
    failures = []

    def step(number):
        if number not in FAILING:
            return
        try:
            attempt()
        except ValueError as error:
            failures.append(error)

    return step


def tables():
    """Tables for ever new lengths come as irregularly, and are no failures."""
    kept = []

    def step(number):
        if number in FAILING:
            kept.append(torch.zeros(WIDTH, WIDTH))

    return step


def test_failures_pile_up_however_irregular_they_are(tmp_path):
    found = findings_of(now_and_then, tmp_path / "run.json", steps=28)[0]
    assert (found.rule, found.kind) == ("stored-exception", Kind.LEAK)
    assert found.bytes_per_step == WIDTH * WIDTH * 4 * (len(FAILING) - 1) / 22
    assert found.remedies[0].fix == "clear_traceback"


def test_what_comes_ever_more_rarely_is_no_growth_where_no_error_keeps_it(tmp_path):
    found = findings_of(tables, tmp_path / "run.json", steps=28)
    assert not any(one.bytes_per_step for one in found)


PRUNED = frozenset((2, 3, 6, 7, 8, 10, 13, 14, 17, 18))
"""Of 20 trials, those that are given up."""
LENGTH = 5


def trial(number):
    """Some steps with a state of its own, which goes where it comes to its end."""
    state = torch.zeros(256, WIDTH)
    for _ in range(LENGTH):
        yield len(state)
    if number in PRUNED:
        raise ValueError(number)


def a_study():
    failures, running = [], [iter(())]

    def step(number):
        if number % (LENGTH + 1) == 0:
            running[0] = trial(number // (LENGTH + 1))
        try:
            next(running[0], None)
        except ValueError as error:
            failures.append(error)

    return step


def test_what_trials_without_a_failure_free_does_not_hide_what_the_others_keep(tmp_path):
    (found, *_) = findings_of(a_study, tmp_path / "run.json", 20 * (LENGTH + 1))
    assert found.rule == "stored-exception"
    assert found.bytes == len(PRUNED) * 256 * WIDTH * 4
