"""Each allocation of a backward pass is told with the forward line of its operator, or with none.

Lines are told by the comments of the programs here: ``# a`` is the line called a.
"""

from __future__ import annotations

import gc
import inspect
import re
import threading
from collections import Counter

import numpy as np
import pytest

from memprof.sources import operator_origins
from memprof.trace import Action, Events, Phase
from tests.sources.recording import CpuRecording

torch = pytest.importorskip("torch", reason="what is recorded is torch's")
functional = torch.nn.functional
checkpoint = pytest.importorskip("torch.utils.checkpoint").checkpoint

LARGE = 1000
"""Tensors with fewer bytes are left out: sums, and gradients of them."""


def names_of_lines(program):
    lines, first = inspect.getsourcelines(program)
    comments = ((re.search(r"# (\w+)$", line), number) for number, line in enumerate(lines, first))
    return {number: comment[1] for comment, number in comments if comment}


def recorded(program):
    """The events of one window around a program, and the tables that they point into."""
    recording = CpuRecording()
    gc.collect()  # what other tests left must not die in the window
    try:
        recording.source.begin_window()
        program()
        events = Events.concatenate([chunk.events for chunk in recording.source.drain()])
        recording.source.end_window()
        recording.source.notes()  # two threads that train are noted
        return events, recording.interner.tables()
    finally:
        recording.close()


@pytest.fixture
def origins_of():
    """How many allocations of backward passes come of each named line; "" is no line."""

    def run(program):
        (events, tables), names = recorded(program), names_of_lines(program)
        told = Counter()
        for row in np.flatnonzero(
            (events.action == Action.ALLOC) & (events.size >= LARGE)
        ).tolist():
            stack = tables.stack(int(events.origin[row]))
            own = [frame.line for frame in stack if frame.filename == __file__]
            if tables.labels[events.label[row]].phase is Phase.BACKWARD:
                told[names[own[0]] if own else ""] += 1
            else:
                assert not own
        return dict(told)

    return run


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


def test_each_operator_of_a_chain_has_its_line(origins_of):
    def program():
        x, w = leaf(40, 30), leaf(30, 50)
        y = x @ w  # product
        y = y.sigmoid()  # sigmoid
        y = y * y  # square
        y.sum().backward()

    # A product gives two gradients, and so does a square, which are added.
    assert origins_of(program) == {"square": 3, "sigmoid": 1, "product": 2}


def test_attention_written_by_hand(origins_of):
    def program():
        q, k, v = leaf(2, 40, 30), leaf(2, 40, 30), leaf(2, 40, 30)
        scores = q @ k.transpose(1, 2)  # scores
        scores = scores / 30**0.5  # scaled
        weights = scores.softmax(-1)  # softmax
        out = weights @ v  # out
        out.sum().backward()

    # The gradient of the transposed keys is copied to where they are kept: no operator's work.
    expected = {"out": 2, "softmax": 1, "scaled": 1, "scores": 2, "": 1}
    assert origins_of(program) == expected


def test_views_have_no_line_of_another_operator(origins_of):
    def program():
        x, c = leaf(1, 60), torch.randn(40, 60)
        y = c * x.exp()  # scaled
        y = y.t().expand(5, 60, 40)
        other = c * c  # noqa: F841 - follows the node of a view
        mask = y > 0  # noqa: F841 - likewise, of what needs a gradient
        z = y.tanh()  # tanh
        z.sum().backward()

    # What `expand` shows five times is summed: a line of its own would be the view's.
    assert origins_of(program) == {"tanh": 1, "": 1, "scaled": 1}


def test_views_of_a_part_have_their_line(origins_of):
    def program():
        x = leaf(40, 60)
        q, k, v = x.exp().chunk(3, -1)  # chunks
        part = (q * k + v)[:, :15]  # part
        row = part.sin()[3]  # row
        row.sum().backward()

    found = origins_of(program)
    found.pop("", 0)
    assert set(found) == {"chunks", "part", "row"}
    assert found["chunks"] == 2  # all three together, and what the exponential makes of it


