"""unread-entries: items that are kept for a while have something that nothing reads."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

from tests.rules.recorded import findings_of, names

WIDTH = 128
ITEMS = 8
BYTES = WIDTH * WIDTH * 4


@dataclass
class Rollout:
    certainty: torch.Tensor
    all_scores: torch.Tensor


@dataclass
class Shown:
    certainty: torch.Tensor
    shown_scores: torch.Tensor


class OfLibrary(SimpleNamespace):
    """A library's class reads what it has."""


def rounds(make, read):
    """So many items are collected, used, and let go of, again and again."""
    items = []

    def step(number):
        if len(items) == ITEMS:
            sum(map(read, items))
            items.clear()
        scores = torch.rand(WIDTH, WIDTH)
        items.append(make(scores))

    return step


def fires():
    return rounds(
        lambda scores: Rollout(certainty=scores.amax(), all_scores=scores),
        lambda item: item.certainty.item(),
    )


def looks_alike():
    """What is kept is read when its round is over."""
    return rounds(
        lambda scores: Shown(certainty=scores.amax(), shown_scores=scores),
        lambda item: item.certainty.item() + item.shown_scores[0, 0].item(),
    )


def under_a_key():
    return rounds(
        lambda scores: {
            "reward": scores.amax(),
            "output": SimpleNamespace(sequence=scores[0].clone(), whole_scores=scores),
        },
        lambda item: item["reward"].item() + item["output"].sequence[0].item(),
    )


def handed_on_whole():
    return rounds(
        lambda scores: {
            "result": SimpleNamespace(sequence=scores[0].clone(), other_scores=scores),
        },
        lambda item: len(repr(item["result"])),
    )


def of_a_librarys_class():
    return rounds(
        lambda scores: OfLibrary(certainty=scores.amax(), their_scores=scores),
        lambda item: item.certainty.item(),
    )


@pytest.mark.parametrize(
    ("program", "name", "line"),
    [
        (fires, "`all_scores` of `Rollout`", "lambda scores: Rollout(certainty"),
        (under_a_key, "`whole_scores` of `['output']`", '"output": SimpleNamespace('),
    ],
)
def test_what_no_line_reads_is_left_out(program, name, line, tmp_path):
    (found,) = [
        one for one in findings_of(program, tmp_path / "run.json") if one.rule == "unread-entries"
    ]
    (only,) = found.remedies
    assert not found.minor
    assert name in found.title
    assert only.fix == "del_ref"
    assert only.code.startswith(line)
    assert found.bytes == ITEMS * BYTES
    assert only.saves_bytes >= (ITEMS - 2) * BYTES


@pytest.mark.parametrize("program", [handed_on_whole, of_a_librarys_class])
def test_what_something_else_may_read_is_left_alone(program, tmp_path):
    assert "unread-entries" not in names(program, tmp_path / "run.json")


def one_at_a_time():
    """The newest item alone is kept: that is no container of many."""
    newest = []

    def step(number):
        scores = torch.rand(WIDTH, WIDTH)
        newest[:] = [Rollout(certainty=scores.amax(), all_scores=scores)]
        return newest[0].certainty.item()

    return step


def test_a_single_item_is_none_of_many(tmp_path):
    assert "unread-entries" not in names(one_at_a_time, tmp_path / "run.json")
