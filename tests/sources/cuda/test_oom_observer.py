"""The observer of failed allocations: whatever goes wrong in it stays away from the job's error."""

from __future__ import annotations

import logging

import pytest

from memprof.sources.cuda.oom_observer import OomWatch
from memprof.sources.loop.loop_watch import LoopWatch
from memprof.sources.protocol import Interner
from memprof.testing.cuda import StandInOutOfMemoryError, TorchStandIn

MIB = 1 << 20


class RefusingFilter(logging.Filter):
    """A filter of the job's own that cannot take a record."""

    def filter(self, record: logging.LogRecord) -> bool:
        raise ValueError("not this one")


@pytest.fixture
def watched():
    """A stand-in with two watches, the first of which fails, and what the second one was told."""
    stand_in, told = TorchStandIn(capacity=20 * MIB), []

    def fail(_what):
        raise OSError("the disk is gone")

    stand_in.initialize()
    loop_watch = LoopWatch(Interner())
    watches = [OomWatch(stand_in, loop_watch, tell) for tell in (fail, told.append)]
    assert [watch.open() for watch in watches] == ["", ""]
    yield stand_in, told
    for watch in watches:
        watch.close()


def test_a_watch_that_fails_is_logged_and_the_others_are_told(watched, caplog):
    stand_in, told = watched
    with caplog.at_level(logging.DEBUG, "memprof"), pytest.raises(StandInOutOfMemoryError):
        stand_in.alloc(90 * MIB)
    assert [what.device for what in told] == ["cuda:0"]
    (record,) = caplog.records
    assert record.levelno == logging.DEBUG
    assert record.getMessage().endswith("not recorded: OSError: the disk is gone")
    assert record.exc_info is None  # a traceback would keep the job's frames, and their tensors


def test_not_even_a_logger_that_refuses_comes_before_the_job_s_own_error(watched, request):
    stand_in, told = watched
    log, refusing = logging.getLogger("memprof"), RefusingFilter()
    level = log.level
    log.addFilter(refusing)
    log.setLevel(logging.DEBUG)
    request.addfinalizer(lambda: (log.removeFilter(refusing), log.setLevel(level)))
    with pytest.raises(StandInOutOfMemoryError):
        stand_in.alloc(90 * MIB)
    assert len(told) == 1
