"""What operators do with results that outlive calls of models."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import memprof
from memprof.loading import load

ROWS, CLASSES = 256, 128
NBYTES = ROWS * CLASSES * 4
CALLS = 8


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, CLASSES)

    def forward(self, x):
        return self.layer(x)


def by_rows(score):
    """``score`` of each result, once all are there."""
    return lambda results: [score(one) for one in results]


def joined(score):
    return lambda results: score(torch.cat(results))


LABELS = torch.zeros(ROWS, dtype=torch.long)
WEIGHTS = torch.ones(CLASSES, 4)
INDEX = torch.zeros(ROWS, 1, dtype=torch.long)
SOME = torch.arange(8)


def fate_of(read, tmp_path):
    """(count, needed, unread, reduced bytes) of the results, and the lines that reduced them."""
    model = Model()

    def evaluate():
        results = [model(torch.randn(ROWS, 16)) for _ in range(CALLS)]
        read(results)

    with memprof.track(tmp_path / "run.json", sources=("cpu",)), torch.no_grad():
        evaluate()
    run = load(tmp_path / "run.json")
    (record,) = run.kept_results
    at = record.size.index(NBYTES)
    (device,) = run.devices
    lines = [device.windows[0].stack(stack)[0].line for stack in record.readers[at]]
    figures = [
        column[at] for column in (record.count, record.needed, record.unread, record.reduced)
    ]
    return figures, lines


KEPT = CALLS - 4
"""Results of the last calls are no older than a step's own may be."""


@pytest.mark.parametrize(
    ("read", "bytes_of_each"),
    [
        (by_rows(lambda one: one.argmax(-1)), ROWS * 8),
        (by_rows(lambda one: one.softmax(-1).max(-1).values), ROWS * (4 + 8)),
        (by_rows(lambda one: F.cross_entropy(one, LABELS)), 4 + 4),
        (by_rows(lambda one: one.log_softmax(-1).gather(-1, INDEX)), ROWS * 4),
        (by_rows(lambda one: (one[:, 0] > 0).any()), 1),
        (joined(lambda one: one.argmax(-1)), ROWS * 8),
        (joined(lambda one: (one.sigmoid() > 0.5).sum(-1)), ROWS * 8),
        (by_rows(lambda one: -(one.softmax(-1) * one.softmax(-1).log()).sum(-1)), ROWS * 4),
    ],
    ids=["argmax", "two", "loss", "picked", "part", "joined", "computed", "entropy"],
)
def test_what_is_only_reduced_is_told_by_what_remains(read, bytes_of_each, tmp_path):
    figures, lines = fate_of(read, tmp_path)
    assert figures == [KEPT, 0, 0, KEPT * bytes_of_each]
    assert len(lines) == 1


@pytest.mark.parametrize(
    "read",
    [
        by_rows(lambda one: one @ WEIGHTS),
        by_rows(lambda one: one[SOME].mean()),
        by_rows(lambda one: (one - torch.randn(ROWS, CLASSES)).abs().mean()),
        by_rows(lambda one: F.mse_loss(torch.randn(ROWS, CLASSES), one)),
        by_rows(lambda one: one.mul_(2).mean()),
        joined(lambda one: one @ WEIGHTS),
        lambda results: torch.stack(results).median(0),
        lambda results: torch.stack(results).mean(0),
        lambda results: torch.cat(results, dim=1).argmax(1),
        joined(lambda one: one.median()),
        lambda results: [(a - b).abs().mean() for a in results for b in results],
        lambda results: [torch.add(input=one, other=results[-1]).mean() for one in results],
    ],
    ids=[
        *("product", "selected", "compared", "loss", "written", "joined", "median over several"),
        *("mean over several", "side by side", "median of all", "pairs", "by keyword"),
    ],
)
def test_what_may_be_needed_whole_is_told_apart(read, tmp_path):
    figures, _ = fate_of(read, tmp_path)
    assert figures == [KEPT, KEPT, 0, 0]


