"""What a look at the graphs finds for a line's tensors holds for those of the same size."""

from __future__ import annotations

import numpy as np
import pytest

from memprof.sources.owners.decided_stacks import DecidedStacks
from memprof.trace import EMPTY, Category

SAVED, NOT_SAVED = int(Category.ACTIVATION), int(Category.UNKNOWN)


@pytest.fixture
def decided():
    """Of stack 3 a graph saves the large tensor, not the small one; of stack 4 nothing."""
    decided = DecidedStacks()
    for stack, size, category in [(3, 4096, SAVED), (3, 4, NOT_SAVED), (4, 64, NOT_SAVED)]:
        decided.note(stack, size, category)
    return decided


def test_tensors_of_one_stack_differ_by_their_size(decided):
    known = [decided.category(*one, default=9) for one in [(3, 4096), (3, 4), (4, 64)]]
    assert known == [SAVED, NOT_SAVED, NOT_SAVED]
    stack, size = np.array([3, 3, 4]), np.array([4096, 4, 64])
    assert decided.unsaved(stack, size).tolist() == [False, True, True]


def test_another_size_is_as_the_stack_was_last(decided):
    assert decided.category(3, 8, default=9) == NOT_SAVED
    assert decided.unsaved(np.array([3, 4]), np.array([8, 8])).tolist() == [True, True]


def test_of_other_stacks_nothing_is_known(decided):
    assert [decided.has(one) for one in (3, 4, 5)] == [True, True, False]
    assert decided.category(5, 8, default=9) == 9
    assert decided.unsaved(np.array([5, EMPTY]), np.array([8, 8])).tolist() == [False, False]


def test_what_has_no_stack_is_like_nothing_else(decided):
    decided.note(EMPTY, 8, NOT_SAVED)
    assert decided.has(EMPTY)
    assert decided.unsaved(np.array([EMPTY]), np.array([8])).tolist() == [False]


def test_of_no_tensors_there_is_nothing_to_say(decided):
    nothing = np.zeros(0, dtype=np.int64)
    assert decided.unsaved(nothing, nothing).tolist() == []


def test_ever_more_sizes_are_not_remembered_without_end(decided):
    for size in range(1, 20_000):
        decided.note(7, size, SAVED)
    decided.note(7, 30_000, NOT_SAVED)
    assert decided.category(7, 8, default=9) == SAVED
    # of a size that there was no room for, as the stack was last
    assert decided.category(7, 30_000, default=9) == NOT_SAVED
    assert decided.category(7, 19_999, default=9) == NOT_SAVED
