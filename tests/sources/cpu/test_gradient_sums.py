"""Gradients that meet at a node are recorded as torch sums them where nobody looks: in place."""

from __future__ import annotations

import gc
from functools import partial

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from memprof.trace import Action  # noqa: E402
from tests.sources.recording import CpuRecording  # noqa: E402

ONE = 4 * 250 * 250
"""Bytes of each tensor that the programs make."""


class Recorder(CpuRecording):
    """A window around some calls, with its events and the peak that was counted."""

    def of(self, program, *args):
        """The peak in tensors beyond what was there, by the events and as counted, and the rows."""
        gc.collect()
        self.source.begin_window()
        before = self.source.counters()[0].allocated
        result = program(*args)
        peak = self.source.counters()[0].peak_allocated - before
        (chunk,) = self.source.drain()
        events = chunk.events
        freed = np.where(events.action == Action.FREE_COMPLETED, -events.size, 0)
        change = np.where(events.action == Action.ALLOC, events.size, freed)
        self.source.end_window()
        assert np.all(np.diff(events.time_us) >= 0)
        return int(np.cumsum(change).max()) // ONE, peak // ONE, result


@pytest.fixture
def recorder():
    it = Recorder()
    yield it
    it.close()


def parts(count):
    """A leaf, and what it is multiplied with."""
    return torch.ones(250, 250, requires_grad=True), [torch.ones(250, 250) for _ in range(count)]


def loss_of(leaf, matrices):
    """A loss of products with one tensor, at whose node their gradients meet."""
    middle = leaf * 1.0
    return sum(torch.mm(middle, one).sum() for one in matrices)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_a_sum_takes_the_place_of_what_it_is_added_to(recorder, count):
    leaf, matrices = parts(count)
    loss = loss_of(leaf, matrices)
    # The sum so far and the next gradient: two, however many there are.
    assert recorder.of(loss.backward)[:2] == (2, 2)


def test_what_somebody_else_keeps_is_not_summed_in_place(recorder):
    leaf, matrices = parts(2)
    middle = leaf * 1.0
    kept = []

    class Keep(torch.autograd.Function):
        @staticmethod
        def forward(ctx, one):
            return one.view_as(one)

        @staticmethod
        def backward(ctx, grad):
            grad = torch.mm(grad, grad)
            kept.append(grad)
            return grad

    loss = sum(torch.mm(Keep.apply(middle), one).sum() for one in matrices)
    # Both gradients, which the list keeps, what the last was computed of, and their sum.
    assert recorder.of(loss.backward)[:2] == (4, 4)
    assert len(kept) == 2


def test_a_graph_of_the_backward_pass_is_summed_out_of_place(recorder):
    leaf, matrices = parts(2)
    loss = loss_of(leaf, matrices)
    gradient = partial(torch.autograd.grad, loss, leaf, create_graph=True)
    assert recorder.of(gradient)[:2] == (3, 3)


class Adding(torch.autograd.Function):
    """Adds up two tensors in its ``backward``, of which nobody keeps the first."""

    @staticmethod
    def forward(ctx, one):
        return one.view_as(one)

    @staticmethod
    def backward(ctx, grad):
        return grad * 2 + grad.exp()


@pytest.mark.parametrize("by_hook", [False, True], ids=["a backward", "a hook"])
def test_what_the_program_adds_in_a_backward_pass_keeps_its_peak(by_hook, recorder):
    leaf, (matrix,) = parts(1)
    middle = leaf.view_as(leaf) if by_hook else Adding.apply(leaf)
    if by_hook:
        middle.register_hook(lambda grad: grad * 2 + grad.exp())
    loss = torch.mm(middle, matrix).sum()
    # What comes in, what it is times two, its power, and their sum.
    assert recorder.of(loss.backward)[:2] == (4, 4)


def test_what_the_program_adds_keeps_its_peak(recorder):
    def program():
        one = torch.ones(250, 250)
        other = torch.ones(250, 250)
        one = one + other
        return one.shape

    assert recorder.of(program)[:2] == (3, 3)
