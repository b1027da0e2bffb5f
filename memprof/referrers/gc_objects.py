"""Which objects the collector knows, asked at the speed of C; names nothing and decides nothing."""

from __future__ import annotations

from typing import Any

import torch

from memprof.cpython.object_addresses import addresses
from memprof.cpython.tracked_objects import tracked_objects
from memprof.referrers.heap import places_among
from memprof.sources.gc_instances import instances_of, subclasses_of, young_instances_of
from memprof.sources.training_threads import may_read_tensors

__all__ = ["live_tensors", "objects_at", "young_tensors"]


def live_tensors() -> list[Any]:
    """Every tensor that a Python object stands for."""
    return instances_of(subclasses_of(torch.Tensor)) if may_read_tensors() else []


def young_tensors() -> list[Any]:
    """Those that no full collection has looked at yet."""
    return young_instances_of(subclasses_of(torch.Tensor)) if may_read_tensors() else []


def objects_at(ids: list[int]) -> list[Any]:
    """The objects that live at some addresses now and that the collector knows.

    An object may be gone by now, and another in its place.
    """
    objects = tracked_objects(wanted_ids=frozenset(ids)).objects
    try:  # no comprehension: its cell would be among the objects, and hold the list
        return list(map(objects.__getitem__, places_among(addresses(objects), sorted(ids))))
    finally:
        objects.clear()
