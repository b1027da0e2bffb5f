"""queue-backlog: a queue without a bound is filled faster than it is emptied."""

from __future__ import annotations

import asyncio
import queue
import runpy
import threading

import pytest
import torch
from click.testing import CliRunner

import memprof
from memprof.rules.ranked_findings import findings
from memprof_cli.leaks import command as leaks
from memprof_cli.report import command as report
from tests.rules.recorded import findings_of, names

WIDTH = 256
FRAMES = 40
PREFETCHED = f"""
import queue
import threading
import torch
import memprof

def fill(out):
    for _ in range({FRAMES}):
        frame = torch.rand({WIDTH}, {WIDTH})
        out.put(frame)

def train():
    ready = queue.Queue()
    filler = threading.Thread(target=fill, args=(ready,))
    filler.start()
    filler.join()
    level = 0.0
    for _ in range({FRAMES}):
        level += ready.get().mean().item()
        memprof.step()

train()
"""
"""A thread has made all frames when the first is taken."""
TAKES_ONE = f"_ in range({FRAMES}):\n        level += ready.get()"
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


class OfThread(Server, threading.Thread):
    """An object of the program's own class of threads, with a queue that can have no bound."""

    def __init__(self):
        threading.Thread.__init__(self)
        self.tasks = queue.SimpleQueue()
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


def fires_on_one_of_a_thread():
    return OfThread().step


def looks_alike():
    return Bounded().step


@pytest.mark.parametrize(
    ("program", "code"),
    [
        (fires, "self.tasks = queue.Queue()"),
        (fires_on_one_of_a_thread, "self.tasks = queue.SimpleQueue()"),
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


def backlogs(text, folder):
    """What is found of a program in a file of its own: it must make the only queue."""
    program = folder / "prefetched.py"
    program.write_text(text)
    with memprof.track(folder / "r.json", sources=["cpu"], allowance_s=60):
        runpy.run_path(str(program), run_name="__main__")
    return [one for one in findings(memprof.load(folder / "r.json")) if one.rule == "queue-backlog"]


def test_what_went_before_anything_searched_for_it_is_found_by_what_puts_it_there(tmp_path):
    (found,) = backlogs(PREFETCHED, tmp_path)
    (first,) = found.remedies
    assert found.bytes == FRAMES * WIDTH * WIDTH * 4
    assert (first.code, first.fix) == ("ready = queue.Queue()", "bound_queue")
    assert f"{FRAMES} items waited in it" in first.why
    assert found.site.code == "frame = torch.rand(256, 256)"


COLLECTED = (
    PREFETCHED.replace("import queue", "from collections import deque")
    .replace("queue.Queue()", "deque()")
    .replace("out.put(", "out.append(")
    .replace("ready.get()", "ready.popleft()")
)
"""The same with a deque, which one thread fills and another takes the oldest out of."""


def test_a_deque_that_another_thread_takes_the_oldest_out_of_is_a_queue(tmp_path):
    (found,) = backlogs(COLLECTED, tmp_path)
    (first,) = found.remedies
    assert found.bytes == FRAMES * WIDTH * WIDTH * 4
    assert (first.code, first.fix) == ("ready = deque()", "bound_queue")
    assert "make it a `queue.Queue(maxsize=8)`" in first.why
    assert found.site.code == "frame = torch.rand(256, 256)"


@pytest.mark.parametrize(
    ("instead", "of"),
    [
        ("deque(maxlen=50)", "deque()"),
        ("ready.pop()", "ready.popleft()"),
        ("range(len(ready))", "range(40)"),
        ("fill(ready)", "filler = threading.Thread(target=fill, args=(ready,))"),
    ],
    ids=["bounded", "stack", "counted", "of one thread"],
)
def test_a_deque_that_is_no_queue_of_threads_is_left_alone(instead, of, tmp_path):
    text = COLLECTED
    if of.startswith("filler"):
        text = text.replace("import threading\n", "")
        text = text.replace("    filler.start()\n    filler.join()\n", "")
    head, train = text.split("def train()")
    assert not backlogs(f"{head}def train(){train.replace(of, instead)}", tmp_path)


@pytest.mark.parametrize(
    ("instead", "of"),
    [
        ("queue.Queue(50)", "queue.Queue()"),
        ("range(ready.qsize())", "range(40)"),
        ("one in [ready.get() for _ in range(40)]:\n        level += one", TAKES_ONE),
    ],
    ids=["bounded", "watched", "gathered"],
)
def test_what_may_be_meant_is_left_alone(instead, of, tmp_path):
    head, train = PREFETCHED.split("def train()")
    assert not backlogs(f"{head}def train(){train.replace(of, instead)}", tmp_path)


def test_a_queue_with_a_bound_is_none(tmp_path):
    assert "queue-backlog" not in names(looks_alike, tmp_path / "run.json")


@pytest.mark.parametrize("command", [leaks, report])
def test_a_finding_over_a_whole_run_that_has_a_line_is_printed(command, tmp_path):
    findings_of(fires, tmp_path / "run.json")
    done = CliRunner().invoke(command, [str(tmp_path / "run.json")])
    assert done.exception is None
    assert "wait in the queue `tasks`" in " ".join(done.output.split())
