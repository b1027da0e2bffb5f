"""The same data on a device and on the host, told by the sizes of what stays there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from memprof.analysis.scene import Bools, Scene
from memprof.analysis.suspicion import Pattern, Suspicion

__all__ = ["twins"]

_LEAST_BYTES = 1 << 20
"""Smaller tensors have sizes that many share."""


def twins(device: Scene, host: Scene) -> Iterator[Suspicion]:
    """Large resident tensors of ``device``, for each of which ``host`` has one of its size."""
    sizes = Counter(host.lives.requested[_resident(host)].tolist())
    rows = []
    for row in np.flatnonzero(_resident(device)).tolist():
        requested = int(device.lives.requested[row])
        if sizes[requested]:
            sizes[requested] -= 1
            rows.append(row)
    if not rows:
        return
    picked = np.array(rows, dtype=np.int64)
    yield Suspicion(
        Pattern.TWINS,
        int(picked[np.argmax(device.lives.size[picked])]),
        picked,
        0.4,
        "are there on the host as well, in the same sizes",
        int(device.lives.size[picked].sum()),
        device.replayed(device.whole(picked)),
        {"tensors": len(rows)},
    )


def _resident(scene: Scene) -> Bools:
    """Large, no part of a model, and there to the end over several steps."""
    kept: Bools = scene.stays & ~scene.owned & (scene.lives.requested >= _LEAST_BYTES)
    return kept
