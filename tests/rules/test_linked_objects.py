"""linked-objects: every object keeps the one before it, and with the last all of them are there."""

from __future__ import annotations

import copy
from collections import deque

import pytest
import torch
from torch import nn

from tests.rules.recorded import findings_of, names

WIDTH = 64


class Snapshot:
    def __init__(self, number, before):
        self.number = number
        self.weights = torch.zeros(WIDTH, WIDTH)
        self.before = before


class History:
    def __init__(self):
        self.items = deque(maxlen=2)

    def step(self, number):
        last = self.items[-1] if self.items else None
        self.items.append(Snapshot(number, last))


def fires():
    return History().step


class Node:
    def __init__(self):
        self.near = {}


def fires_through_a_dict():
    """The same without a container of many: each node names its parent in a dict of its own."""
    job = {}

    def step(number):
        node = Node()
        node.weights = torch.zeros(WIDTH, WIDTH)
        node.near["up"] = job.get("last")
        job["last"] = node

    return step


def fires_by_pairs():
    """The list of languages that know no other: a pair of a value and the list before."""
    job = {"rows": None}

    def step(number):
        job["rows"] = (torch.zeros(WIDTH, WIDTH), job["rows"])

    return step


class Student(nn.Module):
    """A copy of it is its teacher: of the teacher, and of that one's, as well."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        object.__setattr__(self, "teacher", None)

    def promote(self):
        object.__setattr__(self, "teacher", copy.deepcopy(self))


def fires_by_copies():
    student = Student()

    def step(number):
        if number % 4 == 0:
            student.promote()

    return step


def test_copies_that_are_made_now_and_then_of_all_before_are_named(tmp_path):
    found = findings_of(fires_by_copies, tmp_path / "run.json", steps=100)[0]
    first = found.remedies[0]
    assert (found.rule, first.fix) == ("linked-objects", "del_ref")
    assert found.site.code == 'object.__setattr__(self, "teacher", copy.deepcopy(self))'
    assert "by `teacher`" in first.why
    assert found.bytes_per_step == pytest.approx((WIDTH + 1) * WIDTH * 4 / 4, rel=0.1)


def looks_alike():
    """It asks the one before for a number, and keeps that."""
    items = deque(maxlen=2)

    def step(number):
        last = items[-1] if items else None
        items.append(Snapshot(number, last.number if last is not None else None))

    return step


def tree_of_fixed_depth():
    """Four levels of one class are a structure; what grows is the list in the innermost."""
    root = node = Node()
    for _ in range(2):
        node.inner = Node()
        node = node.inner
    node.rows = []

    def step(number):
        assert root is not node
        node.rows.append(torch.zeros(WIDTH, WIDTH))

    return step


@pytest.mark.parametrize("program", [fires, fires_through_a_dict, fires_by_pairs])
def test_what_keeps_the_one_before_is_named(program, tmp_path):
    found = findings_of(program, tmp_path / "run.json", steps=40)[0]
    assert found.rule == found.remedies[0].rule == "linked-objects"
    assert found.remedies[0].fix == "del_ref"
    assert found.bytes_per_step == WIDTH * WIDTH * 4


def test_the_attribute_is_to_be_cut_at_the_line_that_sets_it(tmp_path):
    first = findings_of(fires, tmp_path / "run.json", steps=40)[0].remedies[0]
    assert first.code == "self.before = before"
    assert "`self.before = None`" in first.why


def test_a_list_within_few_objects_is_no_chain(tmp_path):
    assert "linked-objects" not in names(tree_of_fixed_depth, tmp_path / "run.json")


class Hypothesis:
    """One word of a sentence, with the state that the next word is made from."""

    def __init__(self, word, state, parent):
        self.word, self.state, self.parent = word, state, parent

    def words(self):
        node, words = self, []
        while node.parent is not None:
            words.append(node.word)
            node = node.parent
        return words[::-1]


def fires_in_a_search():
    """Of each sentence two ways are tried, and the last word of the better one is kept."""
    best, job = [], {"beam": [Hypothesis(0, torch.zeros(2, WIDTH), None)]}

    def step(number):
        states = torch.cat([one.state for one in job["beam"] for _ in range(2)])
        parts = states.split(2)
        beam = [
            Hypothesis(number, part.narrow(0, 0, 2), one)
            for one, part in zip(job["beam"], parts, strict=False)
        ]
        job["beam"] = [*beam, Hypothesis(number, torch.zeros(2, WIDTH), None)][:2]
        if number % 12 == 11:
            best.append(job["beam"][number % 2])
            job["beam"] = [Hypothesis(0, torch.zeros(2, WIDTH), None)]

    return step


def test_what_a_function_makes_of_a_chain_is_to_be_kept(tmp_path):
    found = findings_of(fires_in_a_search, tmp_path / "run.json", steps=200)[0]
    first = found.remedies[0]
    assert (found.rule, first.fix) == ("linked-objects", "del_ref")
    assert first.code == 'best.append(job["beam"][number % 2])'
    assert "keep what `words()` makes of the last" in first.why
    assert "cut it off" not in first.why


class Joined:
    """Several parts as one, as `torch.utils.data.ConcatDataset` has them."""

    def __init__(self, parts, after=None):
        self.parts, self.after = list(parts), after


class SelfTraining:
    """Adds what it labels itself to what the last round was trained on, and not to the labels."""

    def __init__(self, labels):
        self.labels, self.data = labels, labels

    def step(self, number):
        more = Joined([torch.zeros(WIDTH, WIDTH)])
        self.data = Joined([self.data, more])


class Nameless(SelfTraining):
    """Nothing else has what it began with."""

    def __init__(self):
        self.everything = Joined([])

    def step(self, number):
        self.everything = Joined([self.everything, torch.zeros(WIDTH, WIDTH)])


class Retold:
    """Each goes on from the one before, and could not be made of the first."""

    def __init__(self, first):
        self.tale = first

    def step(self, number):
        self.tale = Joined(after=self.tale, parts=[torch.zeros(WIDTH, WIDTH)])


def test_the_one_before_of_a_history_is_to_be_cut_off(tmp_path):
    first = findings_of(lambda: Retold(Joined([])).step, tmp_path / "run.json")[0].remedies[0]
    assert (first.rule, first.fix, first.typed) == ("linked-objects", "del_ref", "")
    assert "cut it off when the next one is made (`self.after = None`)" in first.why


def test_what_is_made_of_itself_is_to_be_made_of_what_it_began_with(tmp_path):
    found = findings_of(lambda: SelfTraining(Joined([])).step, tmp_path / "run.json")[0]
    first = found.remedies[0]
    assert (found.rule, first.fix) == ("linked-objects", "del_ref")
    assert first.code == "self.data = Joined([self.data, more])"
    assert first.typed == "self.data = Joined([self.labels, more])"
    assert "make it of `self.labels`, with what is to be added" in first.why
    nameless = findings_of(lambda: Nameless().step, tmp_path / "other.json")[0].remedies[0]
    assert "make it of what the first was made of" in nameless.why
    assert nameless.typed == ""
