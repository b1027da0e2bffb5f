"""Settings are read by torch's grammar and held to torch's limits."""

from __future__ import annotations

import pytest

from memprof.allocator import AllocatorSettings, parse_settings, recorded_settings
from memprof.allocator.rounding import round_size, segment_size
from memprof.allocator.settings import segment_reserve
from memprof.errors import SettingsError

MIB = 1 << 20

ACCEPTED = [
    "",
    "max_split_size_mb:20",
    "max_split_size_mb: 100 ",
    "max_split_size_mb:100,",
    "expandable_segments:True",
    "expandable_segments:False,garbage_collection_threshold:0.5",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:1",
    "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
    "roundup_power2_divisions:[4:0]",
    "roundup_power2_divisions:[]",
    "roundup_power2_divisions:[65536:4]",
    "large_segment_size_mb:11",
    "large_segment_size_mb:12,max_split_size_mb:15",
    "max_split_size_mb:15,large_segment_size_mb:12",
    "max_non_split_rounding_mb:21",
    "pinned_use_background_threads:True",
]
REJECTED = [
    "max_split_size_mb:19",
    "max_split_size_mb:abc",
    "max_split_size_mb",
    "max_split_size_mb:",
    "max_split_size_mb 100",
    "max_split_size_mb:100 expandable_segments:True",
    "expandable_segments:true",
    "expandable_segments:1",
    "garbage_collection_threshold:0",
    "garbage_collection_threshold:1",
    "garbage_collection_threshold:x",
    "roundup_power2_divisions:3",
    "roundup_power2_divisions:0",
    "roundup_power2_divisions:[256:1",
    "roundup_power2_divisions:[3:4]",
    "roundup_power2_divisions:[4:3]",
    "large_segment_size_mb:10",
    "large_segment_size_mb:64,max_split_size_mb:32",
    "max_split_size_mb:32,large_segment_size_mb:64",
]
STRICTER = ["foo:1", "max_split_size_mb:100abc", "max_split_size_mb:-5", "backend:other"]
DEFAULTS = "large_segment_size_mb:20,max_non_split_rounding_mb:20,expandable_segments:False"


@pytest.fixture
def torch_settings():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    apply = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
    if apply is None:
        pytest.skip("this torch has no settings that are shared by accelerators")
    apply(DEFAULTS)
    yield apply
    apply(DEFAULTS)


@pytest.mark.parametrize("text", ACCEPTED)
def test_what_torch_accepts_is_accepted(text, torch_settings):
    torch_settings(text)
    assert isinstance(parse_settings(text), AllocatorSettings)


@pytest.mark.parametrize("text", REJECTED)
def test_what_torch_rejects_is_rejected_with_a_hint(text, torch_settings):
    with pytest.raises((RuntimeError, ValueError, IndexError)):
        torch_settings(text)
    with pytest.raises(SettingsError) as caught:
        parse_settings(text)
    assert caught.value.hint


@pytest.mark.parametrize("text", STRICTER)
def test_what_torch_only_overlooks_is_rejected_too(text):
    with pytest.raises(SettingsError):
        parse_settings(text)


def test_an_unknown_option_is_answered_with_the_known_ones():
    with pytest.raises(SettingsError, match="no option 'expandable_segment'") as caught:
        parse_settings("expandable_segment:True")
    assert "expandable_segments" in caught.value.hint


def test_the_asynchronous_backend_cannot_be_replayed():
    with pytest.raises(SettingsError, match="not the caching allocator"):
        parse_settings("backend:cudaMallocAsync")


def test_sizes_are_read_in_mebibytes():
    settings = parse_settings("max_split_size_mb:128,large_segment_size_mb:64")

    assert settings.max_split_size == 128 * MIB
    assert settings.large_segment_size == 64 * MIB


