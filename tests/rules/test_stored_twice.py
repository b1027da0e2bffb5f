"""stored-twice: a replay memory stores each observation as a state and as the one before it."""

from __future__ import annotations

import torch

from tests.rules.recorded import findings_of

COUNT, SIZE = 64, 4096


class Memory:
    def __init__(self):
        self.states = torch.zeros(COUNT, SIZE, dtype=torch.uint8)
        self.next_states = torch.zeros(COUNT, SIZE, dtype=torch.uint8)
        self.rewards = torch.zeros(COUNT)

    def add(self, at, state, reward, next_state):
        self.states[at] = torch.as_tensor(state)
        self.next_states[at] = torch.as_tensor(next_state)
        self.rewards[at] = reward


def observation(number):
    return torch.full((SIZE,), number % 256, dtype=torch.uint8)


def fires():
    memory = Memory()

    def step(number):
        state = observation(number)
        for at in range(4):
            next_state = observation(number + at)
            memory.add(4 * number % COUNT + at, state, 1.0, next_state)
            state = next_state

    return step


class Pairs:
    def __init__(self):
        self.left = torch.zeros(COUNT, SIZE, dtype=torch.uint8)
        self.right = torch.zeros(COUNT, SIZE, dtype=torch.uint8)

    def put(self, at, first, second):
        self.left[at] = first
        self.right[at] = second


def looks_alike():
    """Pairs of images that have nothing to do with one another."""
    pairs = Pairs()

    def step(number):
        for at in range(4):
            first, second = observation(number), observation(number + at)
            pairs.put(4 * number % COUNT + at, first, second)

    return step


def test_the_next_states_are_to_be_left_out(tmp_path):
    found, *_ = findings_of(fires, tmp_path / "run.json")
    (remedy,) = found.remedies
    assert (found.rule, found.bytes) == ("stored-twice", COUNT * SIZE)
    assert found.site.code == "self.next_states = torch.zeros(COUNT, SIZE, dtype=torch.uint8)"
    assert (remedy.fix, remedy.saves_bytes) == ("store_once", COUNT * SIZE)
    assert remedy.code == "self.next_states[at] = torch.as_tensor(next_state)"
