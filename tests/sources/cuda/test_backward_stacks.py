"""The line of the program that asked for what autograd's own threads allocate."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="backward passes are torch's")

from memprof.sources.cuda.backward_stacks import BackwardStacks  # noqa: E402
from memprof.sources.loop.loop_watch import LoopWatch  # noqa: E402
from memprof.sources.protocol import Interner  # noqa: E402
from memprof.trace import EMPTY  # noqa: E402

OTHERS = 7
"""A row of a stack that is known already."""


class Passes:
    """Backward passes that are followed, and where they were asked for."""

    def __init__(self) -> None:
        self.interner = Interner()
        self._watch = LoopWatch(self.interner)
        self._watch.open(lambda step: None)
        self._watch.watch_modules()
        self.stacks = BackwardStacks(self.interner, self._watch)
        self.stacks.start()

    def close(self) -> None:
        self.stacks.stop()
        self._watch.unwatch_modules()
        self._watch.close()

    def functions(self, *times_us: int, stack: int = EMPTY, in_pass: bool = True) -> list[str]:
        """The function of the program that asked for what was made at each time."""
        count = len(times_us)
        rows = self.stacks.fill(
            np.full(count, stack, np.int32), np.array(times_us), np.full(count, in_pass)
        )
        tables = self.interner.tables()
        own = [
            [f.name.rpartition(".")[2] for f in tables.stack(row) if f.filename == __file__]
            if row != OTHERS
            else ["others"]
            for row in rows.tolist()
        ]
        return [frames[0] if frames else "" for frames in own]


@pytest.fixture
def passes():
    followed = Passes()
    yield followed
    followed.close()


def now_us() -> int:
    return time.time_ns() // 1000


class Moment(torch.autograd.Function):
    """The identity; notes when its backward pass ran, and may ask for another pass there."""

    times_us: list[int]
    inner: object = None

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        Moment.times_us.append(now_us())
        if Moment.inner is not None:
            Moment.inner()
        Moment.times_us.append(now_us())
        return gradient


@pytest.fixture(autouse=True)
def fresh():
    Moment.times_us, Moment.inner = [], None
    yield
    Moment.inner = None


def train() -> None:
    Moment.apply(torch.ones(2, requires_grad=True)).sum().backward()


def test_what_was_made_in_a_pass_is_of_the_line_that_asked_for_it(passes):
    before = now_us() - 1000
    train()
    after = now_us() + 1000
    assert passes.functions(before, *Moment.times_us, after) == ["", "train", "train", ""]


def test_stacks_that_are_known_stay_and_other_threads_have_none(passes):
    train()
    time_us = Moment.times_us[0]
    assert passes.functions(time_us, stack=OTHERS) == ["others"]
    assert passes.functions(time_us, in_pass=False) == [""]


def test_one_that_is_under_way_is_known_too(passes):
    seen = []
    Moment.inner = lambda: seen.extend(passes.functions(now_us()))
    train()
    assert seen == ["train"]


def test_the_inner_of_two_passes_is_the_one(passes):
    def penalty() -> None:
        weight = torch.ones(2, requires_grad=True)
        with torch.enable_grad():
            loss = weight.square().sum()
            time.sleep(0.002)
            Moment.inner = lambda: time.sleep(0.002)
            torch.autograd.grad(Moment.apply(loss), weight)
            time.sleep(0.002)

    Moment.inner = penalty
    train()
    first, *_, last = Moment.times_us
    assert passes.functions(first, last) == ["train", "train"]
    assert set(passes.functions(*range(first, last, 50))) == {"train", "penalty"}


def test_passes_of_two_lines_at_once_tell_nothing(passes):
    both = threading.Barrier(2)
    Moment.inner = both.wait

    def left() -> None:
        Moment.apply(torch.ones(2, requires_grad=True)).sum().backward()

    def right() -> None:
        Moment.apply(torch.ones(2, requires_grad=True)).sum().backward()

    threads = [threading.Thread(target=each) for each in (left, right)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    middle = sorted(Moment.times_us)[1]
    assert passes.functions(middle) == [""]


def test_those_that_are_over_are_forgotten(passes):
    train()
    time_us = Moment.times_us[0]
    passes.stacks.forget_before(time_us)
    assert passes.functions(time_us) == ["train"]
    passes.stacks.forget_before(now_us() + 1)
    assert passes.functions(time_us) == [""]


def test_nothing_is_followed_once_stopped(passes):
    passes.stacks.stop()
    train()
    assert passes.functions(*Moment.times_us) == ["", ""]
