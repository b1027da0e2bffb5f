"""Calls of modules that the native part follows: the same labels as in Python, and no Python run."""

from __future__ import annotations

import sys
import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from memprof.sources.loop import loop_watch as loop  # noqa: E402
from memprof.sources.loop.loop_watch import LoopWatch, annotate  # noqa: E402
from memprof.sources.native_rows import ROW, RowLabels  # noqa: E402
from memprof.sources.protocol import Interner  # noqa: E402
from memprof.trace import Action  # noqa: E402

BYTES = 1 << 20
"""A block of so many bytes and a few more is one of `Noting`'s: its number."""


class Rows:
    """What the native part wrote in a window on the CPU: the label of each noted allocation."""

    def __init__(self, native):
        self.interner = Interner()
        self.loop_watch = LoopWatch(self.interner)
        self.native = native
        self.numbers = iter(range(1, 1000))
        self.expected = {}

    def __enter__(self):
        self.loop_watch.open(lambda _: self.labels.step_began())
        self.labels = RowLabels(self.interner, self.loop_watch, self.native)
        self.native.cpu_start()
        self.native.cpu_begin()
        self.labels.start()
        self.loop_watch.step_done()
        return self

    def __exit__(self, *_):
        rows = np.frombuffer(self.native.cpu_take(False)[0], ROW)
        labels = self.labels.of(rows).tolist()
        self.labels.stop()
        self.loop_watch.close()
        self.native.cpu_end()
        self.native.cpu_stop()
        assert self.labels.failure == ""
        assert self.loop_watch.notes() == []
        known = self.interner.labels(0)
        is_noted = (rows["action"] == Action.ALLOC) & (rows["size"] > BYTES)
        self.found = {
            int(rows["size"][at]) - BYTES: known[labels[at]]
            for at in np.flatnonzero(is_noted & (rows["size"] < BYTES + 1000)).tolist()
        }

    def note(self, module, annotation="", phase=1, step=1):
        """Allocate here, where the label is to say this."""
        number = next(self.numbers)
        self.expected[number] = (step, phase, module, annotation)
        torch.empty(BYTES + number, dtype=torch.uint8)

    def check(self):
        found = {
            number: (one.step, int(one.phase), one.module, one.annotation)
            for number, one in self.found.items()
        }
        assert self.expected
        assert found == self.expected


class Noting(nn.Module):
    """Allocates before and after it calls what it was given."""

    def __init__(self, rows, path, *inside):
        super().__init__()
        self.rows, self.path, self.more = rows, path, {}
        self.inside = nn.ModuleList(inside)

    def forward(self, x):
        self.rows.note(self.path, **self.more)
        for module in self.inside:
            x = module(x)
            self.rows.note(self.path, **self.more)
        return x


@pytest.fixture
def rows(native_part):
    return Rows(native_part)


def nested(rows, *deepest):
    inner = Noting(rows, "Noting.inside.0.inside.0", *deepest)
    return Noting(rows, "Noting", Noting(rows, "Noting.inside.0", inner))


def test_every_allocation_has_the_module_that_it_is_made_in(rows):
    net = nested(rows)
    with rows:
        for _ in range(3):
            net(torch.ones(1))
    rows.check()


def test_calls_within_a_known_one_run_no_code_of_memprof_in_python(rows):
    net = nn.Sequential(*(nn.Sequential(nn.Identity()) for _ in range(10)))
    run = []

    def called(frame, event, _):
        if event == "call" and frame.f_code.co_filename == loop.__file__:
            run.append(frame.f_code.co_name)

    with rows:
        net(torch.ones(1))
        sys.setprofile(called)
        try:
            net(torch.ones(1))
        finally:
            sys.setprofile(None)
        assert rows.loop_watch.modules.path(net[3][0]) == "Sequential.3.0"
    assert run.count("before_module") == run.count("after_module") == 1  # of 21 calls


def test_an_exception_that_a_module_catches_leaves_the_others_where_they_are(rows):
    class Failing(nn.Module):
        def forward(self, _):
            rows.note("Noting.inside.0.inside.0.inside.0")
            raise ValueError("on purpose")

    class Catching(Noting):
        def forward(self, x):
            try:
                self.inside[0](x)
            except ValueError:
                rows.note(self.path)
            return x

    failing = Failing()
    caught = Catching(rows, "Noting.inside.0.inside.0", failing)
    net = Noting(rows, "Noting", Noting(rows, "Noting.inside.0", caught))
    with rows:
        for _ in range(2):
            net(torch.ones(1))
    rows.check()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_ends_a_call_without_a_hook_is_forgotten(rows, error):
    class Ending(nn.Module):
        ends = True

        def forward(self, x):
            if self.ends:
                raise error
            return x

    class Trying(Noting):
        def forward(self, x):
            try:
                self.inside[0](x)
            except error:
                pass
            return x

    ending = Ending()
    net = Noting(rows, "Noting", Trying(rows, "", nn.Sequential(ending)), nn.Identity())
    with rows:
        net(torch.ones(1))
        ending.ends = False
        net(torch.ones(1))
    rows.check()


