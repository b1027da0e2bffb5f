"""standard-callback: a registry of the standard library keeps what it is to call."""

from __future__ import annotations

import gc
import itertools
import logging
import threading
import weakref

import pytest
import torch

from memprof.reference_chain import Link, LinkKind
from tests.rules.bench import Bench
from tests.rules.recorded import findings_of_fork

WIDTH = 64


class Session:
    def __init__(self):
        self.cache = torch.zeros(WIDTH, WIDTH)

    def report(self, *_):
        return self.cache.sum()


class Announced(Session):
    def __init__(self, closed):
        super().__init__()
        weakref.finalize(self, self.report, closed)


class Counted(Session):
    ids = itertools.count()

    def __init__(self, closed):
        super().__init__()
        weakref.finalize(self, closed.append, next(self.ids))


class Capture(logging.Handler):
    def __init__(self):
        super().__init__()
        self.seen = torch.zeros(WIDTH, WIDTH)


def fires():
    gc.unfreeze()  # in a process of its own: the registry was there before the tests were
    closed = []

    def step(number):
        Announced(closed)

    return step


def fires_on_a_handler():
    def step(number):
        handler = Capture()
        logging.getLogger("sessions").addHandler(handler)

    return step


def fires_on_a_timer():
    def step(number):
        session = Session()
        timer = threading.Timer(600, session.report)
        timer.daemon = True
        timer.start()

    return step


def looks_alike():
    """The finalizer knows a number of the session, not the session; those are in a list."""
    closed, sessions = [], []

    def step(number):
        sessions.append(Counted(closed))

    return step


@pytest.mark.parametrize(
    ("program", "fix", "code", "words"),
    [
        (
            fires,
            "plain_function",
            "weakref.finalize(self, self.report, closed)",
            "which it thereby never lets go of",
        ),
        (
            fires_on_a_handler,
            "release",
            'logging.getLogger("sessions").addHandler(handler)',
            "(`logger.removeHandler(handler)`)",
        ),
        (
            fires_on_a_timer,
            "release",
            "timer = threading.Timer(600, session.report)",
            "(`timer.cancel()`)",
        ),
    ],
)
def test_the_line_that_registers_it_is_named_with_its_way_out(program, fix, code, words, tmp_path):
    found = findings_of_fork(program, tmp_path / "run.json")[0]
    first = found.remedies[0]
    assert found.rule == first.rule == "standard-callback"
    assert found.bytes_per_step == WIDTH * WIDTH * 4
    assert (first.fix, first.code) == (fix, code)
    assert words in first.why
    assert "weakref" not in [one.fix for one in found.remedies]


SOURCE = """
def watch(session, other):
    weakref.finalize(session, lambda: session.report())

def outlive(session, model):
    weakref.finalize(model, session.report)

def observe(session):
    log.addFilter(session.report)
    gc.callbacks.append(session.report)
    others.append(session.report)
    schedule.enter(600, 1, session.report)
    pipe.enter(session)
    agenda.enter(delay=600, priority=1, action=session.later)
"""
METHOD = ("bound_method", "__self__", -1, "Session.report")
LATER = ("bound_method", "__self__", -1, "Session.later")
FINALIZE = ("class_attribute", "_registry", -1, "finalize")
INFO = ("attribute", "func", -1, "_Info")


@pytest.mark.parametrize(
    ("links", "site", "fix", "words"),
    [
        (
            [FINALIZE, ("item", "<finalize>", 9), INFO, ("closure", "session", -1, "<lambda>")],
            "lambda: session.report()",
            "plain_function",
            "which it thereby never lets go of",
        ),
        (
            [FINALIZE, ("item", "<finalize>", 9), INFO, METHOD],
            "weakref.finalize(model, session.report)",
            "plain_function",
            "as long as the object lives that it watches: give it",
        ),
        (
            [("attribute", "filters", -1, "Logger"), ("item", "0", 9), METHOD],
            "log.addFilter(session.report)",
            "release",
            "(`logger.removeFilter(session.report)`)",
        ),
        (
            [("global", "callbacks", -1, "gc"), ("item", "0", 9), METHOD],
            "gc.callbacks.append(session.report)",
            "release",
            "(`gc.callbacks.remove(session.report)`)",
        ),
        (
            [("attribute", "_queue", -1, "scheduler"), ("item", "0", 9), METHOD],
            "schedule.enter(600, 1, session.report)",
            "release",
            "(`scheduler.cancel(event)`)",
        ),
        (
            [("attribute", "_queue", -1, "scheduler"), ("item", "0", 9), LATER],
            "agenda.enter(delay=600, priority=1, action=session.later)",
            "release",
            "keeps `session.later` and its object until it has run",
        ),
        (
            [("class_attribute", "_registry", -1, "Sessions"), ("item", "0", 9), METHOD],
            "",
            "",
            "",
        ),
        (
            [("attribute", "_queue", -1, "Backlog"), ("item", "0", 9), METHOD],
            "",
            "",
            "",
        ),
    ],
)
def test_a_registry_is_known_by_its_class_and_the_call_by_what_it_is_given(
    tmp_path, links, site, fix, words
):
    bench = Bench(tmp_path).write(SOURCE)
    chain = [
        Link(LinkKind(kind), name, *type_name, length=length)
        for kind, name, length, *type_name in links
    ]
    advice = bench.advise("def watch", bench.holder("def watch", *chain))
    advised = [one for one in advice if one.rule == "standard-callback"]
    assert [one.fix for one in advised[:1]] == [fix for fix in (fix,) if fix]
    for first in advised[:1]:
        assert (site in first.code, words in first.why) == (True, True)
