"""joined: parts are still there beside the tensor that was joined from them."""

from __future__ import annotations

import torch

from tests.rules.recorded import findings_of

PARTS, WIDTH = 8, 1 << 14


def fires():
    """A rollout, whose frames stay in their list while the batch is worked on."""

    def step(number):
        frames = [torch.full((WIDTH,), float(part)) for part in range(PARTS)]
        batch = torch.stack(frames)
        torch.exp(batch).mul_(batch).add_(torch.sin(batch)).sum().item()

    return step


def looks_alike():
    """As many tensors beside their batch, which are its views and no parts of it."""

    def step(number):
        batch = torch.stack([torch.full((WIDTH,), float(part)) for part in range(PARTS)])
        frames = list(batch.unbind())
        torch.exp(batch).mul_(batch).add_(torch.sin(batch)).sum().item()
        assert len(frames) == PARTS

    return step


def test_it_is_enough_to_drop_what_is_joined_where_the_peak_comes_later(tmp_path):
    (found,) = [one for one in findings_of(fires, tmp_path / "run.json") if one.rule == "joined"]
    assert found.bytes == found.match.saving.bytes == PARTS * WIDTH * 4
    assert found.match.drop
    assert found.site.code == "batch = torch.stack(frames)"
    assert found.remedies[0].fix == "clear_container"