def test_annotations_and_steps_that_change_within_a_call_count_from_there_on(rows):
    class Changing(nn.Module):
        def forward(self, x):
            rows.note(self.path)
            with annotate("inside"):
                rows.note(self.path, "inside")
                x = self.named(x)
            rows.note(self.path)
            rows.loop_watch.step_done()
            rows.note(self.path, step=2)
            self.named.more = {"step": 2}
            return self.named(x)

    changing = Changing()
    changing.path = "Sequential.0"
    changing.named = Noting(rows, "Sequential.0.named")
    changing.named.more = {"annotation": "inside"}
    net = nn.Sequential(changing)
    with rows:
        net(torch.ones(1))
    rows.check()


def test_threads_are_each_in_modules_of_their_own(rows):
    nets = [nested(rows) for _ in range(4)]
    for number, net in enumerate(nets):
        for module in net.modules():
            if isinstance(module, Noting) and number:
                module.path = module.path.replace("Noting", f"Noting#{number + 1}")
    with rows:
        for net in nets:
            net(torch.ones(1))
        barrier = threading.Barrier(len(nets))

        def run(net):
            for module in net.modules():
                if isinstance(module, Noting):
                    module.more = {"annotation": "thread Thread (run)"}
            barrier.wait()
            for _ in range(5):
                net(torch.ones(1))

        threads = [threading.Thread(target=run, args=(net,)) for net in nets]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    rows.check()


def test_modules_that_are_called_again_in_a_backward_pass_are_found_there(rows):
    class Repeating(Noting):
        def forward(self, x):
            return checkpoint(self.inside[0], x, use_reentrant=False)

    inner = Noting(rows, "Repeating.inside.0", nn.Linear(1, 1))
    net = Repeating(rows, "Repeating", inner)
    with rows:
        y = net(torch.ones(1))
        inner.more = {"phase": 2}
        y.sum().backward()
    rows.check()


def test_what_a_backward_pass_allocates_belongs_to_the_module_of_its_node(rows):
    class Doubling(torch.autograd.Function):
        @staticmethod
        def forward(_, x):
            return x * 2

        @staticmethod
        def backward(_, gradient):
            rows.note("Sequential.1.0", phase=2)
            return gradient * 2

    class Double(nn.Module):
        def forward(self, x):
            return Doubling.apply(x)

    net = nn.Sequential(nn.Linear(1, 1), nn.Sequential(Double()), nn.Linear(1, 1))
    with rows:
        net(torch.ones(1)).sum().backward()
    rows.check()


def test_a_module_that_joins_later_and_one_that_is_another_s_too_have_their_paths(rows):
    net = nested(rows)
    shared = Noting(rows, "Noting.inside.1")
    with rows:
        net(torch.ones(1))
        net.inside.append(shared)
        net(torch.ones(1))
        net.inside[0].inside.append(shared)  # keeps its first name
        net(torch.ones(1))
    rows.check()


def test_two_recordings_do_not_follow_each_other_s_calls(rows):
    other = LoopWatch(Interner())
    other.open(lambda _: None)
    other.watch_modules()
    net = nested(rows)
    with rows:
        assert not other.follow_natively(rows.native)
        net(torch.ones(1))
    other.close()
    rows.check()


def test_afterwards_nothing_is_held_and_no_hook_is_left(rows):
    import gc
    import weakref

    from torch.nn.modules import module

    net = nested(rows)
    with rows:
        net(torch.ones(1))
    gone = [weakref.ref(rows.loop_watch), weakref.ref(net)]
    del net
    rows.loop_watch = rows.labels = None
    gc.collect()
    assert [ref() for ref in gone] == [None, None]
    tables = {k: v for k, v in vars(module).items() if k.startswith("_global_") and v}
    assert [name for name in tables if "forward" in name] == []
    assert rows.native.calls_before(None, ()) is None
    assert rows.native.calls_after(None, (), None) is None
