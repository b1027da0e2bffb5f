"""An exact model of torch's CUDA caching allocator, and what it is good for.

Settings and versions, the live model, the state at the start of a trace, layout of CPU tensors and
exact replay live here; questions asked of replays live in ``memprof.what_if.changed_run``.
"""

from __future__ import annotations

from memprof.allocator.counterfactual import (
    NOTHING_CHANGED,
    Changes,
    FailedRequest,
    ReplayedTrace,
    Workload,
    play,
    replayed_trace,
    workload_of,
)
from memprof.allocator.driver import Driver
from memprof.allocator.layout import layout
from memprof.allocator.model import CachingAllocator
from memprof.allocator.outcome import Alive, Outcome, OutOfMemory
from memprof.allocator.recorder import Recorder
from memprof.allocator.replay_check import (
    MODELLED,
    Replay,
    inferred_settings,
    replay_recorded,
)
from memprof.allocator.settings import AllocatorSettings, parse_settings, recorded_settings
from memprof.allocator.state_over_time import (
    FragmentationSamples,
    fragmentation,
    segment_map,
    segment_maps,
)
from memprof.allocator.undo import start_state
from memprof.allocator.versions import TieBreak, tie_break_of

__all__ = [
    "MODELLED",
    "NOTHING_CHANGED",
    "Alive",
    "AllocatorSettings",
    "CachingAllocator",
    "Changes",
    "Driver",
    "FailedRequest",
    "FragmentationSamples",
    "OutOfMemory",
    "Outcome",
    "Recorder",
    "Replay",
    "ReplayedTrace",
    "TieBreak",
    "Workload",
    "fragmentation",
    "inferred_settings",
    "layout",
    "parse_settings",
    "play",
    "recorded_settings",
    "replay_recorded",
    "replayed_trace",
    "segment_map",
    "segment_maps",
    "start_state",
    "tie_break_of",
    "workload_of",
]
