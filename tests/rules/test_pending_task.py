"""pending-task: tasks of asyncio that never end keep what their coroutines know."""

from __future__ import annotations

import asyncio

import pytest
import torch

from tests.rules.recorded import findings_of

WIDTH = 64
BEGUN = "asyncio.create_task(heartbeat(session))  # noqa: RUF006 - that is the mistake"


class Session:
    def __init__(self):
        self.audio = torch.zeros(WIDTH, WIDTH)
        self.beats = 0


async def heartbeat(session):
    while True:
        await asyncio.sleep(60)
        session.beats += 1


async def wait_for(event, audio):
    await event.wait()
    return audio.sum()


class Server:
    """Every step is one client that comes and leaves."""

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        self.never = asyncio.Event()

    def __del__(self):
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()

    async def serve(self):
        session = Session()
        asyncio.create_task(heartbeat(session))  # noqa: RUF006 - that is the mistake
        await asyncio.sleep(0)

    async def serve_by_event(self):
        session = Session()
        task = asyncio.ensure_future(wait_for(self.never, session.audio))
        await asyncio.sleep(0)
        assert not task.done()

    async def serve_and_cancel(self, kept):
        session = Session()
        pending = asyncio.create_task(heartbeat(session))
        await asyncio.sleep(0)
        pending.cancel()
        kept.append(session.audio.clone())


def fires():
    server = Server()
    return lambda number: server.loop.run_until_complete(server.serve())


def fires_on_what_waits_for_an_event():
    server = Server()
    return lambda number: server.loop.run_until_complete(server.serve_by_event())


def looks_alike():
    """Each task is cancelled; what grows is a list."""
    server, kept = Server(), []
    return lambda number: server.loop.run_until_complete(server.serve_and_cancel(kept))


@pytest.mark.parametrize(
    ("program", "code", "how"),
    [
        (fires, BEGUN, "keep the task and cancel it"),
        (
            fires_on_what_waits_for_an_event,
            "task = asyncio.ensure_future(wait_for(self.never, session.audio))",
            "`task.cancel()` when",
        ),
    ],
)
def test_the_line_that_begins_the_task_is_named(program, code, how, tmp_path):
    found = findings_of(program, tmp_path / "run.json")[0]
    first = found.remedies[0]
    assert found.rule == first.rule == "pending-task"
    assert (first.fix, first.code) == ("release", code)
    assert how in first.why
    assert found.bytes_per_step == WIDTH * WIDTH * 4


async def encoded(session):
    await asyncio.sleep(0)
    return session.audio * 2


class Encoder(Server):
    """Keeps its tasks, so that the loop does not lose them."""

    def __init__(self, *, lets_go):
        super().__init__()
        self.tasks, self.lets_go = set(), lets_go

    async def serve(self):
        task = asyncio.create_task(encoded(Session()))
        self.tasks.add(task)
        if self.lets_go:
            task.add_done_callback(self.tasks.discard)
        await task


def keeps_its_tasks(*, lets_go):
    def program():
        encoder = Encoder(lets_go=lets_go)
        return lambda number: encoder.loop.run_until_complete(encoder.serve())

    return program


def test_a_task_that_is_done_is_to_be_taken_out(tmp_path):
    found = findings_of(keeps_its_tasks(lets_go=False), tmp_path / "run.json")[0]
    first = found.remedies[0]
    assert (found.rule, first.fix, first.code) == (
        "pending-task",
        "clear_container",
        "self.tasks.add(task)",
    )
    assert first.typed == "task.add_done_callback(self.tasks.discard)"
    rest = findings_of(keeps_its_tasks(lets_go=True), tmp_path / "other.json")
    assert not [one for one in rest if one.bytes_per_step > 0]
