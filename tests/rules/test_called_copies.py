"""called-copies: one model is copied for each thread, and the copies are only called."""

from __future__ import annotations

import copy
import queue
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from tests.rules.recorded import findings_of, names, peak_of
from tests.rules.remembering_models import Remembering

WIDTH, WORKERS, STEPS = 256, 3, 16
LAYERS = 2 * WIDTH * WIDTH * 4
NBYTES = 2 * LAYERS + 3 * WIDTH * 4
"""Of one model: its two layers, with biases."""


def model():
    return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)).eval()


class Worker:
    def __init__(self, shared):
        self.own = copy.deepcopy(shared)

    @torch.inference_mode()
    def answer(self, x):
        return self.own(x).argmax(1).tolist()


def in_turn(workers):
    x = torch.randn(2, WIDTH)
    return lambda number: workers[number % WORKERS].answer(x)


def fires():
    shared = model()
    workers = [Worker(shared) for _ in range(WORKERS)]
    served = in_turn(workers)
    return lambda number: served(number) and shared.training


class Perturbed:
    def __init__(self, base, scale):
        self.member = copy.deepcopy(base)
        with torch.no_grad():
            for weight in self.member.parameters():
                weight.add_(scale * torch.randn_like(weight))

    @torch.inference_mode()
    def answer(self, x):
        return self.member(x).argmax(1).tolist()


def looks_alike():
    """An ensemble around one model."""
    base = model()
    return in_turn([Perturbed(base, 0.1 * number) for number in range(WORKERS)])


def in_threads():
    """Each thread of a pool has a copy, and what they were copied from is never called."""
    started, local = model(), threading.local()

    def begin():
        local.scorer = copy.deepcopy(started)

    @torch.inference_mode()
    def score(x):
        ready.wait()  # so that each thread has one
        return local.scorer(x).argmax(1).tolist()

    ready = threading.Barrier(WORKERS)
    pool = ThreadPoolExecutor(WORKERS, initializer=begin)

    def step(number):
        scores = list(pool.map(score, torch.randn(WORKERS, 2, WIDTH)))
        if number == STEPS - 1:
            pool.shutdown()
        return scores

    return step


def in_a_queue():
    first, idle = model(), queue.Queue()
    for _ in range(WORKERS):
        idle.put(copy.deepcopy(first))
    x = torch.randn(2, WIDTH)

    def step(_):
        net = idle.get()
        with torch.no_grad():
            answers = net(x).argmax(1).tolist()
        idle.put(net)
        return answers

    return step


def by_names():
    origin, by_name = model(), {}

    def of_tenant(name):
        if name not in by_name:
            by_name[name] = copy.deepcopy(origin)
        return by_name[name]

    x = torch.randn(2, WIDTH)

    @torch.inference_mode()
    def step(number):
        return of_tenant(number % WORKERS)(x).argmax(1).tolist()

    return step


class Loaded:
    def __init__(self, base, states):
        self.net = copy.deepcopy(base)
        self.net.load_state_dict(states)

    @torch.inference_mode()
    def answer(self, x):
        return self.net(x).argmax(1).tolist()


def of_other_values():
    base = model()
    return in_turn([Loaded(base, model().state_dict()) for _ in range(WORKERS)])


def of_each_checkpoint():
    """The members of an ensemble: what they are copied from is loaded anew between the copies."""
    trunk, checkpoints = model(), [model().state_dict() for _ in range(WORKERS)]
    members = []
    for states in checkpoints:
        trunk.load_state_dict(states)
        members.append(copy.deepcopy(trunk))
    x = torch.randn(2, WIDTH)

    @torch.inference_mode()
    def step(number):
        return members[number % WORKERS](x).argmax(1).tolist()

    return step


class Halved:
    def __init__(self, base):
        self.quick = copy.deepcopy(base)
        self.quick[0].bias = None

    @torch.inference_mode()
    def answer(self, x):
        return self.quick(x).argmax(1).tolist()


def of_changed_parts():
    base = model()
    return in_turn([Halved(base) for _ in range(WORKERS)])


class Handed:
    def __init__(self, base):
        self.compiled = torch.jit.trace(copy.deepcopy(base), torch.zeros(2, WIDTH))

    @torch.inference_mode()
    def answer(self, x):
        return self.compiled(x).argmax(1).tolist()


def handed_on():
    base = model()
    return in_turn([Handed(base) for _ in range(WORKERS)])


def that_remember():
    base = Remembering(WIDTH).eval()
    recalling = [copy.deepcopy(base) for _ in range(WORKERS)]
    x = torch.randn(2, WIDTH)

    def step(number):
        with torch.inference_mode():
            return recalling[number % WORKERS](x)

    return step


def that_are_trained():
    base = model()
    pupils = [copy.deepcopy(base) for _ in range(WORKERS)]
    x = torch.randn(2, WIDTH)
    return lambda number: pupils[number % WORKERS](x).square().mean().backward()


def test_all_copies_are_told_where_the_model_is_there_as_well(tmp_path):
    path = tmp_path / "run.json"
    (found,) = findings_of(fires, path)
    assert (found.rule, found.site.code) == ("called-copies", "self.own = copy.deepcopy(shared)")
    assert found.bytes == WORKERS * NBYTES
    (remedy,) = [one for one in found.remedies if one.rule == "called-copies"]
    assert (remedy.fix, remedy.typed) == ("share_model", "self.own = shared")
    assert remedy.peak_before == peak_of(path)
    assert remedy.peak_after == peak_of(path) - WORKERS * NBYTES


def test_threads_that_have_a_copy_each_are(tmp_path):
    found = findings_of(in_threads, tmp_path / "run.json", STEPS)[0]
    assert (found.rule, found.bytes) == ("called-copies", WORKERS * NBYTES)
    assert found.remedies[0].typed == "local.scorer = started"


@pytest.mark.parametrize(
    ("program", "typed"),
    [(in_a_queue, "idle.put(first)"), (by_names, "by_name[name] = origin")],
)
def test_copies_in_containers_are(tmp_path, program, typed):
    found = findings_of(program, tmp_path / "run.json")[0]
    assert (found.rule, found.remedies[0].typed) == ("called-copies", typed)


@pytest.mark.parametrize(
    "program",
    [
        of_other_values,
        of_each_checkpoint,
        of_changed_parts,
        handed_on,
        that_remember,
        that_are_trained,
    ],
)
def test_copies_that_are_changed_or_may_be_are_not(tmp_path, program):
    assert "called-copies" not in names(program, tmp_path / "run.json")
