"""The environment in which a program finds the card that it is run for."""

from __future__ import annotations

import os
from collections.abc import Mapping

from memprof.dry_run.build import build, find_torch
from memprof.dry_run.cards import Card
from memprof.errors import SettingsError

__all__ = ["MOST_GPUS", "environment"]

MOST_GPUS = 16
"""As many as the library keeps room for (``MOST_DEVICES``)."""
_CARD = "MEMPROF_DRY_RUN_CARD"
_GPUS = "MEMPROF_DRY_RUN_GPUS"
# Which of the machine's real cards are to be seen says nothing about the one that is simulated.
_ABOUT_REAL_CARDS = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")


def environment(
    card: Card, gpus: int = 1, before: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """The variables under which a process, and every one that it starts, has ``gpus`` such cards.

    The library is compiled if it was not before. A card of this machine is neither seen nor
    touched under them; whoever starts a process without ``LD_PRELOAD`` has the real one again.

    Raises:
        MissingError: there is no torch with CUDA, or nothing to compile with.
        SettingsError: ``gpus`` is not between 1 and `MOST_GPUS`.
    """
    if not 1 <= gpus <= MOST_GPUS:
        raise SettingsError(f"{gpus} cards are not possible", f"give 1 to {MOST_GPUS}")
    library = build(find_torch())
    kept = {name: value for name, value in before.items() if name not in _ABOUT_REAL_CARDS}
    return {
        **kept,
        "LD_PRELOAD": _first(str(library), kept.get("LD_PRELOAD", ""), " "),
        "LD_LIBRARY_PATH": _first(str(library.parent), kept.get("LD_LIBRARY_PATH", ""), ":"),
        _CARD: card.lines,
        _GPUS: str(gpus),
    }


def _first(ours: str, others: str, between: str) -> str:
    rest = [one for one in others.split(between) if one and one != ours]
    return between.join([ours, *rest])
