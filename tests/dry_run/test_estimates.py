"""Sizes that a dry run estimates or does not know, by the line that asked for them."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable

import pytest

from memprof.dry_run.estimates import Estimates

MIB = 1 << 20


class Library:
    """Hands the listener to the test."""

    listener: Callable[[bytes, int, int], None] | None = None

    def listen_to_estimates(self, listener: Callable[[bytes, int, int], None] | None) -> None:
        self.listener = listener


@pytest.fixture
def library() -> Library:
    return Library()


@pytest.fixture
def estimates(library) -> Estimates:
    estimates = Estimates(library)
    estimates.open()
    return estimates


def test_a_line_is_listed_once_with_the_largest_of_its_sizes(library, estimates):
    for size in (MIB, 3 * MIB, 2 * MIB):
        line = inspect.currentframe().f_lineno + 1
        library.listener(b"recurrent nets of cuDNN", size, 1)
    (sentence,) = estimates.sentences()
    assert sentence == (
        "estimate: workspace of recurrent nets of cuDNN, 3 MiB at the most, asked 3 times, "
        f"{__file__}:{line} in test_a_line_is_listed_once_with_the_largest_of_its_sizes"
    )


def test_a_size_that_is_not_known_is_said_to_be_counted_as_nothing(library, estimates):
    library.listener(b"CTC losses", 0, 0)
    (sentence,) = estimates.sentences()
    assert sentence.startswith(
        "workspace of CTC losses is not known and counted as 0 bytes: asked once, "
    )


def test_a_thread_without_python_is_the_backward_pass(library, estimates, monkeypatch):
    monkeypatch.setattr("memprof.dry_run.estimates.frame_of_the_program", lambda _: None)
    thread = threading.Thread(target=library.listener, args=(b"cuDNN's plans", MIB, 1))
    thread.start()
    thread.join()
    (estimate,) = estimates.estimates
    assert (estimate.where, estimate.bytes) == ("", MIB)
    assert str(estimate).endswith("asked once, in the backward pass")


def test_the_largest_come_first_and_the_rest_are_counted(library, estimates):
    for number in range(1, 24):
        library.listener(f"kind {number}".encode(), number * MIB, 1)
    first, second, *_, rest = estimates.sentences()
    assert "kind 23" in first
    assert "kind 22" in second
    assert rest == "3 more sizes are estimated or not known"


def test_nothing_is_listened_to_after_the_end(library, estimates):
    estimates.close()
    assert library.listener is None
