"""Sizes that a dry run estimates or does not know, by the line that asked for them."""

from __future__ import annotations

import inspect
import json
import re
import threading
from collections.abc import Callable

import pytest

from memprof.dry_run.estimates import Estimates
from memprof.dry_run.verdict import how_sure
from memprof.loading import load
from memprof.records import Note
from memprof.testing import TraceBuilder, write_run

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


def test_the_answer_counts_also_what_is_not_listed(library, estimates, tmp_path):
    for number in range(18):
        library.listener(f"kind {number}".encode(), MIB, 1)
    for number in range(5):
        library.listener(f"another {number}".encode(), 0, 0)
    notes = [Note("dry run", sentence) for sentence in estimates.sentences()]
    run = load(write_run(tmp_path / "run.json", TraceBuilder().build(), more=notes))
    assert how_sure(run) == (
        "workspaces of libraries: 18 estimated, 2 not counted, 3 more (see Not seen)"
    )


def test_nothing_is_listened_to_after_the_end(library, estimates):
    estimates.close()
    assert library.listener is None


SOLVERS = """\
import torch

x = torch.rand(8, 8, device="cuda")
torch.fft.fft(x)
torch.linalg.cholesky(x)
torch.sparse.mm(torch.eye(8).to_sparse_csr().cuda(), x)
"""


def test_what_solvers_and_transforms_take_is_named_by_its_line(dry_run, tmp_path):
    (tmp_path / "solvers.py").write_text(SOLVERS)
    done = dry_run("--gpu", "a100-80gb", "--json", "solvers.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    sentence = re.compile(
        r"dry run: workspace of (cufft|cusolver|cusparse)\w+ is not known and counted as 0 bytes: "
        r"asked (?:once|\d+ times), .*solvers\.py:(\d) in <module>"
    )
    named = {found.groups() for line in answer["not_seen"] if (found := sentence.fullmatch(line))}
    assert named == {("cufft", "4"), ("cusolver", "5"), ("cusparse", "6")}
    assert re.match(r"workspaces of libraries: \d not counted", answer["workspaces"])
