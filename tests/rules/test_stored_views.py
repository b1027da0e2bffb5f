"""stored-views: a container is full of small views, and keeps their whole storages."""

from __future__ import annotations

import collections

import torch

from tests.rules.recorded import findings_of, names

WIDTH, ITEMS = 512, 8


def fires():
    """The hardest sample of each of the last batches: full early on."""
    hardest = collections.deque(maxlen=ITEMS)

    def step(number):
        batch = torch.zeros(WIDTH, WIDTH)
        hardest.append(batch[number % WIDTH])

    return step


def looks_alike():
    """Whole batches are kept, as many."""
    recent = collections.deque(maxlen=ITEMS)

    def step(number):
        batch = torch.zeros(WIDTH, WIDTH)
        recent.append(batch.view(-1))

    return step


def together():
    """All rows of the last batches: each is a small view, and together they are the batches."""
    rows = collections.deque(maxlen=ITEMS * WIDTH)

    def step(number):
        rows.extend(torch.zeros(WIDTH, WIDTH))

    return step


def test_a_clone_of_each_is_all_that_is_needed(tmp_path):
    found = findings_of(fires, tmp_path / "run.json", steps=40)[0]
    (first, *_) = found.remedies
    assert (found.rule, found.minor, found.bytes) == (
        "stored-views",
        False,
        (ITEMS + 1) * WIDTH**2 * 4,
    )
    assert (first.fix, first.code) == ("clone_view", "hardest.append(batch[number % WIDTH])")
    assert "+        hardest.append(batch[number % WIDTH].clone())" in first.patch
    assert first.peak_after < first.peak_before / 4


def test_views_that_are_the_whole_together_are_meant(tmp_path):
    assert "stored-views" not in names(together, tmp_path / "run.json")
