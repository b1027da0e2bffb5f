"""mostly-zeros: tensors that stay are zeros for the most part, by samples of their values."""

from __future__ import annotations

import re

import torch

from tests.rules.recorded import findings_of, peak_of

BATCH, PLACES, WIDTH = 8, 1024, 32
USED = 24


def answering(places, used=USED):
    """A model's cache with so many places, of which answers use a few."""

    def program():
        cache = torch.zeros(BATCH, places, WIDTH)

        def step(number):
            for at in range(used):
                cache[:, at] = torch.randn(BATCH, WIDTH)
            return cache[:, :used].sum().item()

        return step

    return program


fires = answering(PLACES)
looks_alike = answering(PLACES, used=PLACES * 3 // 4)
"""Here most of the places are used."""


def zeros(program, path):
    return [one for one in findings_of(program, path) if one.rule == "mostly-zeros"]


def test_places_that_nothing_fills_are_left_out(tmp_path):
    (found,) = zeros(fires, tmp_path / "run.json")
    (first,) = found.remedies
    assert found.title.endswith(f"are tensors of 1,024 places, of which {USED} were seen filled")
    assert found.bytes == BATCH * PLACES * WIDTH * 4
    assert (first.fix, first.code) == ("right_size", "cache = torch.zeros(BATCH, places, WIDTH)")
    findings_of(answering(USED), tmp_path / "small.json")
    saved = peak_of(tmp_path / "run.json") - peak_of(tmp_path / "small.json")
    assert abs(first.saves_bytes - saved) <= 0.1 * saved


def filling():
    """A memory that each step fills a part of is not full yet, and will be."""
    memory = torch.zeros(1024, 256)

    def step(number):
        memory[number * 8 : (number + 1) * 8] = torch.randn(8, 256)
        return memory[: (number + 1) * 8].sum().item()

    return step


def test_what_is_being_filled_is_none(tmp_path):
    assert not zeros(filling, tmp_path / "run.json")


def spelling(table):
    """A corpus of rows, of which each step takes a few."""

    def program():
        rows = table()

        def step(number):
            return rows[number * 8 : (number + 1) * 8].sum().item()

        return step

    return program


def characters():
    """Written into a table by a call that no rule follows."""
    rows = torch.zeros(256, 64, 64)
    return rows.scatter_(1, torch.randint(64, (256, 1, 64)), 1.0)


def test_a_corpus_of_ones_is_to_be_kept_by_its_indices(tmp_path):
    (found,) = zeros(spelling(characters), tmp_path / "run.json")
    (first,) = found.remedies
    assert re.search(r"are zeros but for [12]\.\d %", found.title)
    assert found.bytes == 256 * 64 * 64 * 4
    assert first.fix == "class_indices"
    assert 0.95 * found.bytes <= first.saves_bytes <= 0.99 * found.bytes


def ratings():
    table = torch.zeros(2048, 512)
    at = torch.randint(table.numel(), (4096,))
    table.view(-1)[at] = torch.rand(4096)
    return table


def test_other_values_are_to_be_kept_with_their_indices(tmp_path):
    (found,) = zeros(spelling(ratings), tmp_path / "run.json")
    assert "are zeros but for 0." in found.title
    assert [one.fix for one in found.remedies] == ["sparse_matrix"]


def padded():
    rows = [torch.randn(512 if number == 3 else 16) for number in range(512)]
    return torch.stack([torch.nn.functional.pad(row, (0, 512 - len(row))) for row in rows])


def test_rows_that_are_padded_to_the_longest_are_to_be_padded_by_batches(tmp_path):
    (found,) = zeros(spelling(padded), tmp_path / "run.json")
    (first,) = found.remedies
    assert first.fix in ("pad_to_longest", "right_size")
    assert "512 places" in found.title


def scores():
    """Values of a mask are what each step computes anew: they stay over no step."""

    def step(number):
        table = torch.zeros(1024, 1024)
        table[0] = 1.0
        return table.sum().item()

    return step


def test_what_a_step_makes_anew_is_none(tmp_path):
    assert not zeros(scores, tmp_path / "run.json")


def images():
    """A frame is hardly to be kept by its indices; fewer bytes a value do."""
    frames = torch.zeros(256, 3, 64, 64)
    frames[:, :, 10:12, 10:12] = 1.0
    return frames


def test_images_are_another_rules(tmp_path):
    found = findings_of(spelling(images), tmp_path / "run.json")
    assert "mostly-zeros" not in [one.rule for one in found]


class Slots:
    """Room for many places, of which a search fills a few; its beams are put in order each time."""

    def __init__(self, beams, places):
        self.keys = torch.zeros(beams, places, WIDTH)
        self.length = 0

    def put(self, values):
        self.keys[:, self.length] = values
        self.length += 1

    def reorder(self, parents):
        self.keys = self.keys.index_select(0, parents)


def searching(places, used=USED):
    """Of each request's cache a new copy is made for each token, and none stays."""

    def program():
        state = {}

        def step(number):
            if number % used == 0:
                state["slots"] = Slots(BATCH, places)
            slots = state["slots"]
            slots.put(torch.randn(BATCH, WIDTH))
            slots.reorder(torch.randperm(BATCH))
            return slots.keys[:, : slots.length].sum().item()

        return step

    return program


def test_copies_of_what_is_begun_anew_with_far_too_many_places_are_known_by_all_of_them(tmp_path):
    steps = 6 * USED
    found = findings_of(searching(PLACES), tmp_path / "run.json", steps)
    (one,) = [finding for finding in found if finding.rule == "mostly-zeros"]
    (first,) = one.remedies
    assert not one.minor
    assert re.search(r"are tensors of 1,024 places, of which (\d+) were seen filled", one.title)
    assert one.site.code == "self.keys = torch.zeros(beams, places, WIDTH)"
    assert (first.fix, first.code) == ("right_size", 'state["slots"] = Slots(BATCH, places)')
    findings_of(searching(USED), tmp_path / "small.json", steps)
    saved = peak_of(tmp_path / "run.json") - peak_of(tmp_path / "small.json")
    assert abs(first.saves_bytes - saved) <= 0.1 * saved
    half = findings_of(searching(2 * USED), tmp_path / "half.json", steps)
    assert "mostly-zeros" not in [finding.rule for finding in half]


def filled_by_copies():
    """A memory that is copied as it is filled, once and for all."""
    memory = [torch.zeros(1024, 256)]

    def step(number):
        memory[0] = memory[0].clone()
        memory[0][number * 2 : (number + 1) * 2] = torch.randn(2, 256)
        return memory[0][: (number + 1) * 2].sum().item()

    return step


def test_what_is_being_filled_by_copies_is_none(tmp_path):
    assert not zeros(filled_by_copies, tmp_path / "run.json")
