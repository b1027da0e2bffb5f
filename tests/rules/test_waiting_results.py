"""waiting-results: results wait in memory until they are reduced, or go without being read."""

from __future__ import annotations

import runpy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from memprof.loading import load
from tests.rules.recorded import findings_of

ROWS, CLASSES, BATCHES = 256, 512, 8
NBYTES = ROWS * CLASSES * 4


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, CLASSES)

    def forward(self, x):
        return self.layer(x)


class Evaluation:
    """Results go through an object, so that no rule can follow them in the source."""

    def __init__(self):
        self.results = {}

    def add(self, number, result):
        self.results[f"batch {number}"] = result

    def each(self):
        return self.results.values()


def evaluating(score, kept=lambda result: result):
    def program():
        torch.manual_seed(0)
        net = Net()

        @torch.no_grad()
        def step(number):
            evaluation = Evaluation()
            for batch in range(BATCHES):
                evaluation.add(batch, kept(net(torch.randn(ROWS, 16))))
            return [score(result) for result in evaluation.each()]

        return step

    return program


fires = evaluating(lambda result: result.argmax(-1))
looks_alike = evaluating(lambda result: result @ torch.ones(CLASSES, 2))
"""Here all of each is needed."""


def waiting(program, path):
    return [one for one in findings_of(program, path) if one.rule == "waiting-results"]


def peak(path):
    (device,) = load(path).devices
    return int(device.steps.peak_allocated.max())


def test_each_is_to_be_reduced_as_it_comes(tmp_path):
    (found,) = waiting(fires, tmp_path / "run.json")
    (first,) = found.remedies
    assert not found.minor
    assert found.title.endswith(f"are {BATCHES} results that wait until they are reduced")
    assert found.bytes == BATCHES * NBYTES
    assert first.fix == "reduce_predictions"
    assert first.code == "evaluation.add(batch, kept(net(torch.randn(ROWS, 16))))"
    early = evaluating(lambda result: result, kept=lambda result: result.argmax(-1))
    findings_of(early, tmp_path / "early.json")
    saved = peak(tmp_path / "run.json") - peak(tmp_path / "early.json")
    assert abs(first.saves_bytes - saved) <= 0.1 * saved


def test_what_nothing_reads_is_to_be_left_out(tmp_path):
    (found,) = waiting(evaluating(lambda result: result.shape), tmp_path / "run.json")
    assert found.title.endswith(f"are {BATCHES} results that wait and are never read")
    assert [remedy.fix for remedy in found.remedies] == ["del_ref"]


def test_what_is_read_in_parts_may_be_needed(tmp_path):
    some = torch.arange(4)
    assert not waiting(evaluating(lambda result: result[some]), tmp_path / "run.json")


def caching():
    """The oldest make room, and few are asked for again."""
    net, cache = Net(), {}

    @torch.no_grad()
    def step(number):
        for batch in range(BATCHES):
            cache[number, batch] = net(torch.randn(ROWS, 16))
            if len(cache) > BATCHES:
                del cache[next(iter(cache))]

    return step


def test_what_makes_room_for_others_is_a_cache(tmp_path):
    assert not waiting(caching, tmp_path / "run.json")
    (record, *_) = load(tmp_path / "run.json").kept_results
    assert record.unread[0] == record.count[0] > BATCHES


def of_clients():
    """Of each client the states stay; those of the few who came once go first, together."""
    net, states = Net(), {}

    @torch.no_grad()
    def step(number):
        states[number] = net(torch.randn(ROWS, 16))
        if number == 12:
            for guest in (0, 1, 2, 3):
                del states[guest]

    return step


def test_what_a_cache_let_go_of_says_nothing_of_what_stays(tmp_path):
    assert not waiting(of_clients, tmp_path / "run.json")
    (record, *_) = load(tmp_path / "run.json").kept_results
    assert record.unread[0] == record.count[0] > 0


BY_NUMPY = """
import numpy

def score(result):
    return numpy.asarray(result.argmax(-1, keepdim=True)), numpy.asarray(result)
"""
PLACES = """
def score(result):
    return (result.argmax(-1) == 3).nonzero().flatten().tolist()
"""


