"""The environment in which a program finds the card that it is run for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from memprof.dry_run.absent_ranks import ABSENT
from memprof.dry_run.build import build, find_torch
from memprof.dry_run.cards import Card
from memprof.dry_run.library import MOST_GPUS
from memprof.errors import SettingsError

__all__ = ["OneRank", "environment"]

GPUS_OF_A_NODE = 8
"""As many as a node has whose number was not given."""
_CARD = "MEMPROF_DRY_RUN_CARD"
_GPUS = "MEMPROF_DRY_RUN_GPUS"
# Which of the machine's real cards are to be seen says nothing about the one that is simulated.
_ABOUT_REAL_CARDS = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
_PORT = "29500"
"""torchrun's own; nobody listens there, as nobody is asked."""


@dataclass(frozen=True, slots=True)
class OneRank:
    """One rank of a job, of which the others are not there."""

    rank: int
    world_size: int

    def variables(self, gpus: int) -> dict[str, str]:
        """What torchrun would set for this rank, with ``gpus`` ranks a node.

        Raises:
            SettingsError: there is no such rank.
        """
        if not 0 <= self.rank < self.world_size:
            raise SettingsError(
                f"there is no rank {self.rank} of {self.world_size}",
                "ranks begin with 0: memprof dry-run --rank 0 --world-size 8 ...",
            )
        node, local = divmod(self.rank, gpus)
        nodes = -(-self.world_size // gpus)
        return {
            ABSENT: "1",
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": str(local),
            "LOCAL_WORLD_SIZE": str(min(gpus, self.world_size - node * gpus)),
            "GROUP_RANK": str(node),
            "GROUP_WORLD_SIZE": str(nodes),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": _PORT,
            # They would ask the store, which is Python's, while the interpreter is taken down.
            "TORCH_NCCL_ENABLE_MONITORING": "0",
            "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
        }


def environment(
    card: Card,
    gpus: int | None = None,
    before: Mapping[str, str] = os.environ,
    one: OneRank | None = None,
) -> dict[str, str]:
    """The variables under which a process, and every one that it starts, has ``gpus`` such cards.

    One card without a number, or as many as a node has for a rank of a larger job.

    The library is compiled if it was not before. A card of this machine is neither seen nor
    touched under them; whoever starts a process without ``LD_PRELOAD`` has the real one again.

    Raises:
        MissingError: there is no torch with CUDA, or nothing to compile with.
        SettingsError: ``gpus`` is not between 1 and `MOST_GPUS`, or there is no such rank.
    """
    if gpus is None:
        gpus = 1 if one is None else max(1, min(GPUS_OF_A_NODE, one.world_size))
    if not 1 <= gpus <= MOST_GPUS:
        raise SettingsError(f"{gpus} cards are not possible", f"give 1 to {MOST_GPUS}")
    of_the_rank = {} if one is None else one.variables(gpus)
    library = build(find_torch())
    remaining = {name: value for name, value in before.items() if name not in _ABOUT_REAL_CARDS}
    return {
        **remaining,
        **of_the_rank,
        "LD_PRELOAD": _first(str(library), remaining.get("LD_PRELOAD", ""), " "),
        "LD_LIBRARY_PATH": _first(str(library.parent), remaining.get("LD_LIBRARY_PATH", ""), ":"),
        _CARD: card.lines,
        _GPUS: str(gpus),
    }


def _first(ours: str, others: str, between: str) -> str:
    rest = [one for one in others.split(between) if one and one != ours]
    return between.join([ours, *rest])
