"""retry: a failed call is tried again while its exception still holds the first try's tensors."""

from __future__ import annotations

import torch

from tests.rules.recorded import findings_of

MIB = 1 << 20


def forward(rows):
    """Makes a tensor of a MiB for every 256 rows, and fails with more than 512."""
    hidden = torch.ones(rows, 1024)
    if rows > 512:
        raise RuntimeError("too large a batch")
    return hidden * 2


def fires():
    """Two tries in each step, as two blocks of a model make."""

    def step(number):
        for _ in range(2):
            try:
                forward(768)
            except RuntimeError:
                forward(512)

    return step


def looks_alike():
    """The retry comes after the handler, when the exception is gone."""

    def step(number):
        failed = False
        try:
            forward(768)
        except RuntimeError:
            failed = True
        if failed:
            forward(512)

    return step


def test_the_tensors_of_the_failed_try_could_go_before_the_retry(tmp_path):
    (found,) = [one for one in findings_of(fires, tmp_path / "run.json") if one.rule == "retry"]
    assert found.bytes == 3 * MIB
    assert (found.match.saving.before, found.match.saving.after) == (7 * MIB, 4 * MIB)
    (only,) = found.remedies
    assert only.code == "except RuntimeError:"
