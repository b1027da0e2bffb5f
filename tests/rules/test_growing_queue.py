"""growing-queue: from step to step more waits in a queue without a bound."""

from __future__ import annotations

import queue
import random

import torch

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