def search(tries):
    """The scale with which all results fit best, by so many tries."""
    return lambda results: [
        sum(F.cross_entropy(one / scale, LABELS).item() for one in results)
        for scale in range(1, tries + 1)
    ]


@pytest.mark.parametrize(("tries", "needed"), [(8, 0), (9, KEPT)])
def test_what_is_gone_through_again_and_again_has_to_be_there(tries, needed, tmp_path):
    figures, _ = fate_of(search(tries), tmp_path)
    assert figures[:3] == [KEPT, needed, 0]


def test_a_result_that_is_read_for_each_class_is_gone_through_once(tmp_path):
    by_class = by_rows(lambda one: [(one > number).sum() for number in range(20)])
    figures, _ = fate_of(by_class, tmp_path)
    assert figures == [KEPT, 0, 0, KEPT * 20 * 8]


@pytest.mark.parametrize("read", [lambda results: None, joined(lambda one: one.shape)])
def test_what_nothing_is_computed_of_was_not_read(read, tmp_path):
    figures, _ = fate_of(read, tmp_path)
    assert figures == [KEPT, 0, KEPT, 0]


def test_operators_of_inference_mode_are_known_as_well(tmp_path):
    """There a mode is shown those that are made up of others."""
    model = Model()

    @torch.inference_mode()
    def evaluate():
        results = [model(torch.randn(4, ROWS // 4, 16)) for _ in range(CALLS)]
        for one in results:
            scores = one[:, :-1].flatten(0, 1)
            F.cross_entropy(scores, LABELS[: len(scores)])
            scores.softmax(-1).max()

    with memprof.track(tmp_path / "run.json", sources=("cpu",)):
        evaluate()
    (record,) = load(tmp_path / "run.json").kept_results
    at = record.size.index(NBYTES)
    assert (record.count[at], record.needed[at], record.unread[at]) == (KEPT, 0, 0)
    assert record.reduced[at] == KEPT * (4 + 4)


def test_results_of_one_line_are_told_by_those_that_stay(tmp_path):
    """The line makes a product, and then the sum that is kept and read by nothing."""
    model = Model()

    def evaluate():
        kept = []
        for _ in range(CALLS):
            made = model(torch.randn(ROWS, 16))
            kept.append(made * 2 + 1)

    with memprof.track(tmp_path / "run.json", sources=("cpu",)), torch.no_grad():
        evaluate()
    (record,) = load(tmp_path / "run.json").kept_results
    at = record.size.index(NBYTES)
    assert (record.count[at], record.needed[at], record.unread[at]) == (KEPT, 0, KEPT)


def test_what_is_there_still_is_not_judged(tmp_path):
    model, results = Model(), []
    with memprof.track(tmp_path / "run.json", sources=("cpu",)), torch.no_grad():
        for _ in range(CALLS):
            results.append(model(torch.randn(ROWS, 16)))
    assert load(tmp_path / "run.json").kept_results == ()


def test_results_that_go_within_three_more_calls_are_a_steps_own(tmp_path):
    model, last = Model(), []
    with memprof.track(tmp_path / "run.json", sources=("cpu",)), torch.no_grad():
        for _ in range(CALLS):
            last = [model(torch.randn(ROWS, 16)), *last[:1]]
            last[-1].mean()
    assert load(tmp_path / "run.json").kept_results == ()


def test_what_is_computed_of_results_is_followed_though_it_is_kept_itself(tmp_path):
    model = Model()

    def evaluate():
        results = [model(torch.randn(ROWS, 16)) for _ in range(CALLS)]
        probabilities = [one.softmax(-1) for one in results]
        for _ in range(5):
            model(torch.randn(1, 16))
        return [one.argmax(-1) for one in probabilities]

    with memprof.track(tmp_path / "run.json", sources=("cpu",)), torch.no_grad():
        evaluate()
    (record,) = load(tmp_path / "run.json").kept_results
    first = record.stack[0]
    needed = dict(zip(record.stack, record.needed, strict=True))
    reduced = dict(zip(record.stack, record.reduced, strict=True))
    print(record)
    assert (needed[first], reduced[first]) == (0, KEPT * ROWS * 8)
