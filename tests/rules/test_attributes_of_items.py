"""kept-attribute: what is set of each item of a list, and names that a program makes up."""

from __future__ import annotations

from types import SimpleNamespace

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
