"""kept-attribute: what is set of each item of a list, and names that a program makes up."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import pytest
import torch

from tests.rules.recorded import findings_of

WIDTH = 64
NBYTES = WIDTH * WIDTH * 4


class Store:
    """An object that has its attributes in a mapping, as graphs of a library do."""

    def __init__(self):
        self.__dict__["mapping"] = {}

    def __setattr__(self, name, value):
        self.mapping[name] = value

    def __getattr__(self, name):
        return self.mapping[name]


def of_items(make):
    def program():
        samples = [make() for _ in range(64)]

        def step(number):
            sample = samples[number]
            sample.features = torch.zeros(WIDTH, WIDTH)

        return step

    return program


def test_the_statement_that_sets_it_is_told_and_not_the_one_that_makes_the_list(tmp_path):
    for number, make in enumerate((SimpleNamespace, Store)):
        (found,) = findings_of(of_items(make), tmp_path / f"run{number}.json")
        (only,) = found.remedies
        assert (found.rule, found.bytes_per_step) == ("kept-attribute", NBYTES)
        assert only.code == "sample.features = torch.zeros(WIDTH, WIDTH)"
        assert (only.fix, only.typed) == ("del_ref", "del sample.features")
        assert "`sample.features` stays with each item" in only.why


class Node:
    """An item that keeps what its method has computed."""

    __slots__ = ("fields", "last")

    def __init__(self):
        self.fields, self.last = {}, None

    def run(self):
        self.last = torch.zeros(WIDTH, WIDTH)

    def note(self):
        table = torch.zeros(WIDTH, WIDTH)
        self.fields["table"] = table


def by_method():
    nodes = [Node() for _ in range(64)]

    return lambda number: nodes[number].run()


def by_method_in_a_field():
    nodes = [Node() for _ in range(64)]

    return lambda number: nodes[number].note()


def in_a_field():
    samples = [SimpleNamespace(extra={}) for _ in range(64)]

    def step(number):
        sample = samples[number]
        hidden = torch.zeros(WIDTH, WIDTH)
        sample.extra["hidden"] = hidden

    return step


class Job:
    """An item that is given what others have computed, or computes it when it is asked."""

    def __init__(self):
        self.fields = {}

    def finish(self, output):
        self.output = output

    def cached(self, name, make):
        if not hasattr(self, name):
            setattr(self, name, make())
        return getattr(self, name)

    @functools.cached_property
    def table(self):
        return torch.zeros(WIDTH, WIDTH)

    @property
    def doubled(self):
        return self.cached("_doubled", lambda: torch.zeros(WIDTH, WIDTH))


def note(job, value):
    job.fields.update(noted=value, number=1)


def with_jobs(use):
    jobs = tuple(Job() for _ in range(64))
    return lambda number: use(jobs[number])


def handed_to_method():
    return with_jobs(lambda job: job.finish(torch.zeros(WIDTH, WIDTH)))


def handed_to_function():
    def use(job):
        value = torch.zeros(WIDTH, WIDTH)
        note(job, value)

    return with_jobs(use)


def by_property():
    return with_jobs(lambda job: job.doubled.sum())


def updated():
    samples = [{} for _ in range(64)]

    def step(number):
        hidden = torch.zeros(WIDTH, WIDTH)
        samples[number].update(hidden=hidden)

    return step


@pytest.mark.parametrize(
    ("program", "code"),
    [
        (handed_to_method, "self.output = output"),
        (handed_to_function, "job.fields.update(noted=value, number=1)"),
        (by_property, "setattr(self, name, make())"),
        (updated, "samples[number].update(hidden=hidden)"),
        (by_method, "self.last = torch.zeros(WIDTH, WIDTH)"),
        (by_method_in_a_field, 'self.fields["table"] = table'),
        (in_a_field, 'sample.extra["hidden"] = hidden'),
    ],
)
def test_the_statement_that_gives_it_to_the_items_is_told(program, code, tmp_path):
    (found,) = findings_of(program, tmp_path / "run.json")
    (only,) = found.remedies
    assert (found.rule, found.bytes_per_step) == ("kept-attribute", NBYTES)
    assert (only.fix, only.code) == ("del_ref", code)
    assert "stays with each item" in only.why


class Made:
    """An item that has its tensor from the beginning."""

    def __init__(self):
        self.load()

    def load(self):
        self.table = torch.zeros(WIDTH, WIDTH)


def by_cached_property():
    return with_jobs(lambda job: job.table.sum())


def test_a_cached_property_is_told_as_one(tmp_path):
    (found,) = findings_of(by_cached_property, tmp_path / "run.json")
    (only,) = found.remedies
    assert (found.rule, found.bytes_per_step) == ("kept-attribute", NBYTES)
    assert (only.fix, only.code) == ("del_ref", "def table(self):")
    assert only.why.startswith("`self.table` is a `cached_property`")


class MadeLazily(Job):
    """An item whose constructor asks for what is computed once."""

    def __init__(self):
        self.table.zero_()


def made_lazily():
    items = []

    def step(number):
        items.append(MadeLazily())

    return step


def made_with_it():
    items = []

    def step(number):
        items.append(Made())

    return step


def test_what_an_item_has_from_the_beginning_is_not_to_be_taken_off(tmp_path):
    (found,) = findings_of(made_with_it, tmp_path / "run.json")
    assert (found.rule, found.remedies[0].code) == ("growing-container", "items.append(Made())")
    assert not any("stays with each item" in one.why for one in found.remedies)
    (found,) = findings_of(made_lazily, tmp_path / "lazily.json")
    line = "items.append(MadeLazily())"
    assert (found.rule, found.remedies[0].code) == ("growing-container", line)
    assert not any("stays with each item" in one.why for one in found.remedies)


def by_names():
    def step(number):
        globals()[f"table_{number}"] = torch.zeros(WIDTH, WIDTH)

    return step


def test_names_that_a_program_makes_up_are_told_by_the_statement_that_does(tmp_path):
    try:
        (found,) = findings_of(by_names, tmp_path / "run.json")
    finally:
        for name in [one for one in globals() if one.startswith("table_")]:
            del globals()[name]
    (only,) = found.remedies
    assert found.rule == "kept-attribute"
    assert only.code == 'globals()[f"table_{number}"] = torch.zeros(WIDTH, WIDTH)'
