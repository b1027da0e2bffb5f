"""log-record: a handler keeps log records, and they the tensors or the exception they are given."""

from __future__ import annotations

import logging
from collections import deque

import torch

from tests.rules.recorded import findings_of

WIDTH = 64


class Storing(logging.Handler):
    """Stores records, as pytest's caplog does."""

    def __init__(self):
        super().__init__()
        self.records = []

    def emit(self, record):
        self.records.append(record)


def logger():
    """A logger of its own, so that nothing of it is left in the process."""
    log = logging.Logger("train")  # noqa: LOG001 - see above
    log.addHandler(Storing())
    return log


def attempt():
    batch = torch.zeros(WIDTH, WIDTH)
    raise ValueError(len(batch))


def fires():
    log = logger()

    def step(number):
        try:
            attempt()
        except ValueError:
            log.exception("batch %d skipped", number)

    return step


def looks_alike():
    """As many records, of the exception's text; and a list of tensors."""
    log, outputs = logger(), []

    def step(number):
        try:
            attempt()
        except ValueError as error:
            log.error("batch %d skipped: %s", number, str(error))  # noqa: TRY400 - on purpose
        outputs.append(torch.zeros(WIDTH, WIDTH))

    return step


def tensors():
    log = logger()

    def step(number):
        log.info("loss %s", torch.zeros(WIDTH, WIDTH))

    return step


def test_the_text_of_the_exception_is_to_be_logged(tmp_path):
    (found,) = findings_of(fires, tmp_path / "run.json")
    first = found.remedies[0]
    assert found.rule == first.rule == "log-record"
    assert (first.fix, first.code) == (
        "clear_traceback",
        'log.exception("batch %d skipped", number)',
    )


def test_numbers_are_to_be_logged_and_not_tensors(tmp_path):
    (found,) = findings_of(tensors, tmp_path / "run.json")
    assert found.bytes_per_step == WIDTH * WIDTH * 4
    assert [one.fix for one in found.remedies[:2]] == ["item", "clear_container"]


class Recent(logging.Handler):
    """Stores the newest of very many records."""

    def __init__(self):
        super().__init__()
        self.records = deque(maxlen=5000)

    def emit(self, record):
        self.records.append(record)


def in_bounded_room():
    log = logging.Logger("recent")  # noqa: LOG001 - see above
    log.addHandler(Recent())

    def step(number):
        try:
            attempt()
        except ValueError:
            log.warning("batch %d skipped", number, exc_info=True)

    return step


def test_the_frames_of_newest_records_are_kept_as_well(tmp_path):
    (found,) = findings_of(in_bounded_room, tmp_path / "run.json")
    first = found.remedies[0]
    assert found.rule == first.rule == "log-record"
    assert found.bytes_per_step == WIDTH * WIDTH * 4
    assert (first.fix, first.code) == (
        "clear_traceback",
        'log.warning("batch %d skipped", number, exc_info=True)',
    )
