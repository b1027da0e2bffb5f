"""The settings that steer the caching allocator, read from torch's own grammar within its limits.

``PYTORCH_CUDA_ALLOC_CONF`` strings and the ``allocator_settings`` of a snapshot become one frozen
record here; what the settings do lives in the model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from memprof.errors import SettingsError

__all__ = [
    "INTERVALS",
    "MIB",
    "NO_LIMIT",
    "AllocatorSettings",
    "parse_settings",
    "recorded_settings",
    "segment_reserve",
]

MIB = 1 << 20

INTERVALS = 16
"""Intervals of ``roundup_power2_divisions``: up to 2 MiB, then one per power of two to 32 GiB."""

NO_LIMIT = 1 << 62
"""Stands for "unlimited" where torch has the largest ``size_t``."""

_DOCS = "see https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management"

# Keys of torch that steer pinned host memory, locking or handle types: no effect on placement.
_WITHOUT_EFFECT = frozenset(
    {
        "expandable_segments_reserve",
        "expandable_segments_reserve_by_class",
        "graph_capture_record_stream_reuse",
        "pinned_free_catch_all",
        "pinned_max_cached_size_mb",
        "pinned_max_round_threshold_mb",
        "pinned_num_register_threads",
        "pinned_reserve_segment_size_mb",
        "pinned_use_background_threads",
        "pinned_use_cuda_host_register",
        "pinned_use_hip_host_register",
        "release_lock_on_cudamalloc",
        "release_lock_on_hipmalloc",
    }
)


@dataclass(frozen=True, slots=True)
class AllocatorSettings:
    """What torch's caching allocator lets one set; the defaults are torch's. Sizes in bytes."""

    max_split_size: int = NO_LIMIT
    """Blocks of at least this size are not split."""
    max_non_split_rounding: int = 20 * MIB
    """How much larger than a request an unsplit oversize block may be."""
    large_segment_size: int = 20 * MIB
    """What is asked of the driver for requests over 1 MiB and under 10 MiB."""
    roundup_divisions: tuple[int, ...] = (0,) * INTERVALS
    """Divisions between powers of two, per interval; 0 and 1 leave sizes alone."""
    gc_threshold: float = 0.0
    """Share of the allowed memory above which unused blocks are collected; 0 is off."""
    expandable_segments: bool = False
    memory_fraction: float | None = None
    """Share of the device that the process may use (``set_per_process_memory_fraction``)."""
    throw_on_oom: bool = False
    """Refuse at once what would exceed the fraction, without releasing cached blocks first."""

    def text(self) -> str:
        """These settings in torch's grammar; empty for the defaults."""
        return ",".join(_as_text(self))


def _as_text(settings: AllocatorSettings) -> list[str]:
    default, parts = AllocatorSettings(), []
    if settings.expandable_segments:
        parts.append("expandable_segments:True")
    for name, value in (
        ("max_split_size", settings.max_split_size),
        ("max_non_split_rounding", settings.max_non_split_rounding),
        ("large_segment_size", settings.large_segment_size),
    ):
        if value != getattr(default, name):
            key = "max_non_split_rounding_mb" if "non" in name else f"{name}_mb"
            parts.append(f"{key}:{value // MIB}")
    if settings.gc_threshold:
        parts.append(f"garbage_collection_threshold:{settings.gc_threshold:g}")
    if any(settings.roundup_divisions):
        parts.append(f"roundup_power2_divisions:{_divisions_text(settings.roundup_divisions)}")
    if settings.memory_fraction is not None:
        parts.append(f"per_process_memory_fraction:{settings.memory_fraction:g}")
    if settings.throw_on_oom:
        parts.append("throw_on_cudamalloc_oom:True")
    return parts


def _divisions_text(divisions: tuple[int, ...]) -> str:
    if len(set(divisions)) == 1:
        return str(divisions[0])
    return "[" + ",".join(f"{1 << i}:{d}" for i, d in enumerate(divisions)) + "]"


