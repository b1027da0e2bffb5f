"""Running out of memory in a forward pass: no backward pass has told yet what its tensors are."""

from __future__ import annotations

from contextlib import nullcontext, suppress

import pytest

torch = pytest.importorskip("torch", reason="a recording needs torch")

import memprof  # noqa: E402
from memprof.oom.post_mortem import post_mortems  # noqa: E402
from memprof.testing.cuda import StandInOutOfMemoryError  # noqa: E402
from tests.sources.pretended import recorded_device  # noqa: E402

MIB = 1 << 20


class Block(torch.nn.Module):
    """Makes three tensors of the size of its input, and its backward pass needs them all."""

    def forward(self, x):
        return (x.sin().exp() + 1).tanh()


def train(batches: tuple[int, ...], mode=nullcontext) -> None:
    """A MiB for each row of a batch, and a last batch that is too large."""
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), *[Block() for _ in range(6)])
    model.append(torch.nn.Linear(256, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for rows in batches:
        batch = torch.randn(rows * 1024, 256)
        with mode():
            loss = model(batch).mean()
        if loss.requires_grad:
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.fixture
def post_mortem(monkeypatch, tmp_path):
    def run(*args, **options):
        device = recorded_device(monkeypatch, capacity=100 * MIB)
        path = tmp_path / "run.json"
        tracked = memprof.track(path, sources=("cuda",), **options)
        with suppress(StandInOutOfMemoryError), tracked, device:
            train(*args)
        (told,) = post_mortems(memprof.load(path))
        return told

    return run


def test_the_activations_that_fill_the_device_are_named(post_mortem):
    told = post_mortem((1, 1, 1, 12))
    assert told.failure.label.phase.name == "FORWARD"
    held = {group.name: group.bytes for group in told.categories}
    assert set(held) <= {"activation", "input", "parameter", "unknown"}
    # Of eight tensors of 12 MiB that fit one is the batch.
    assert held["input"] == 12 * MIB
    assert held["activation"] >= 72 * MIB
    assert held.get("unknown", 0) < MIB


def test_checkpointing_is_shown_to_help_where_it_does(post_mortem):
    told = post_mortem((1, 1, 1, 12))
    (rescue,) = (r for r in told.rescues.fitting if r.kind == "checkpoint")
    assert rescue.change.startswith("checkpoint Sequential.* (24 MiB")


def test_it_is_so_where_the_pass_was_read_in_several_pieces(post_mortem, monkeypatch):
    monkeypatch.setattr(
        "memprof.sources.cuda.memory_history.MemoryHistory.is_filling", lambda _: True
    )
    monkeypatch.setattr("memprof.sources.cuda.snapshot_source.PASSING_US", 0)
    held = {group.name: group.bytes for group in post_mortem((1, 1, 1, 12)).categories}
    assert held["activation"] >= 72 * MIB


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients_nothing_is_called_an_activation(post_mortem, mode):
    told = post_mortem((1, 1, 60), mode)
    assert told.failure.label.phase.name == "FORWARD"
    assert "activation" not in {group.name for group in told.categories}
