"""unbounded-dict: a dict that is asked for a key before it is filled has no largest size."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import nn

from tests.rules.recorded import findings_of

WIDTH = 64


def fires():
    tables = {}

    def step(number):
        if number not in tables:
            tables[number] = torch.zeros(WIDTH, WIDTH)

    return step


def looks_alike():
    """Results by step: no key comes twice, and none is asked for."""
    results = {}

    def step(number):
        results[number] = torch.zeros(WIDTH, WIDTH)

    return step


def test_it_is_to_be_given_a_largest_size(tmp_path):
    (found,) = findings_of(fires, tmp_path / "run.json")
    first = found.remedies[0]
    assert found.rule == first.rule == "unbounded-dict"
    assert found.bytes_per_step == WIDTH * WIDTH * 4
    assert (first.fix, first.code) == (
        "bound_cache",
        "tables[number] = torch.zeros(WIDTH, WIDTH)",
    )


def of_a_factory():
    """Profiles of guests, of which none comes again."""
    profiles = defaultdict(lambda: torch.zeros(WIDTH, WIDTH))

    def step(number):
        return profiles[f"guest-{number}"].sum().item()

    return step


def test_entries_that_a_read_makes_are_told_with_the_read(tmp_path):
    (found,) = findings_of(of_a_factory, tmp_path / "run.json")
    first = found.remedies[0]
    assert (found.rule, first.fix) == ("unbounded-dict", "bound_cache")
    assert first.code == 'return profiles[f"guest-{number}"].sum().item()'
    assert "`profiles.get(f'guest-{number}')` makes none" in first.why


def lists_by_name():
    """Each name has a list, which is what becomes longer."""
    history = defaultdict(list)

    def made():
        return torch.zeros(WIDTH, WIDTH)

    def step(number):
        history["all"].append(made())

    return step


def test_a_list_that_an_entry_is_becomes_longer_and_no_new_entry(tmp_path):
    (found,) = findings_of(lists_by_name, tmp_path / "run.json")
    assert found.rule == "growing-container"


class Monitor:
    """Moving averages by name, which the step before's are part of with their graphs."""

    def __init__(self):
        self.averages = {}

    def update(self, **values):
        for name, value in values.items():
            if name in self.averages:
                value = 0.9 * self.averages[name] + 0.1 * value  # noqa: PLW2901 - the pattern
            self.averages[name] = value


def averages():
    net, monitor = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()), Monitor()

    def step(number):
        monitor.update(mean=net(torch.ones(WIDTH, WIDTH)).mean())

    return step


def test_a_dict_that_has_few_places_for_many_steps_is_not_what_grows(tmp_path):
    (found, *_) = findings_of(averages, tmp_path / "run.json")
    assert "unbounded-dict" not in {one.rule for one in found.remedies}
    assert [(one.fix, one.code) for one in found.remedies[:2]] == [
        ("no_grad", "monitor.update(mean=net(torch.ones(WIDTH, WIDTH)).mean())"),
        ("detach", "self.averages[name] = value"),
    ]


class Molecule:
    def __init__(self, text):
        self.bonds = torch.zeros(len(text) * WIDTH, WIDTH)
        self.bonds[:, 0] = 1.0


def by_text():
    """A cache by texts, whose values have the tensors; texts might be the names of a record."""
    molecules = {}

    def molecule(text):
        if text not in molecules:
            molecules[text] = Molecule(text)
        return molecules[text]

    return lambda number: molecule("C" * 4 + chr(65 + number)) and None


def test_a_dict_by_texts_that_grows_is_no_record(tmp_path):
    (found,) = findings_of(by_text, tmp_path / "run.json", steps=40)
    first = found.remedies[0]
    assert found.bytes_per_step == 5 * WIDTH * WIDTH * 4
    assert (first.rule, first.fix) == ("unbounded-dict", "bound_cache")
    assert first.code == "molecules[text] = Molecule(text)"


def tried_first():
    """What is computed of a user is kept in a dict of the class, which is tried first."""

    class Features:
        store = {}  # noqa: RUF012 - shared on purpose

        def lookup(self, user):
            try:
                return self.store[user]
            except KeyError:
                self.store[user] = features = torch.zeros(WIDTH, WIDTH)
                return features

    features = Features()

    def step(number):
        features.lookup(number)

    return step


def test_a_dict_of_a_class_that_is_tried_first_is_a_cache(tmp_path):
    (found,) = findings_of(tried_first, tmp_path / "run.json")
    first = found.remedies[0]
    assert (found.rule, found.bytes_per_step) == ("unbounded-dict", WIDTH * WIDTH * 4)
    assert first.fix == "bound_cache"
    assert first.code == "self.store[user] = features = torch.zeros(WIDTH, WIDTH)"


class Scored(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.layer(x).exp().mean()


def sums_by_name():
    """Two sums, each of which has the graphs of all that was added."""
    totals = defaultdict(float)
    scored = Scored()

    def step(number):
        for name in ("first", "second"):
            totals[name] = totals[name] + scored(torch.rand(WIDTH, WIDTH))

    return step


def test_what_grows_in_two_entries_is_no_new_entry(tmp_path):
    found = findings_of(sums_by_name, tmp_path / "run.json", steps=40)
    remedies = [one for finding in found for one in finding.remedies]
    assert [one.rule for one in found[0].remedies[:2]] == ["no-backward", "running-sum"]
    assert "unbounded-dict" not in {one.rule for one in remedies}