def parse_settings(text: str, start: AllocatorSettings | None = None) -> AllocatorSettings:
    """The settings that ``text`` (``PYTORCH_CUDA_ALLOC_CONF``) describes, under torch 2.13's rules.

    As in torch, every option that the text leaves out takes its default again, except
    ``expandable_segments`` and sizes other than ``max_split_size_mb``, which stay as in ``start``.

    Raises:
        SettingsError: the text breaks torch's grammar or one of its limits.
    """
    settings = replace(
        start or AllocatorSettings(),
        max_split_size=NO_LIMIT,
        gc_threshold=0.0,
        roundup_divisions=(0,) * INTERVALS,
    )
    options = _options(text)
    # The other sizes are measured against this one, wherever it stands (torch reads it first).
    for key, value in sorted(options, key=lambda option: option[0] != "large_segment_size_mb"):
        settings = _with_setting(settings, key, value)
    return settings


def _options(text: str) -> list[tuple[str, str]]:
    compact = re.sub(r"\s", "", text)
    options = []
    for item in re.split(r",(?![^\[]*\])", compact):
        if not item:
            continue
        key, colon, value = item.partition(":")
        if not colon or not value:
            raise SettingsError(f"{item!r} in {text!r} is not of the form option:value", _DOCS)
        options.append((key, value))
    return options


def _with_setting(settings: AllocatorSettings, key: str, value: str) -> AllocatorSettings:
    parse = _PARSERS.get(key)
    if parse is not None:
        return parse(settings, key, value)
    if key in _WITHOUT_EFFECT:
        return settings
    hint = f"options that change placement: {', '.join(sorted(_PARSERS))}"
    raise SettingsError(f"torch's allocator has no option {key!r}", hint)


def _number(key: str, value: str) -> int:
    if not re.fullmatch(r"[0-9]+", value):
        raise SettingsError(f"{key}:{value}: {value!r} is not a whole number", _DOCS)
    return int(value)


def _boolean(key: str, value: str) -> bool:
    if value not in ("True", "False"):
        raise SettingsError(f"{key}:{value}: the value must be True or False", _DOCS)
    return value == "True"


