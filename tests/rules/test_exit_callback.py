"""exit-callback: `atexit` keeps the objects whose methods it is to call when the process ends."""

from __future__ import annotations

import atexit
import functools

import pytest
import torch

from memprof.referrers.exit_callbacks import exit_link
from tests.rules.recorded import findings_of_fork

WIDTH = 64


class Viewer:
    def __init__(self):
        self.canvas = torch.zeros(WIDTH, WIDTH)
        atexit.register(self.close)

    def close(self):
        self.is_open = False


class Released(Viewer):
    def close(self):
        atexit.unregister(self.close)


def fires():
    def step(number):
        Viewer().close()

    return step


def fires_on_a_closure():
    def step(number):
        canvas = torch.zeros(WIDTH, WIDTH)
        atexit.register(lambda: print(canvas.sum()))

    return step


def saved(canvas):
    return canvas.sum()


def fires_on_arguments():
    def step(number):
        canvas = torch.zeros(WIDTH, WIDTH)
        atexit.register(saved, canvas)

    return step


def shown(*, picture):
    return picture.sum()


def fires_on_an_argument_by_name():
    def step(number):
        atexit.register(shown, picture=torch.zeros(WIDTH, WIDTH))

    return step


def fires_on_a_partial():
    def step(number):
        canvas = torch.zeros(WIDTH, WIDTH)
        atexit.register(functools.partial(saved, [canvas]))

    return step


class Recorder:
    """It registers what ends it by a decorator."""

    def __init__(self):
        self.rows = []

        @atexit.register
        def flushed():
            self.close()

    def write(self, row):
        self.rows.append(row)

    def close(self):
        self.is_open = False


def fires_on_a_decorated_function():
    def step(number):
        recorder = Recorder()
        recorder.write(torch.zeros(WIDTH, WIDTH))
        recorder.close()

    return step


def looks_alike():
    """Each viewer takes itself out; what grows is a list of canvases."""
    canvases = []

    def step(number):
        viewer = Released()
        viewer.close()
        canvases.append(viewer.canvas.clone())

    return step


@pytest.mark.parametrize(
    ("program", "code", "function"),
    [
        (fires, "atexit.register(self.close)", "self.close"),
        (fires_on_a_closure, "atexit.register(lambda: print(canvas.sum()))", "<lambda>"),
        (fires_on_arguments, "atexit.register(saved, canvas)", "`atexit.unregister(saved)`"),
        (
            fires_on_an_argument_by_name,
            "atexit.register(shown, picture=torch.zeros(WIDTH, WIDTH))",
            "`atexit.unregister(shown)`",
        ),
        (
            fires_on_a_partial,
            "atexit.register(functools.partial(saved, [canvas]))",
            "give what is registered a name",
        ),
        (fires_on_a_decorated_function, "@atexit.register", "`atexit.unregister(flushed)`"),
    ],
)
def test_the_line_that_registers_it_is_named(program, code, function, tmp_path):
    (found,) = findings_of_fork(program, tmp_path / "run.json")
    first = found.remedies[0]
    assert found.rule == first.rule == "exit-callback"
    assert first.fix == "release"
    assert found.bytes_per_step == WIDTH * WIDTH * 4
    assert (first.code, function in first.why) == (code, True)


class Refuses:
    """It is registered, and cannot be compared."""

    def __eq__(self, other):
        raise ValueError

    def __hash__(self):
        return 0

    def __call__(self):
        pass


def test_all_that_is_registered_stays_so():
    calls, viewer = Refuses(), Viewer()
    atexit.register(calls)
    before = atexit._ncallbacks()
    try:
        assert exit_link(saved) is None
        assert atexit._ncallbacks() == before
    finally:
        calls.__class__ = Viewer  # so that it can be taken out
        atexit.unregister(calls)
        atexit.unregister(viewer.close)
