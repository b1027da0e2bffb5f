"""waiting-threads: ever more threads wait for more to do, and keep their variables."""

from __future__ import annotations

import queue
import threading
from concurrent.futures import ThreadPoolExecutor

import torch

from tests.rules.recorded import findings_of, findings_of_fork

WIDTH = 64


class Writer:
    def __init__(self):
        self.inbox, self.outbox = queue.Queue(), queue.Queue()
        self.thread = threading.Thread(target=self.work, daemon=True)
        self.thread.start()

    def work(self):
        staging = torch.zeros(WIDTH, WIDTH)
        while True:
            item = self.inbox.get()
            if item is None:
                return
            staging.fill_(item)
            self.outbox.put(staging.sum().item())


def writing(*, ends):
    def program():
        kept = []

        def step(number):
            writer = Writer()
            writer.inbox.put(number)
            kept.append(torch.full((WIDTH, WIDTH), writer.outbox.get()) if ends else number)
            if ends:
                writer.inbox.put(None)
                writer.thread.join()

        return step

    return program


def fires():
    return writing(ends=False)()


def looks_alike():
    """What grows is a list."""
    return writing(ends=True)()


class Keeper:
    """One of a few threads, each of which keeps what it made in a list of its own."""

    def __init__(self):
        self.inbox, self.outbox = queue.Queue(), queue.Queue()
        threading.Thread(target=self.keep, daemon=True).start()

    def keep(self):
        made = []
        while (value := self.inbox.get()) is not None:
            made.append(torch.full((WIDTH, WIDTH), value))
            self.outbox.put(len(made))


def test_few_threads_may_keep_more_and_more(tmp_path):
    keepers = []

    def few_that_keep():
        keepers.extend(Keeper() for _ in range(3))

        def step(number):
            for keeper in keepers:
                keeper.inbox.put(float(number))
                keeper.outbox.get()

        return step

    found = findings_of(few_that_keep, tmp_path / "run.json")[0]
    for keeper in keepers:  # other tests look at the threads that there are
        keeper.inbox.put(None)
    assert found.kind.value == "leak"
    assert "waiting-threads" not in (found.rule, *(one.rule for one in found.remedies))


def test_each_thread_is_to_be_told_to_end(tmp_path):
    found = findings_of_fork(fires, tmp_path / "run.json")[0]  # the threads end with that process
    first = found.remedies[0]
    assert (found.rule, first.fix) == ("waiting-threads", "release")
    assert first.code == "self.thread = threading.Thread(target=self.work, daemon=True)"
    assert "threads run `work`" in first.why


def test_what_a_list_keeps_is_no_thread_s(tmp_path):
    found = findings_of(looks_alike, tmp_path / "run.json")[0]
    assert found.rule != "waiting-threads"


class Shard(threading.Thread):
    """Starts itself."""

    def __init__(self, number):
        super().__init__(daemon=True, name=f"shard {number}")
        self.inbox, self.ready = queue.Queue(maxsize=2), threading.Event()
        self.start()

    def run(self):
        buffer = torch.zeros(WIDTH, WIDTH)
        while True:
            item = self.inbox.get()
            if item is None:
                return
            buffer.fill_(item)
            self.ready.set()


def shards(*, ends):
    def program():
        kept = []

        def step(number):
            shard = Shard(number)
            shard.inbox.put(number)
            shard.ready.wait()
            if ends:
                shard.inbox.put(None)
                shard.join()
                kept.append(torch.zeros(WIDTH, WIDTH))

        return step

    return program


def shards_that_stay():
    return shards(ends=False)()


def test_threads_of_an_own_class_are_ended_where_they_are_made(tmp_path):
    found = findings_of_fork(shards_that_stay, tmp_path / "run.json", steps=24)[0]
    first = found.remedies[0]
    assert (found.rule, first.fix) == ("waiting-threads", "release")
    assert first.code == "shard = Shard(number)"


def test_threads_of_an_own_class_that_end_are_none(tmp_path):
    found = findings_of(shards(ends=True), tmp_path / "run.json", steps=24)[0]
    assert found.rule != "waiting-threads"


OWN = threading.local()


def prepare():
    OWN.noise = torch.zeros(WIDTH, WIDTH)


def pools(*, ends):
    """A pool for each step, whose threads have a buffer of their own."""

    def program():
        alive = []

        def step(number):
            pool = ThreadPoolExecutor(1, initializer=prepare)
            pool.submit(prepare).result()
            if ends:
                pool.shutdown()
                alive.append(torch.zeros(WIDTH, WIDTH))
            else:
                alive.append(pool)

        return step

    return program


def pools_that_stay():
    return pools(ends=False)()


def test_variables_of_threads_of_pools_stay_with_them(tmp_path):
    found = findings_of_fork(pools_that_stay, tmp_path / "run.json", steps=24)[0]
    first = found.remedies[0]
    assert (found.rule, first.fix) == ("waiting-threads", "release")
    assert first.code == "pool = ThreadPoolExecutor(1, initializer=prepare)"
    assert "`shutdown()` of a pool" in first.why


def test_pools_that_are_shut_down_are_none(tmp_path):
    found = findings_of(pools(ends=True), tmp_path / "run.json", steps=24)[0]
    assert "waiting-threads" not in (found.rule, *(one.rule for one in found.remedies))