def test_options_that_are_left_out_return_to_their_defaults_but_expandable_segments_stays():
    start = parse_settings("expandable_segments:True,max_split_size_mb:64")
    settings = parse_settings("garbage_collection_threshold:0.6", start)

    assert settings == AllocatorSettings(expandable_segments=True, gc_threshold=0.6)


@pytest.mark.parametrize("text", [t for t in ACCEPTED if "pinned" not in t])
def test_settings_written_in_the_grammar_read_back_as_they_were(text):
    settings = parse_settings(text)

    assert parse_settings(settings.text()) == settings


def test_division_intervals_begin_at_powers_of_two_of_a_mebibyte():
    divisions = parse_settings(
        "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]"
    ).roundup_divisions

    assert divisions[:9] == (1,) * 9
    assert divisions[9:11] == (2, 8)
    assert set(divisions[11:]) == {8}


@pytest.mark.parametrize(
    ("requested", "parts", "expected"),
    [
        (1, 0, 512),
        (512, 0, 512),
        (513, 0, 1024),
        (1200 * 1024, 4, 1280 * 1024),
        (1024 * 1024, 4, 1024 * 1024),
        (1025 * 1024, 4, 1280 * 1024),
        (1900 * 1024, 4, 2048 * 1024),
        (2000, 4, 2048),  # at most 512 bytes a division: rounded to 512
        (2100, 4, 2560),
        (3 * MIB, 1, 3 * MIB),
    ],
)
def test_sizes_are_rounded_as_torch_rounds_them(requested, parts, expected):
    assert round_size(requested, (parts,) * 16) == expected


def test_segments_of_large_requests_are_multiples_of_two_mebibytes():
    defaults = AllocatorSettings()

    assert segment_size(10 * MIB, defaults) == 10 * MIB
    assert segment_size(10 * MIB + 512, defaults) == 12 * MIB
    assert segment_size(2 * MIB, parse_settings("large_segment_size_mb:64")) == 64 * MIB


def test_resolved_values_of_a_snapshot_win_over_its_string():
    recorded = {
        "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64",
        "max_split_size": -1,
        "expandable_segments": True,
        "garbage_collection_threshold": 0.5,
        "roundup_power2_divisions": {"1": 4, "2": 8},
    }
    settings = recorded_settings(recorded)

    assert settings.max_split_size == AllocatorSettings().max_split_size
    assert settings.expandable_segments
    assert settings.gc_threshold == 0.5
    assert settings.roundup_divisions[:3] == (4, 8, 0)


def test_a_string_that_cannot_be_read_is_no_error_in_a_recording():
    assert (
        recorded_settings({"PYTORCH_CUDA_ALLOC_CONF": "from_the_future:1"}) == AllocatorSettings()
    )


@pytest.mark.parametrize(
    ("conf", "reserve"),
    [
        ("expandable_segments:True,expandable_segments_reserve:1G", 1 << 30),
        ("expandable_segments:True, expandable_segments_reserve: 0.5G", 1 << 29),
        ("expandable_segments_reserve:0.25,expandable_segments:True", 20 << 30),
        ("expandable_segments:True,expandable_segments_reserve_by_class:[a:1G]", None),
        ("expandable_segments:True,expandable_segments_reserve:much", None),
        ("expandable_segments:True,expandable_segments_reserve:1e999G", None),
        ("expandable_segments:True,expandable_segments_reserve:0", None),
        ("expandable_segments:True", None),
        ("expandable_segments_reserve:1G", None),
        ("", None),
    ],
)
def test_the_addresses_of_a_segment_are_read_from_what_was_recorded(conf, reserve):
    assert segment_reserve({"PYTORCH_CUDA_ALLOC_CONF": conf}, 80 << 30) == reserve


def test_a_share_of_a_card_of_unknown_size_is_no_reserve():
    conf = "expandable_segments:True,expandable_segments_reserve:0.25"
    assert segment_reserve({"PYTORCH_ALLOC_CONF": conf}, -1) is None
