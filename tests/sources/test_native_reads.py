"""From when on the native part observes what operators read."""

from __future__ import annotations

import gc
from contextlib import nullcontext

import numpy as np
import pytest
import torch

import memprof
from memprof.loading import load
from memprof.sources.native_reads import CPU, LEAST_BYTES
from memprof.trace import Action
from memprof.views.examination import examine

pytestmark = pytest.mark.usefixtures("with_native")


def windows_of(path):
    (device,) = examine(load(path)).devices
    return device.windows


def test_reads_are_observed_from_the_step_after_the_first_large_block(tmp_path):
    """What came before may have been read unseen."""
    gc.collect()
    with memprof.track(tmp_path / "run.json", sources=("cpu",), allowance_s=600) as tracker:
        for _ in range(4):
            x = torch.ones(LEAST_BYTES // 4)
            total = x.sum()
            kept = torch.empty(16)
            del x
            tracker.step()
    assert (float(total), len(kept)) == (LEAST_BYTES // 4, 16)
    (window,) = windows_of(tmp_path / "run.json")
    large = np.flatnonzero(
        (window.lives.requested == LEAST_BYTES) & (window.lives.alloc >= 0)
    ).tolist()
    assert len(large) == 4
    known = [row for row in large if window.unread_from[row] < window.lives.free[row]]
    assert known == large[1:]


def test_nothing_is_observed_where_all_is_small(tmp_path, native_part):
    with memprof.track(tmp_path / "run.json", sources=("cpu",), allowance_s=600) as tracker:
        for _ in range(4):
            assert torch.ones(64).sum() == 64
            tracker.step()
            assert not native_part.reads_has_large(CPU)
    (window,) = windows_of(tmp_path / "run.json")
    assert (window.trace.events.action == Action.ALLOC).sum() >= 8
    assert len(window.trace.last_reads.made) == 0


def trained(record):
    """The losses of three steps with large tensors, and the weights that they lead to."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Dropout(), torch.nn.Linear(512, 8)
    )
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    with record() as tracker:
        for _ in range(3):
            loss = model(torch.randn(512, 256)).logsumexp(1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if tracker is not None:
                tracker.step()
    return losses, [one.detach() for one in model.parameters()]


def test_observing_changes_no_number(tmp_path):
    losses, weights = trained(nullcontext)
    path = tmp_path / "run.json"
    observed_losses, observed_weights = trained(
        lambda: memprof.track(path, sources=("cpu",), allowance_s=600)
    )
    (window,) = windows_of(path)
    assert len(window.trace.last_reads.made) > 0
    assert observed_losses == losses
    assert all(map(torch.equal, observed_weights, weights))
