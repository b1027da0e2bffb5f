"""queue-backlog: a queue without a bound is filled faster than it is emptied."""

from __future__ import annotations

import asyncio
import queue

import pytest
import torch
from click.testing import CliRunner

from memprof_cli.leaks import command as leaks
from memprof_cli.report import command as report
from tests.rules.recorded import findings_of, names

WIDTH = 256
FILLING = 9
"""Steps in which four frames come for each that is taken; in the others none come."""


class Server:
    def __init__(self):
        self.tasks = queue.Queue()
        self.level = 0.0

    def step(self, number):
        for _ in range(4 if number < FILLING else 0):
            self.put((number, torch.rand(WIDTH, WIDTH)))
        for _ in range(1 if number < FILLING else 6):
            if not self.tasks.empty():
                self.level += self.tasks.get_nowait()[1].mean().item()

    def put(self, task):
        self.tasks.put_nowait(task)


class OfTasks(Server):
    def __init__(self):
        self.waiting = self.tasks = asyncio.Queue()
        self.level = 0.0


class Bounded(Server):
    """It drops the oldest when it is full; beside it are ten frames that are needed."""

    def __init__(self):
        self.tasks = queue.Queue(maxsize=18)
        self.level = 0.0
        self.model = [torch.rand(WIDTH, WIDTH) for _ in range(10)]

    def put(self, task):
        if self.tasks.full():
            self.tasks.get_nowait()
        self.tasks.put_nowait(task)


def fires():
    return Server().step


def fires_on_one_of_asyncio():
    return OfTasks().step


def looks_alike():
    return Bounded().step


@pytest.mark.parametrize(
    ("program", "code"),
    [
        (fires, "self.tasks = queue.Queue()"),
        (fires_on_one_of_asyncio, "self.waiting = self.tasks = asyncio.Queue()"),
    ],
)
def test_what_waits_at_the_peak_is_waste_of_a_queue_without_a_bound(program, code, tmp_path):
    found = findings_of(program, tmp_path / "run.json")[0]
    first = found.remedies[0]
    assert (found.rule, found.kind.value, first.fix) == ("queue-backlog", "waste", "bound_queue")
    assert found.bytes >= 3 * FILLING * WIDTH * WIDTH * 4
    assert first.saves_bytes >= 3 * FILLING * WIDTH * WIDTH * 4 - (4 << 20)
    assert first.code == code
    assert not found.minor


def test_a_queue_with_a_bound_is_none(tmp_path):
    assert "queue-backlog" not in names(looks_alike, tmp_path / "run.json")


@pytest.mark.parametrize("command", [leaks, report])
def test_a_finding_over_a_whole_run_that_has_a_line_is_printed(command, tmp_path):
    findings_of(fires, tmp_path / "run.json")
    done = CliRunner().invoke(command, [str(tmp_path / "run.json")])
    assert done.exception is None
    assert "wait in the queue `tasks`" in " ".join(done.output.split())
