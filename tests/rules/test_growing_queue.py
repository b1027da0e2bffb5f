"""growing-queue: from step to step more waits in a queue without a bound."""

from __future__ import annotations

import asyncio
import queue
import random

import torch

from memprof.loading import load
from memprof.rules.ranked_findings import findings
from tests import forks
from tests.rules.recorded import findings_of

WIDTH = 256


class Uploader:
    """Of three snapshots about two are sent in time; by chance now this and now that many."""

    def __init__(self, **bound):
        self.jobs = queue.Queue(**bound)
        self.chance = random.Random(3)

    def step(self, number):
        if self.jobs.full():
            self.jobs.get_nowait()
        self.jobs.put_nowait((number, torch.rand(WIDTH, WIDTH)))
        if self.chance.random() < 0.6 and not self.jobs.empty():
            self.jobs.get_nowait()


def fires():
    """In each step two come and one goes."""
    waiting = queue.Queue()

    def step(number):
        for _ in range(2):
            waiting.put((number, torch.rand(WIDTH, WIDTH)))
        waiting.get()

    return step


def fires_by_chance():
    return Uploader().step


class SimpleUploader:
    """Its queue is of the sort that has no largest size."""

    def __init__(self):
        self.pending = queue.SimpleQueue()

    def step(self, number):
        for _ in range(2):
            self.pending.put({"number": number, "weights": torch.rand(WIDTH, WIDTH)})
        self.pending.get()


def fires_on_a_simple_queue():
    return SimpleUploader().step


class Worker:
    """One task that works on what waits, and takes longer than what fills the queue."""

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        self.waiting = asyncio.PriorityQueue()
        self.may_go_on = asyncio.Semaphore(0)
        self.sums = []
        self.worker = self.loop.create_task(self.work())

    def __del__(self):
        self.worker.cancel()
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()

    async def work(self):
        while True:
            _, frame = await self.waiting.get()
            await self.may_go_on.acquire()
            self.sums.append(frame.sum().item())

    async def fill(self, number):
        for at in range(2):
            await self.waiting.put((2 * number + at, torch.rand(WIDTH, WIDTH)))
        self.may_go_on.release()
        for _ in range(4):
            await asyncio.sleep(0)


def fires_beside_one_task():
    worker = Worker()
    task = worker.worker

    def step(number):
        worker.loop.run_until_complete(worker.fill(number))
        assert not task.done()

    return step


def looks_alike():
    """The oldest goes when six wait."""
    return Uploader(maxsize=6).step


class Downloader:
    """It has a queue of the same name, which stays empty."""

    def __init__(self):
        self.jobs = queue.Queue()


class Sender:
    """Another one of that name, which is the one that grows."""

    def __init__(self):
        self.jobs = queue.Queue()  # of snapshots

    def step(self, number):
        self.jobs.put((number, torch.rand(WIDTH, WIDTH)))


def fires_beside_another():
    beside, sender = Downloader(), Sender()

    def step(number):
        sender.step(number)
        assert beside.jobs.empty()

    return step


def test_of_queues_of_one_name_the_one_of_the_holders_class_is_told(tmp_path):
    found = findings_of(fires_beside_another, tmp_path / "run.json")[0]
    assert found.remedies[0].code == "self.jobs = queue.Queue()  # of snapshots"


def test_a_simple_queue_is_to_become_one_that_can_have_a_bound(tmp_path):
    found = findings_of(fires_on_a_simple_queue, tmp_path / "run.json")[0]
    first = found.remedies[0]
    assert (found.rule, first.fix) == ("growing-queue", "bound_queue")
    assert first.code == "self.pending = queue.SimpleQueue()"
    assert "a `SimpleQueue` can have none, make it a `queue.Queue(maxsize=8)`" in first.why
    assert found.bytes_per_step == WIDTH * WIDTH * 4


def test_the_queue_is_told_and_not_the_one_task_that_works_on_it(tmp_path):
    found = findings_of(fires_beside_one_task, tmp_path / "run.json", steps=40)[0]
    first = found.remedies[0]
    assert (found.rule, first.fix) == ("growing-queue", "bound_queue")
    assert first.code == "self.waiting = asyncio.PriorityQueue()"


def test_the_queue_is_to_have_a_bound(tmp_path):
    (found,) = findings_of(fires, tmp_path / "run.json")
    first = found.remedies[0]
    assert (found.rule, found.kind.value, first.fix) == ("growing-queue", "leak", "bound_queue")
    assert first.code == "waiting = queue.Queue()"
    assert found.bytes_per_step == WIDTH * WIDTH * 4


def test_what_some_steps_take_and_others_do_not_grows_all_the_same(tmp_path):
    found = findings_of(fires_by_chance, tmp_path / "run.json", steps=80)[0]
    first = found.remedies[0]
    assert (found.rule, found.kind.value, first.fix) == ("growing-queue", "leak", "bound_queue")
    assert first.code == "self.jobs = queue.Queue(**bound)"
    assert 0.2 < found.bytes_per_step / (WIDTH * WIDTH * 4) < 0.6


FRONTIER = """
import queue
import sys
import memprof
import torch

def main():
    frontier = queue.PriorityQueue()
    frontier.put((0.0, torch.zeros(64, 64)))
    with memprof.track(sys.argv[1], sources=["cpu"], allowance_s=600) as tracker:
        for number in range(24):
            score, weights = frontier.get()
            for child in range(3):
                frontier.put((score + 0.1 * child + number, torch.rand(64, 64)))
            tracker.step()

main()
"""


def test_one_thread_is_not_to_wait_for_itself_and_keeps_what_comes_next(tmp_path):
    for text, way in (
        (FRONTIER, "drop what comes last in its order when it has enough. The thread that fills"),
        (
            FRONTIER.replace("import queue", "import queue, threading"),
            "give it one (`maxsize=8`), so that what fills it waits, or drop what comes last in",
        ),
    ):
        script = tmp_path / "search.py"
        script.write_text(text)
        done = forks.run_file(script, tmp_path / "run.json")
        assert done.returncode == 0, done.stderr
        found, *_ = findings(load(tmp_path / "run.json"))
        first = found.remedies[0]
        assert (found.rule, first.fix) == ("growing-queue", "bound_queue")
        assert first.code == "frontier = queue.PriorityQueue()"
        assert way in first.why
