"""kept-by-iterator: `itertools.cycle` or `tee` keeps what it has passed on."""

from __future__ import annotations

import itertools

import pytest
import torch

from memprof.reference_chain import Link, LinkKind
from tests.rules.bench import Bench
from tests.rules.recorded import findings_of

WIDTH = 64


def batches(count, width=WIDTH):
    for _ in range(count):
        yield {"x": torch.zeros(width, width)}


def fires():
    rounds = itertools.cycle(batches(100))

    def step(number):
        next(rounds)

    return step


class Loader:
    def __init__(self):
        self.main, self.peek = itertools.tee(batches(100))
        next(self.peek)

    def step(self, number):
        next(self.main)


def looks_ahead():
    """Views that are nearly the whole storage: a clone of them saves next to nothing."""
    loader = Loader()

    def step(number):
        loader.step(number)

    return step


def looks_alike():
    """The list of all batches is the program's own."""
    source, seen = batches(100), []

    def step(number):
        seen.append(next(source))

    return step


def test_what_is_cycled_through_is_to_be_begun_anew(tmp_path):
    (found,) = findings_of(fires, tmp_path / "run.json")
    first = found.remedies[0]
    assert found.rule == first.rule == "kept-by-iterator"
    assert found.bytes_per_step == WIDTH * WIDTH * 4
    assert (first.fix, first.code) == ("reiterate", "rounds = itertools.cycle(batches(100))")


def test_the_branch_that_lags_behind_is_to_be_let_go_of(tmp_path):
    found = findings_of(looks_ahead, tmp_path / "run.json", steps=80)[0]
    first = found.remedies[0]
    assert (found.rule, first.fix) == ("kept-by-iterator", "del_ref")
    assert first.code == "self.main, self.peek = itertools.tee(batches(100))"
    assert "`del self.peek`" in first.why


def full_from_the_second_round(kept):
    """Ten batches that come again and again; ``kept`` is a list that has them as well, or None."""

    def program():
        source = batches(10, 512) if kept is None else kept
        if kept is not None:
            kept.extend(batches(10, 512))
        rounds = itertools.cycle(source)

        def step(number):
            next(rounds)["x"].sum().item()

        return step

    return program


def test_once_it_is_full_it_is_waste(tmp_path):
    found = findings_of(full_from_the_second_round(None), tmp_path / "run.json", steps=60)
    assert not found[0].minor
    assert found[0].remedies[0].fix == "reiterate"


def beside_a_data_set():
    """The crops that come again and again are of a small image, which has a name."""
    image, rounds = torch.rand(3, 256, 256), itertools.cycle(batches(10, 512))

    def step(number):
        next(rounds)["x"].sum().item() + image[0, 0, 0].item()

    return step


def test_a_small_set_beside_it_is_no_reason_to_keep_it(tmp_path):
    found = findings_of(beside_a_data_set, tmp_path / "run.json", steps=60)
    assert (found[0].rule, found[0].minor) == ("resident", False)
    assert found[0].remedies[0].fix == "reiterate"


def test_what_a_list_has_as_well_is_not_kept_by_the_iterator(tmp_path):
    found = findings_of(full_from_the_second_round([]), tmp_path / "run.json", steps=60)
    assert all(one.minor or one.rule != "resident" for one in found)


PEEKABLE = """
class Peekable:
    def __init__(self, source):
        self.stream, *self.peeks = itertools.tee(source, 2)

def batches(n):
    for _ in range(n):
        yield torch.zeros(64, 64)
"""


@pytest.mark.parametrize(
    ("type_name", "deleting"), [("list", " (`del self.peeks[0]`)"), ("tuple", "")]
)
def test_a_branch_in_a_container_is_named_as_an_item(type_name, deleting, tmp_path):
    bench = Bench(tmp_path).write(PEEKABLE)
    links = [
        Link(LinkKind.LOCAL, "peekable", "main"),
        Link(LinkKind.ATTRIBUTE, "peeks", "Peekable"),
        Link(LinkKind.ITEM, "0", type_name, length=1),
        Link(LinkKind.ITERATOR, type_name="tee"),
    ]
    first = bench.advise("yield", bench.holder("itertools.tee", *links))[0]
    assert (first.rule, first.fix) == ("kept-by-iterator", "del_ref")
    assert (
        f"`self.peeks[0]` lags behind: let go of it when it has been read{deleting}." in first.why
    )


def test_what_is_gone_through_twice_is_to_be_begun_anew(tmp_path):
    source = """
def run(source):
    one, two = itertools.tee(source)
    mean = mean_of(one)
    return predict(two, mean)
"""
    (first, *_) = held_by_branch(tmp_path, source, "two")
    assert (first.rule, first.fix) == ("kept-by-iterator", "reiterate")
    assert "`two` is gone through when the other has come to its end" in first.why


def test_what_was_looked_at_first_is_to_be_let_go_of(tmp_path):
    source = """
def run(source):
    peek, all_of_it = itertools.tee(source)
    first = next(peek)
    return predict(all_of_it, first)
"""
    (first, *_) = held_by_branch(tmp_path, source, "peek")
    assert (first.rule, first.fix) == ("kept-by-iterator", "del_ref")
    assert "(`del peek`)" in first.why


def held_by_branch(tmp_path, source, name):
    bench = Bench(tmp_path).write(source)
    links = [Link(LinkKind.LOCAL, name, "run"), Link(LinkKind.ITERATOR, type_name="tee")]
    return bench.advise("def run", bench.holder("itertools.tee", *links))


TAKEN_APART = """
class Normalizer:
    def __init__(self, source):
        branches = itertools.tee(source, 2)
        self.stream, self.probe = branches
"""


def test_a_branch_is_named_as_the_next_statement_binds_it(tmp_path):
    bench = Bench(tmp_path).write(TAKEN_APART)
    links = [
        Link(LinkKind.LOCAL, "normalizer", "main"),
        Link(LinkKind.ATTRIBUTE, "probe", "Normalizer"),
        Link(LinkKind.ITERATOR, type_name="tee"),
    ]
    first = bench.advise("self.stream", bench.holder("itertools.tee", *links))[0]
    assert "`self.probe` lags behind: let go of it when it has been read (`del self.probe`)" in (
        first.why
    )