def test_an_operator_in_place_gives_no_line_to_the_next_one(origins_of):
    def program():
        x, c = leaf(40, 30), torch.randn(40, 30)
        y = x.exp()  # exp
        y = y + 0
        y.mul_(c)
        other = c * c  # noqa: F841 - named as the node before it, and needs no gradient
        mask = y > 0  # noqa: F841
        y.tanh().sum().backward()  # tanh

    assert origins_of(program) == {"tanh": 1, "": 1, "exp": 1}


def test_two_losses_and_a_graph_that_is_kept(origins_of):
    def program():
        x = leaf(40, 30)
        y = x.exp()  # exp
        first = y.sin().sum()  # sin
        second = y.cos().sum()  # cos
        first.backward(retain_graph=True)
        x.grad = None
        first.backward(retain_graph=True)
        x.grad = None
        second.backward()

    found = origins_of(program)
    found.pop("", 0)  # minus of the cosine
    assert {name: found[name] > 0 for name in found} == dict.fromkeys(("exp", "sin", "cos"), True)
    assert found["exp"] == 3


def test_what_needs_no_gradient_is_no_line(origins_of):
    def program():
        x = leaf(40, 30)
        with torch.no_grad():
            x.exp()
        y = x.exp()  # exp
        with torch.no_grad():
            y.exp()
        y.sum().backward()

    assert origins_of(program) == {"exp": 1}


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


def test_a_function_with_a_backward_pass_of_its_own_has_its_own_line(origins_of):
    def program():
        x, c = leaf(40, 30), torch.randn(40, 30)
        y = Doubled.apply(x.exp())  # exp
        other = c * 2  # noqa: F841
        y.tanh().sum().backward()  # tanh

    assert origins_of(program) == {"tanh": 1, "": 1, "exp": 1}


def test_a_hook_has_its_own_line(origins_of):
    def program():
        x = leaf(40, 30)
        y = x.exp()  # exp
        y.register_hook(lambda gradient: gradient * 2)
        y.tanh().sum().backward()  # tanh

    assert origins_of(program) == {"tanh": 1, "": 1, "exp": 1}


def test_a_second_derivative_comes_of_the_line_of_the_first(origins_of):
    def program():
        x = leaf(40, 30)
        y = x.exp()  # exp
        (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        del y
        first.sum().backward()

    found = origins_of(program)
    assert set(found) <= {"exp", ""}
    assert found["exp"] >= 2


@pytest.mark.filterwarnings("ignore:.*cpu.amp.autocast:FutureWarning")  # torch 2.4's own call
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_what_checkpointing_recomputes_is_of_its_own_line(origins_of, use_reentrant):
    def program():
        def block(x):
            y = x.exp()  # exp
            return y.sin()  # sin

        x = leaf(40, 30)
        y = checkpoint(block, x, use_reentrant=use_reentrant)
        y.tanh().sum().backward()  # tanh

    found = origins_of(program)
    assert found.pop("") >= 1  # recomputed: the stack of each says its line itself
    assert found == {"tanh": 1, "exp": 1, "sin": 2}


def test_two_threads_that_make_graphs_say_nothing(origins_of):
    def program():
        def train():
            x = leaf(40, 30)
            (x.exp() * 3).sum().backward()

        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
        train()

    assert set(origins_of(program)) == {""}


def test_a_graph_older_than_what_is_kept_says_nothing(origins_of, monkeypatch):
    monkeypatch.setattr(operator_origins, "MOST_NODES", 4)

    def program():
        x = leaf(40, 30)
        y = x.exp()  # exp
        z = x.sin()
        for _ in range(9):
            z = z.tanh()  # tanh
        (y + z).sum().backward()

    found = origins_of(program)
    assert "exp" not in found
    assert 0 < found["tanh"] < 9
