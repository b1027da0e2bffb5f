"""upcast: a tensor is converted to a wider type as a whole, and both are there at once."""

from __future__ import annotations

import torch

from tests.rules.recorded import findings_of


def fires():
    def step(number):
        logits = torch.ones(512, 1024, dtype=torch.bfloat16)
        wide = logits.float()
        wide[:, -1].sum().item()

    return step


def looks_alike():
    """Twice as large as another tensor too, because it has twice the values."""

    def step(number):
        half = torch.ones(512, 512)
        both = torch.softmax(torch.cat((half, half), 1), -1)
        both[:, -1].sum().item()

    return step


def test_the_copy_takes_twice_the_bytes_of_the_tensor(tmp_path):
    (found,) = [one for one in findings_of(fires, tmp_path / "run.json") if one.rule == "upcast"]
    assert found.bytes == 512 * 1024 * 4
    assert found.match.saving.bytes == found.bytes
    first, *_, last = found.remedies
    assert (first.fix, last.fix) == ("narrow_before_cast", "mixed_precision")
    assert last.saves_bytes == found.match.saving.bytes / 2
