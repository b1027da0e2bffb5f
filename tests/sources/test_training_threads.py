"""Threads that train side by side: none reads what the backward pass of another one is writing."""

from __future__ import annotations

import threading

import pytest

pytest.importorskip("torch", reason="threads that train do so with torch")

import torch

import memprof
from memprof.sources.training_threads import may_read_graphs, note_training
from tests import forks

SIDE_BY_SIDE = """
import sys, threading, torch
def train(seed):
    made = torch.Generator().manual_seed(seed)
    model = torch.nn.Linear(32, 32)
    with torch.no_grad():
        for one in model.parameters():
            one.copy_(torch.randn(one.shape, generator=made))
    optimizer = torch.optim.SGD(model.parameters(), 0.001, momentum=0.9)
    for _ in range(25):
        loss = model(torch.randn(8, 32, generator=made)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    losses[seed] = loss.item().hex()
def run():
    global losses
    losses = {}
    threads = [threading.Thread(target=train, args=(n,)) for n in range(8)]
    for one in threads: one.start()
    for one in threads: one.join()
    return dict(sorted(losses.items()))
import memprof
plain = run()
with memprof.track(sys.argv[1], allowance_s=600):
    tracked = run()
assert tracked == plain, (tracked, plain)
"""


def test_threads_that_train_side_by_side_are_recorded_unharmed(tmp_path):
    """Reading another one's ``.grad`` in its backward pass crashed every third such program."""
    path = tmp_path / "run.json"
    done = forks.run(SIDE_BY_SIDE, path)
    assert (done.returncode, done.stderr) == (0, "")
    run = memprof.load(path)
    assert run.footer.status == "ok"
    assert any("several threads train" in note.message for note in run.notes)


def in_thread(action):
    """A live thread that has done something and waits; what lets it end."""
    ready, over = threading.Event(), threading.Event()

    def work():
        action()
        ready.set()
        over.wait(60)

    thread = threading.Thread(target=work)
    thread.start()
    assert ready.wait(60)

    def end():
        over.set()
        thread.join()

    return end


def test_graphs_are_read_where_no_other_thread_trains():
    end = in_thread(lambda: None)
    try:
        assert may_read_graphs()
        note_training()  # this one
        assert may_read_graphs()
    finally:
        end()


def test_a_thread_that_has_trained_keeps_others_from_reading_until_it_ends():
    end = in_thread(note_training)
    try:
        assert not may_read_graphs()
    finally:
        end()
    assert may_read_graphs()


def test_a_thread_in_a_backward_pass_is_seen_though_nothing_is_known_of_it():
    inside, over = threading.Event(), threading.Event()

    def wait(gradient):
        inside.set()
        over.wait(60)
        return gradient

    tensor = torch.ones(2, requires_grad=True)
    tensor.register_hook(wait)
    thread = threading.Thread(target=lambda: (tensor * 2).sum().backward())
    thread.start()
    try:
        assert inside.wait(60)
        assert not may_read_graphs()
    finally:
        over.set()
        thread.join()
    assert may_read_graphs()


def test_a_backward_pass_of_one_s_own_may_be_read():
    answers = []
    tensor = torch.ones(2, requires_grad=True)
    tensor.register_hook(lambda _: answers.append(may_read_graphs()))
    (tensor * 2).sum().backward()
    assert answers == [True]
