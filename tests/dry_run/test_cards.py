"""Cards: those of the list with the source of each figure, sizes, descriptions in files."""

from __future__ import annotations

import json

import msgspec
import pytest

from memprof.dry_run.cards import card_named, described, listed
from memprof.errors import SettingsError

GIB = 1 << 30
WANTED = {
    "t4": (7, 5, 14, 15),
    "v100-16gb": (7, 0, 15, 16),
    "v100-32gb": (7, 0, 31, 32),
    "rtx-2080-ti": (7, 5, 10, 11),
    "rtx-3090": (8, 6, 23, 24),
    "rtx-4090": (8, 9, 23, 24),
    "rtx-5090": (12, 0, 31, 32),
    "a10": (8, 6, 22, 23),
    "a40": (8, 6, 44, 45),
    "l4": (8, 9, 21, 22),
    "l40s": (8, 9, 44, 45),
    "a100-40gb": (8, 0, 39, 40),
    "a100-80gb": (8, 0, 79, 80),
    "h100": (9, 0, 79, 80),
    "h200": (9, 0, 139, 140),
    "b200": (10, 0, 178, 179),
    "rtx-6000-ada": (8, 9, 47, 48),
    "jetson-agx-orin-64gb": (8, 7, 61, 62),
}
"""Capability, and the GiB between which the card's bytes lie."""


@pytest.mark.parametrize("name", WANTED)
def test_a_card_has_its_capability_and_less_memory_than_is_printed_on_its_box(name):
    card = listed()[name]
    major, minor, least, most = WANTED[name]
    assert card.capability == f"{major}.{minor}"
    assert least * GIB <= card.total_bytes < most * GIB


@pytest.mark.parametrize("name", sorted(listed()))
def test_each_figure_of_a_card_has_a_source(name):
    card = listed()[name]
    own = {"total_bytes", "context_bytes", "capability", "multiprocessors", "l2_bytes"}
    own |= {"nccl_channels"} if card.nccl_channels else set()
    assert own == set(card.sources)
    assert all(len(source) > 20 for source in card.sources.values())


@pytest.mark.parametrize("name", sorted(listed()))
def test_a_card_says_which_figures_are_those_of_another(name):
    card = listed()[name]
    no_source = {figure for figure, text in card.sources.items() if text.startswith("not found")}
    assert set(card.assumed) == no_source


@pytest.mark.parametrize("name", sorted(listed()))
def test_limits_of_a_multiprocessor_agree_with_one_another(name):
    card = listed()[name]
    assert card.threads_per_multiprocessor % 32 == 0
    assert card.blocks_per_multiprocessor in (16, 24, 32)
    reserved = card.shared_bytes_reserved_per_block
    assert card.shared_bytes_per_block_optin + reserved == card.shared_bytes_per_multiprocessor


@pytest.mark.parametrize("text", ["h100", "H100", "NVIDIA H100 80GB HBM3", "nvidia h100 80gb hbm3"])
def test_a_card_is_known_by_its_short_and_by_its_full_name(text):
    assert card_named(text) == listed()["h100"]


@pytest.mark.parametrize("text", ["rtx-4090", "RTX 4090", "GeForce RTX 4090"])
def test_a_card_is_known_without_its_maker(text):
    assert card_named(text) == listed()["rtx-4090"]


def test_a_size_is_a_card_of_which_the_rest_is_assumed():
    card = card_named("24GiB")
    assert card.total_bytes == 24 * GIB
    assert card.name == "a card of 24 GiB"
    assert card.sources["total_bytes"] == "given"
    assert "only a size was given" in card.sources["multiprocessors"]


def test_an_ambiguous_name_is_refused_with_those_that_it_may_mean():
    with pytest.raises(SettingsError) as caught:
        card_named("a100")
    assert "a100-40gb or a100-80gb" in caught.value.hint


def test_a_misspelt_name_is_refused_with_the_nearest():
    with pytest.raises(SettingsError) as caught:
        card_named("rtx4090")
    assert "rtx-4090" in caught.value.hint


def test_a_file_describes_a_card_of_the_users_own(tmp_path):
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(msgspec.to_builtins(listed()["t4"])))
    assert card_named(str(file)) == listed()["t4"]


def test_a_file_may_leave_out_what_follows_from_the_capability(tmp_path):
    figures = {
        "name": "mine",
        "total_bytes": 8 * GIB,
        "context_bytes": 0,
        "capability": "8.6",
        "multiprocessors": 20,
        "l2_bytes": 1 << 21,
    }
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(figures))
    assert described(file).threads_per_multiprocessor == 1536


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"capability": "8.0"}', '{"capability": "3.5"}'])
def test_a_file_that_describes_no_card_is_refused(tmp_path, text):
    file = tmp_path / "broken.json"
    file.write_text(text)
    with pytest.raises(SettingsError, match="describe"):
        card_named(str(file))


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(SettingsError, match="cannot be read"):
        card_named(str(tmp_path / "none.json"))


def test_the_library_reads_every_figure_of_a_card():
    lines = dict(line.split("=", 1) for line in listed()["h100"].lines.splitlines())
    assert lines["name"] == "NVIDIA H100 80GB HBM3"
    assert (lines["major"], lines["minor"]) == ("9", "0")
    source = (listed.__globals__["LISTED"].parent / "runtime" / "card.c").read_text()
    assert [name for name in lines if f'"{name}"' not in source] == []
