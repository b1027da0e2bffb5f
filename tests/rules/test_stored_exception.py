"""stored-exception: exceptions are stored, and hold the frames of the calls that failed."""

from __future__ import annotations

import torch

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
