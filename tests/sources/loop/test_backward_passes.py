"""Backward passes that Python asks for: when one begins, and when it is over."""

from __future__ import annotations

import pytest
import torch

from memprof.sources.loop.backward_passes import BackwardPasses


@pytest.fixture
def told():
    """What is told of passes, while they are watched."""
    real, events = torch.autograd._engine_run_backward, []
    passes = BackwardPasses(lambda _: events.append("began"), lambda: events.append("ended"))
    passes.open()
    yield events
    passes.close()
    assert torch.autograd._engine_run_backward is real


def product():
    weight = torch.ones(2, requires_grad=True)
    return weight, (weight * 3).sum()


def test_passes_of_both_functions_begin_and_end(told):
    weight, loss = product()
    loss.backward(retain_graph=True)
    assert told == ["began", "ended"]
    assert torch.autograd.grad(loss, weight)[0].tolist() == [3, 3]
    assert told == ["began", "ended"] * 2


def test_one_that_raises_is_over_as_well(told):
    _, loss = product()
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    assert told == ["began", "ended"] * 2


def test_what_the_program_puts_around_it_since_stays_and_tells_no_more():
    real, events = torch.autograd._engine_run_backward, []
    passes = BackwardPasses(lambda _: events.append("began"), lambda: events.append("ended"))
    passes.open()
    passes.open()
    ours = torch.autograd._engine_run_backward

    def theirs(*args, **kwargs):
        return ours(*args, **kwargs)

    torch.autograd._engine_run_backward = theirs
    try:
        passes.close()
        passes.close()
        product()[1].backward()
        assert torch.autograd._engine_run_backward is theirs
        assert events == []
    finally:
        torch.autograd._engine_run_backward = real