def _power_of_two(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


def _large_segment(settings: AllocatorSettings, key: str, value: str) -> AllocatorSettings:
    megabytes = _number(key, value)
    if megabytes <= 10:
        raise SettingsError(f"{key}:{value} is too small", "it must be over 10 (MiB)")
    return replace(settings, large_segment_size=megabytes * MIB)


def _size_over_segment(field: str) -> Callable[..., AllocatorSettings]:
    def parse(settings: AllocatorSettings, key: str, value: str) -> AllocatorSettings:
        megabytes, least = _number(key, value), settings.large_segment_size // MIB
        if megabytes < least:
            raise SettingsError(f"{key}:{value} is too small", f"it must be at least {least}")
        value_of: dict[str, Any] = {field: min(megabytes * MIB, NO_LIMIT)}
        return replace(settings, **value_of)

    return parse


def _threshold(settings: AllocatorSettings, key: str, value: str) -> AllocatorSettings:
    share = _share(key, value)
    if not 0.0 < share < 1.0:
        raise SettingsError(f"{key}:{value} is out of range", "it must be over 0 and under 1")
    return replace(settings, gc_threshold=share)


def _fraction(settings: AllocatorSettings, key: str, value: str) -> AllocatorSettings:
    share = _share(key, value)
    if not 0.0 <= share <= 1.0:
        raise SettingsError(f"{key}:{value} is out of range", "it must lie in [0, 1]")
    return replace(settings, memory_fraction=None if share == 1.0 else share)


def _share(key: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise SettingsError(f"{key}:{value}: {value!r} is not a number", _DOCS) from None


def _expandable(settings: AllocatorSettings, key: str, value: str) -> AllocatorSettings:
    return replace(settings, expandable_segments=_boolean(key, value))


def _throw(settings: AllocatorSettings, key: str, value: str) -> AllocatorSettings:
    return replace(settings, throw_on_oom=_boolean(key, value))


def _backend(settings: AllocatorSettings, key: str, value: str) -> AllocatorSettings:
    if value == "cudaMallocAsync":
        hint = "its pools belong to the driver and cannot be replayed; use backend:native"
        raise SettingsError("backend:cudaMallocAsync is not the caching allocator", hint)
    if value != "native":
        raise SettingsError(f"{key}:{value} is unknown", "torch has native and cudaMallocAsync")
    return settings


def _roundup(settings: AllocatorSettings, key: str, value: str) -> AllocatorSettings:
    if not value.startswith("["):
        divisions = _number(key, value)
        if not _power_of_two(divisions):
            raise SettingsError(f"{key}:{value}", "the divisions must be a power of two")
        return replace(settings, roundup_divisions=(divisions,) * INTERVALS)
    if not value.endswith("]"):
        raise SettingsError(f"{key}:{value} has no closing bracket", "[256:1,512:2,>:4]")
    return replace(settings, roundup_divisions=_interval_divisions(key, value[1:-1]))


def _interval_divisions(key: str, text: str) -> tuple[int, ...]:
    table, last, first = [0] * INTERVALS, 0, True
    for entry in filter(None, text.split(",")):
        start, colon, value = entry.partition(":")
        divisions = _number(key, value) if colon else -1
        if divisions != 0 and not _power_of_two(divisions):
            hint = "entries are interval:divisions, divisions a power of two or 0"
            raise SettingsError(f"{key}: {entry!r}", hint)
        if start == ">":
            table[last:] = [divisions] * (INTERVALS - last)
            continue
        megabytes = _number(key, start)
        if not _power_of_two(megabytes):
            raise SettingsError(f"{key}: {entry!r}", "intervals start at a power of two (MiB)")
        last = min(megabytes.bit_length() - 1, INTERVALS - 1)
        if first:  # the first entry also speaks for everything below it
            table[:last] = [divisions] * last
            first = False
        table[last] = divisions
    return tuple(table)


_PARSERS: Mapping[str, Callable[[AllocatorSettings, str, str], AllocatorSettings]] = {
    "backend": _backend,
    "expandable_segments": _expandable,
    "garbage_collection_threshold": _threshold,
    "large_segment_size_mb": _large_segment,
    "max_non_split_rounding_mb": _size_over_segment("max_non_split_rounding"),
    "max_split_size_mb": _size_over_segment("max_split_size"),
    "per_process_memory_fraction": _fraction,
    "roundup_power2_divisions": _roundup,
    "throw_on_cudamalloc_oom": _throw,
}


def recorded_settings(settings_record: Mapping[str, Any]) -> AllocatorSettings:
    """The settings that a snapshot's ``allocator_settings`` state (defaults where it is silent).

    The resolved values win over the string, which torch keeps only for the last call. A string
    that this version cannot read is ignored: what was recorded ran, so torch understood it.
    """
    settings = AllocatorSettings()
    try:
        settings = parse_settings(_conf(settings_record))
    except SettingsError:
        pass  # fall back on the resolved values below
    return replace(settings, **_known_settings(settings_record))


def segment_reserve(settings_record: Mapping[str, Any], device_total: int) -> int | None:
    """Bytes of addresses that one expandable segment may have; no request can be larger.

    None where none was set, or expandable segments are off. Streams can be given reserves of their
    own, by class (``expandable_segments_reserve_by_class``); which class a stream has is not in a
    snapshot.
    """
    if not recorded_settings(settings_record).expandable_segments:
        return None
    try:
        options = dict(_options(_conf(settings_record)))
    except SettingsError:  # what was recorded ran, so torch understood it
        return None
    spec = re.fullmatch(r"([0-9.eE+]+)(G?)", options.get("expandable_segments_reserve", ""))
    try:
        value = float(spec[1]) if spec is not None else 0.0
    except ValueError:  # torch ignores it, with a warning
        return None
    if spec is None or not 0 < value < float("inf") or (not spec[2] and device_total <= 0):
        return None
    return int(value * (1 << 30 if spec[2] else device_total))


def _conf(settings_record: Mapping[str, Any]) -> str:
    names = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
    return next((str(settings_record[name]) for name in names if settings_record.get(name)), "")


def _known_settings(settings_record: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    split = settings_record.get("max_split_size")
    if isinstance(split, int):
        values["max_split_size"] = split if 0 < split < NO_LIMIT else NO_LIMIT
    threshold = settings_record.get("garbage_collection_threshold")
    if isinstance(threshold, int | float):
        values["gc_threshold"] = float(threshold)
    expandable = settings_record.get("expandable_segments")
    if isinstance(expandable, bool):
        values["expandable_segments"] = expandable
    divisions = settings_record.get("roundup_power2_divisions")
    if isinstance(divisions, Mapping) and divisions:
        values["roundup_divisions"] = tuple(
            int(divisions.get(str(1 << i), 0)) for i in range(INTERVALS)
        )
    return values
