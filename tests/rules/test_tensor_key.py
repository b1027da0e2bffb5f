"""tensor-key: a dict has tensors, or the objects that have them, for keys."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, as_completed
from threading import Semaphore

import torch

from tests.rules.recorded import findings_of

WIDTH = 64


class Job:
    def __init__(self):
        self.names = {}
        for number in range(3):
            self.names[torch.zeros(8)] = f"weight {number}"

    def step(self, number):
        output = torch.zeros(WIDTH, WIDTH)
        self.names[output] = f"output {number}"


def fires():
    return Job().step


def looks_alike():
    """Named by a number: the dict holds the tensors as values."""
    outputs = {}

    def step(number):
        outputs[number] = torch.zeros(WIDTH, WIDTH)

    return step


def test_the_dict_is_to_hold_its_keys_weakly_where_a_step_fills_it(tmp_path):
    (found,) = findings_of(fires, tmp_path / "run.json")
    first = found.remedies[0]
    assert found.rule == first.rule == "tensor-key"
    assert found.bytes_per_step == WIDTH * WIDTH * 4
    assert (first.fix, first.code) == ("weakref", 'self.names[output] = f"output {number}"')
    assert "WeakTensorKeyDictionary" in first.why


def remembers(function):
    """Results by the arguments of the calls."""
    table = {}

    def wrapper(*arguments):
        key = (function.__name__, arguments)
        if key not in table:
            table[key] = function(*arguments)
        return table[key]

    wrapper.table = table
    return wrapper


def calls():
    @remembers
    def bias(positions, heads):
        return (positions[:, None] * positions).repeat(heads, 1)

    def step(number):
        bias(torch.arange(WIDTH).float(), 2).sum().item()

    return step


def test_a_memory_of_calls_whose_arguments_are_tensors_is_never_asked_for_what_it_has(tmp_path):
    found = findings_of(calls, tmp_path / "run.json")[0]
    first = found.remedies[0]
    assert found.bytes_per_step == 2 * WIDTH * WIDTH * 4
    assert (first.rule, first.fix) == ("tensor-key", "bound_cache")
    assert first.code == "key = (function.__name__, arguments)"  # what is to be changed
    assert first.why.startswith("`table` (")


def slots_by(key_of):
    """The last row of each of eight examples, which come in a tensor of indices."""
    slots = {}

    def step(number):
        indices = torch.arange(8)
        for index, row in zip(indices, torch.zeros(8, WIDTH), strict=True):
            slots[key_of(index)] = row + number

    return step


def test_values_under_keys_that_are_tensors_are_never_replaced(tmp_path):
    first = findings_of(lambda: slots_by(lambda index: index), tmp_path / "run.json")[0]
    assert first.bytes_per_step == 8 * WIDTH * 4
    remedy = first.remedies[0]
    assert (remedy.rule, remedy.fix) == ("tensor-key", "item")
    assert remedy.code == "slots[key_of(index)] = row + number"
    assert ".tolist()" in remedy.why


def test_values_under_numbers_are(tmp_path):
    found = findings_of(lambda: slots_by(int), tmp_path / "run.json")
    assert [one for one in found if one.bytes_per_step] == []


class Moments:
    """An optimizer by hand, whose weights are new ones in every task."""

    def __init__(self):
        self.state = {}

    def step(self, weights):
        for weight in weights:
            if weight not in self.state:
                self.state[weight] = {"first": torch.zeros_like(weight)}
            self.state[weight]["first"].add_(weight)


def tasks():
    moments = Moments()

    def step(number):
        moments.step([torch.randn(128, 128) for _ in range(2)])

    return step


def test_states_of_weights_that_each_task_makes_anew_are_to_be_let_go_of(tmp_path):
    found = findings_of(tasks, tmp_path / "run.json")
    states = next(one for one in found if one.remedies[0].fix == "clear_container")
    assert states.rule == "tensor-key"
    assert states.remedies[0].code.startswith("self.state[weight] = {")
    assert states.remedies[1].fix == "weakref"


ASKED = Semaphore(0)


def simulated(number):
    ASKED.acquire()
    return torch.full((WIDTH, WIDTH), float(number))


def consumed_futures():
    """Each result is taken as it comes, and the dict has its future all the same."""
    table = {}

    def begin(numbers):
        with ThreadPoolExecutor(1) as pool:
            jobs = {pool.submit(simulated, number): number for number in numbers}
            for job in as_completed(jobs):
                table[jobs[job]] = job.result().mean().item()
                yield

    turns = begin(range(16))

    def step(_):
        ASKED.release()
        next(turns)

    return step


def test_futures_are_to_be_taken_out_with_their_results(tmp_path):
    found = findings_of(consumed_futures, tmp_path / "run.json")[0]
    first = found.remedies[0]
    assert (found.rule, first.fix, first.typed) == (
        "tensor-key",
        "clear_container",
        "jobs.pop(job)",
    )
    assert first.code == "table[jobs[job]] = job.result().mean().item()"
