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


def layers():
    """A third of what each layer computes: two of them are all of it, as keys and values are."""
    cache = collections.deque(maxlen=2 * ITEMS)

    def step(number):
        computed = [torch.zeros(WIDTH, WIDTH) + number for _ in range(4)]
        cache.append([one[: WIDTH // 3] for one in computed])

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


def test_views_of_several_storages_in_each_item_are_no_small_parts(tmp_path):
    rules = names(layers, tmp_path / "run.json")
    assert not {"stored-views", "small-view", "growing-container"} & set(rules)


def in_two_loops_of_the_first_step():
    """Before anything else all data is gone through twice, and a row of each result waits."""
    hardest = collections.deque(maxlen=ITEMS)

    def step(number):
        for _ in range(1 if number else 2):
            rows = []
            for kept in [hardest] if number else [rows] * (3 * ITEMS):
                batch = torch.zeros(WIDTH, WIDTH)
                kept.append(batch[number % WIDTH])

    return step


def test_what_each_loop_of_a_step_keeps_is_spared(tmp_path):
    (found, *_) = findings_of(in_two_loops_of_the_first_step, tmp_path / "run.json", steps=40)
    first = found.remedies[0]
    assert (found.rule, first.fix, found.minor) == ("stored-views", "clone_view", False)
    assert first.peak_after < first.peak_before / 4
