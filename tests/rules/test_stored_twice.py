"""stored-twice: a replay memory stores each observation as a state and as the one before it."""

from __future__ import annotations

from collections import deque

import pytest
import torch

from tests.rules.recorded import findings_of, names

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
            memory.add(4 * number % COUNT + at, state.to("cpu"), 1.0, next_state.to("cpu"))
            state = next_state

    return step


class InDictionaries:
    """The tensors are entries of one dictionary, and what is added is one as well."""

    def __init__(self):
        shape = (COUNT, SIZE)
        self.kept = {k: torch.zeros(shape, dtype=torch.uint8) for k in ("now", "then")}
        self.rewards = torch.zeros(COUNT)

    def push(self, at, transition):
        self.kept["now"][at].copy_(transition["now"])
        self.kept["then"][at].copy_(transition["then"])
        self.rewards[at] = transition["reward"]


def of_dictionaries():
    memory = InDictionaries()

    def step(number):
        state = observation(number)
        for at in range(4):
            following = observation(number + at)
            memory.push(4 * number % COUNT + at, {"now": state, "then": following, "reward": 1.0})
            state = following

    return step


class PairsInDictionaries:
    def __init__(self):
        shape = (COUNT, SIZE)
        self.pair = {k: torch.zeros(shape, dtype=torch.uint8) for k in ("left", "right")}

    def put_both(self, at, both):
        self.pair["left"][at].copy_(both["left"])
        self.pair["right"][at].copy_(both["right"])


def of_dictionaries_of_pairs():
    """What is beside an image is another one: no entry is there again."""
    pairs = PairsInDictionaries()

    def step(number):
        for at in range(4):
            first, second = observation(number), observation(number + at)
            pairs.put_both(4 * number % COUNT + at, {"left": first, "right": second})

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
    every = findings_of(fires, tmp_path / "run.json")
    (found,) = [one for one in every if one.rule == "stored-twice"]
    (remedy,) = found.remedies
    assert (found.minor, found.bytes) == (True, COUNT * SIZE)
    assert found.site.code == "self.next_states = torch.zeros(COUNT, SIZE, dtype=torch.uint8)"
    assert (remedy.fix, remedy.saves_bytes) == ("store_once", COUNT * SIZE)
    assert remedy.code == "self.next_states[at] = torch.as_tensor(next_state)"


def test_entries_of_dictionaries_are_followed(tmp_path):
    every = findings_of(of_dictionaries, tmp_path / "run.json")
    (found,) = [one for one in every if one.rule == "stored-twice"]
    (remedy,) = found.remedies
    assert (found.bytes, remedy.fix) == (COUNT * SIZE, "store_once")
    assert remedy.code == 'self.kept["then"][at].copy_(transition["then"])'
    assert "stored-twice" not in names(of_dictionaries_of_pairs, tmp_path / "other.json")


def frame(number):
    return torch.full((1, SIZE), float(number))


class Transitions:
    """Keeps the tensors themselves, in lists that are as long from the beginning."""

    def __init__(self):
        self.states = [None] * 4 * COUNT
        self.following = [None] * 4 * COUNT

    def add(self, at, state, following):
        self.states[at] = state
        self.following[at] = following


def frames_in_stacks():
    memory = Transitions()
    last = {"state": frame(0).repeat(4, 1)}

    def step(number):
        state = last["state"]
        for at in range(4):
            following = torch.cat([state[1:], frame(at)])
            memory.add(4 * number + at, state, following)
            state = following
        last["state"] = state

    return step


def frames_of_a_deque():
    memory = Transitions()

    class Stacker:
        def __init__(self):
            self.frames = deque([frame(0)] * 4, maxlen=4)

        def __call__(self, one):
            self.frames.append(one)
            return torch.cat(list(self.frames))

    stacker = Stacker()

    def step(number):
        for at in range(4):
            memory.add(4 * number + at, None, stacker(frame(at)))

    return step


def full_memory():
    """All but the first are made to replace another: half of what is made is there at no time."""
    memory = deque(maxlen=12)
    last = {"state": frame(0).repeat(4, 1)}

    def step(number):
        state = last["state"]
        for at in range(4):
            state = torch.cat([state[1:], frame(at)])
            memory.append(state)
        last["state"] = state

    return step


def growing_memory():
    memory = []
    last = {"state": frame(0).repeat(4, 1)}

    def step(number):
        last["state"] = torch.cat([last["state"][1:], frame(number)])
        memory.append({"state": last["state"], "number": number})

    return step


def stacks_of_their_own():
    """Nothing is taken over: the stack before is another one in each round."""
    memory = Transitions()

    def step(number):
        for at in range(4):
            state = torch.full((4, SIZE), float(at))
            following = torch.cat([state[1:], frame(at)])
            memory.add(4 * number + at, None, following)

    return step


def one_stack_in_four():
    """Of those that are kept no two have a frame in common."""
    memory = Transitions()
    last = {"state": frame(0).repeat(4, 1)}

    def step(number):
        state = last["state"]
        for at in range(4):
            state = torch.cat([state[1:], frame(at)])
        memory.add(number, state, None)
        last["state"] = state

    return step


@pytest.mark.parametrize(
    ("program", "shared"),
    [
        (frames_in_stacks, "state[1:]"),
        (frames_of_a_deque, "self.frames"),
        (full_memory, "state[1:]"),
    ],
)
def test_each_frame_of_kept_stacks_is_to_be_stored_once(tmp_path, program, shared):
    found, *_ = findings_of(program, tmp_path / "run.json", steps=40)
    (remedy,) = found.remedies
    assert (found.rule, remedy.fix) == ("stored-twice", "store_once")
    assert f"the `{shared}` of the one before" in found.title
    assert remedy.saves_bytes == found.bytes // 2


def test_a_stack_that_a_list_keeps_is_not_made_longer(tmp_path):
    found, *_ = findings_of(growing_memory, tmp_path / "run.json", steps=40)
    assert (found.rule, found.remedies[0].fix) == ("growing-container", "clear_container")
    assert "grown-by-concatenation" not in [one.rule for one in found.remedies]
    assert found.remedies[0].code == 'memory.append({"state": last["state"], "number": number})'


@pytest.mark.parametrize("program", [stacks_of_their_own, one_stack_in_four])
def test_stacks_without_a_frame_in_common_are_not_stored_twice(tmp_path, program):
    found = findings_of(program, tmp_path / "run.json", steps=40)
    assert "stored-twice" not in [one.rule for one in found]


class Frames:
    def __init__(self):
        self.frames = [observation(0)[: SIZE // 4]] * 4

    def see(self, number):
        self.frames = self.frames[1:] + [observation(number)[: SIZE // 4]]  # noqa: RUF005
        return torch.cat(self.frames)


def of_stacks():
    memory, camera = Memory(), Frames()

    def step(number):
        state = camera.see(number)
        for at in range(4):
            next_state = camera.see(number + at)
            memory.add(4 * number % COUNT + at, state, 1.0, next_state)
            state = next_state

    return step


@pytest.mark.parametrize(("program", "is_tentative"), [(of_stacks, False), (fires, True)])
def test_next_states_of_stacked_frames_are_not_left_so(program, is_tentative, tmp_path):
    every = findings_of(program, tmp_path / "run.json")
    (found,) = [one for one in every if one.rule == "stored-twice"]
    assert (found.is_tentative, found.bytes) == (is_tentative, COUNT * SIZE)
    assert found.remedies[0].fix == "store_once"
