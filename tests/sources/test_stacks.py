"""Stacks that are captured with the help of places equal those that are walked to the end."""

from __future__ import annotations

import threading

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from memprof.sources.stacks import StackCapture, recorded_frames  # noqa: E402
from memprof.trace import Phase  # noqa: E402
from tests.sources.recording import CpuRecording  # noqa: E402


class Checked(CpuRecording):
    """Records, and compares every stack with the one that a walk through all frames gives."""

    def __init__(self, monkeypatch):
        super().__init__()
        self.whole = StackCapture(self.interner)
        self.wrong = []
        self.phases = set()
        self.quick = StackCapture.capture
        self.within = threading.local()

        def capture(stacks, frame, place):
            return self.capture(stacks, frame, place)

        monkeypatch.setattr(StackCapture, "capture", capture)
        self.source.begin_window()

    def capture(self, stacks, frame, place):
        is_part = getattr(self.within, "another", False)
        if stacks is self.whole or is_part:
            return self.quick(stacks, frame, place)
        self.within.another = True
        row = self.quick(stacks, frame, place)
        self.within.another = False
        self.phases.add(place.phase)
        if row != self.quick(self.whole, frame, None):
            self.wrong.append((place.phase, place.path))
        return row


@pytest.fixture
def checked(monkeypatch):
    it = Checked(monkeypatch)
    yield it
    it.close()


class Doubled(torch.autograd.Function):
    """Its backward is Python code, and runs a backward pass of its own."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        with torch.enable_grad():
            x = ctx.saved_tensors[0].detach().requires_grad_()
            (inner,) = torch.autograd.grad((x * 2).sum(), x)
        return gradient * inner


class Net(nn.Module):
    def __init__(self, recompute=""):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.recompute = recompute

    def forward(self, x):
        for layer in self.layers:
            if self.recompute:
                x = checkpoint(layer, x, use_reentrant=self.recompute == "reentrant")
            else:
                x = Doubled.apply(torch.tanh(layer(x)))
        return x


@pytest.mark.parametrize("recompute", ["", "reentrant", "not"])
def test_stacks_of_all_phases_are_whole(checked, recompute):
    model = Net(recompute)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        model(torch.randn(2, 4, requires_grad=True)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert checked.wrong == []
    assert checked.phases == {Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.OTHER}


def test_stacks_are_whole_where_an_optimizer_calls_the_model(checked):
    model = Net()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).square().mean()
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)
    assert checked.wrong == []


def test_stacks_are_whole_where_optimizers_step_in_a_backward_pass(checked):
    model = Net()
    optimizers = {p: torch.optim.SGD([p], 0.1, momentum=0.9) for p in model.parameters()}

    def step(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    for _ in range(2):
        model(torch.ones(2, 4)).square().mean().backward()
    assert checked.wrong == []


def test_stacks_are_whole_after_a_step_that_failed(checked):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def closure():
        raise KeyError

    def fail():
        with pytest.raises(KeyError):
            optimizer.step(closure)

    for _ in range(3):
        fail()
        torch.ones(2) + 1
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    assert checked.wrong == []


def test_a_deep_stack_keeps_what_lies_beyond_a_function_that_calls_itself():
    recursion = [1, 2, 3] * 40
    assert recorded_frames([9, *recursion, 4, 5]) == (9, *(1, 2, 3) * 8, 4, 5)
    assert recorded_frames([1, 2, 3] * 20) == (1, 2, 3) * 20
    assert recorded_frames(range(100)) == tuple(range(64))
