"""unbounded-dict: a dict that is asked for a key before it is filled has no largest size."""

from __future__ import annotations

import torch

from tests.rules.recorded import findings_of

WIDTH = 64


def fires():
    tables = {}

    def step(number):
        if number not in tables:
            tables[number] = torch.zeros(WIDTH, WIDTH)

    return step


def looks_alike():
    """Results by step: no key comes twice, and none is asked for."""
    results = {}

    def step(number):
        results[number] = torch.zeros(WIDTH, WIDTH)

    return step


def test_it_is_to_be_given_a_largest_size(tmp_path):
    (found,) = findings_of(fires, tmp_path / "run.json")
    first = found.remedies[0]
    assert found.rule == first.rule == "unbounded-dict"
    assert found.bytes_per_step == WIDTH * WIDTH * 4
    assert (first.fix, first.code) == (
        "bound_cache",
        "tables[number] = torch.zeros(WIDTH, WIDTH)",
    )
