"""grown-by-copy: a tensor is enlarged by copying it, so that old and new are there at once."""

from __future__ import annotations

import torch

from tests.rules.recorded import findings_of


def fires():
    def step(number):
        out = torch.zeros(0, 1024)
        for _ in range(8):
            out = torch.cat((out, torch.ones(64, 1024)))
        out.sum().item()

    return step


def looks_alike():
    """The parts are in a list, and joined once."""

    def step(number):
        parts = []
        for _ in range(8):
            parts.append(torch.ones(64, 1024))
        out = torch.cat(parts)
        out.sum().item()

    return step


def room_that_doubles():
    def step(number):
        out = torch.zeros(8, 1024)
        for _ in range(6):
            out = torch.cat((out, torch.zeros_like(out)))
        (out + 1).sum().item()

    return step


def queue_of_negatives():
    """It is cut to so many rows at once, and is as long as that soon."""

    def step(number):
        queue = torch.zeros(0, 1024)
        for _ in range(8):
            queue = torch.cat((queue, torch.ones(64, 1024)))[-256:]
        queue.sum().item()

    return step


def test_a_queue_of_a_largest_length_is_meant(tmp_path):
    found = findings_of(queue_of_negatives, tmp_path / "run.json")
    assert "grown-by-copy" not in {one.rule for one in found}


def test_a_room_that_doubles_until_it_is_large_enough_is_meant(tmp_path):
    found = findings_of(room_that_doubles, tmp_path / "run.json")
    assert "grown-by-copy" not in {one.rule for one in found}


def test_the_last_copy_is_the_highest_moment(tmp_path):
    found = next(
        one for one in findings_of(fires, tmp_path / "run.json") if one.rule == "grown-by-copy"
    )
    whole = 8 * 64 * 1024 * 4
    assert whole <= found.bytes < whole + (1 << 20)  # with a rest too small to be split off
    assert found.remedies[0].code == "out = torch.cat((out, torch.ones(64, 1024)))"