OF_ROWS = """
import torch

def chosen(best, rows):
    return [best[row].item() for row in rows.tolist()]

def score(result):
    best, order = result.argmax(-1), torch.randperm(len(result))
    return [chosen(best, rows) for rows in order.split(64)]
"""
OF_WHAT_IS_GIVEN = """
def chosen(result, values):
    return result.argmax(-1).tolist(), values.tolist()

def score(result):
    return chosen(result, result)
"""


@pytest.mark.parametrize(
    ("text", "headlines"), [(BY_NUMPY, 0), (PLACES, 1), (OF_ROWS, 1), (OF_WHAT_IS_GIVEN, 0)]
)
def test_what_numpy_may_read_unseen_is_no_headline(text, headlines, tmp_path):
    metrics = tmp_path / "metrics.py"
    metrics.write_text(text)
    score = runpy.run_path(str(metrics))["score"]
    found = waiting(evaluating(score), tmp_path / "run.json")
    assert len([one for one in found if not one.minor]) == headlines


class Kept:
    """A list that is no local variable, so that no rule can follow it in the source."""

    def __init__(self):
        self.kept = []

    def keep(self, result):
        self.kept.append(result)


def keeping():
    """The result has a name before it is kept; a number of it is kept as well."""
    net = Net()

    @torch.no_grad()
    def step(number):
        results, losses = Kept(), []
        for _ in range(BATCHES):
            out = net(torch.randn(ROWS, 16))
            losses.append(out.mean().item())
            results.kept.append(out.detach())
        return [result.argmax(-1) for result in results.kept], losses

    return step


def test_the_line_that_keeps_them_is_told(tmp_path):
    found = findings_of(keeping, tmp_path / "run.json")[0]
    assert found.remedies[0].code == "results.kept.append(out.detach())"


def losses_kept(loss_of):
    def program():
        net = Net()

        @torch.no_grad()
        def step(number):
            evaluation = Evaluation()
            for batch in range(BATCHES):
                made, wanted = net(torch.randn(ROWS, 16)), torch.zeros(ROWS, CLASSES)
                evaluation.add(batch, loss_of(made, wanted).detach())
            return [result.mean() for result in evaluation.each()]

        return step

    return program


def as_number(made, wanted):
    return F.mse_loss(made, wanted)


def of_each_value(made, wanted):
    return F.mse_loss(made, wanted, reduction="none")


def test_a_number_may_have_the_memory_of_all_that_it_is_the_mean_of(tmp_path):
    found = findings_of(losses_kept(as_number), tmp_path / "run.json")
    (one,) = [one for one in found if one.rule == "waiting-results"]
    (first,) = one.remedies
    assert one.title.endswith("numbers, each with the memory that `mse_loss` took")
    assert (one.bytes % NBYTES, first.fix) == (0, "item")
    assert first.code == "return F.mse_loss(made, wanted)"


def test_a_loss_of_each_value_is_reduced_later(tmp_path):
    found = findings_of(losses_kept(of_each_value), tmp_path / "run.json")
    (one,) = [one for one in found if one.rule == "waiting-results"]
    assert one.remedies[0].fix == "reduce_predictions"


def samples(net, x):
    for _ in range(BATCHES):
        sample = net(x)
        yield {"sample": sample}
        x = sample[:, :16].clone()


def last_of_all():
    net = Net()

    @torch.no_grad()
    def step(number):
        *_, last = samples(net, torch.randn(ROWS, 16))
        return last["sample"].mean().item()

    return step


def test_what_a_generator_yields_waits_where_all_of_it_is_collected(tmp_path):
    (found,) = waiting(last_of_all, tmp_path / "run.json")
    assert found.remedies[0].code == "*_, last = samples(net, torch.randn(ROWS, 16))"


def compared():
    """What a round has collected is read, and stays until the next round has collected its own."""
    net = Net()
    state = {}

    @torch.no_grad()
    def step(number):
        state["features"] = [net(torch.randn(2 * ROWS, 16)) for _ in range(BATCHES)]
        return [F.normalize(one, dim=1).sum().item() for one in state["features"]]

    return step


def test_what_was_read_before_it_had_waited_for_long_is_not_unread(tmp_path):
    found = findings_of(compared, tmp_path / "run.json")
    assert "waiting-results" not in {one.rule for one in found}
