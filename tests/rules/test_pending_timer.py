"""pending-task: timers of asyncio that are not cancelled keep what their functions know."""

from __future__ import annotations

import asyncio

import torch

from tests.rules.recorded import findings_of

WIDTH = 64


class Request:
    def __init__(self, loop):
        self.images = torch.zeros(WIDTH, WIDTH)
        self.answer = loop.create_future()

    def expire(self):
        self.answer.cancel()


class Service:
    """Every step is a request that is answered long before it expires."""

    def __init__(self, cancels):
        self.loop, self.cancels = asyncio.new_event_loop(), cancels
        self.seen = []

    def __del__(self):
        self.loop.close()

    def tick(self):
        self.seen.clear()

    async def serve(self):
        self.loop.call_later(0, self.tick).cancel()  # of another function
        request = Request(self.loop)
        handle = self.loop.call_later(600, request.expire)
        request.answer.set_result(request.images.sum().item())
        if self.cancels:
            handle.cancel()
            self.seen.append(request.images.clone())
        await asyncio.sleep(0)


def serving(*, cancels):
    def program():
        service = Service(cancels)
        return lambda number: service.loop.run_until_complete(service.serve())

    return program


fires = serving(cancels=False)
looks_alike = serving(cancels=True)
"""What grows is a list."""


def test_the_timer_is_to_be_cancelled(tmp_path):
    found = findings_of(fires, tmp_path / "run.json")[0]
    first = found.remedies[0]
    assert (found.rule, first.fix) == ("pending-task", "release")
    assert first.code == "handle = self.loop.call_later(600, request.expire)"
    assert "`handle.cancel()`" in first.why


def test_what_a_list_keeps_is_no_timers(tmp_path):
    found = findings_of(looks_alike, tmp_path / "run.json")[0]
    assert found.rule != "pending-task"
