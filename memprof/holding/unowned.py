"""What can be said about memory that no Python object owns: caches, pools and libraries' own."""

from __future__ import annotations

import torch

from memprof.holding.kinds import LinkKind, link
from memprof.records import Link
from memprof.sources.places import Block

__all__ = ["with_what_is_known"]

_CUBLAS_WORKSPACES = frozenset({(4096 * 2 + 16 * 8) << 10, (4096 * 8) << 10})
"""Bytes of torch's default ``CUBLAS_WORKSPACE_CONFIG``, :4096:2:16:8; on Hopper :4096:8."""


def with_what_is_known(links: list[Link], block: Block | None) -> list[Link]:
    """A chain that begins in C++, with all that is known of it; other chains as they are.

    ``block`` is the memory, where that is known.
    """
    if not links or links[0].kind != LinkKind.UNKNOWN:
        return links
    said = [*_of_autocast(), *(_of_block(block) if block is not None else ())]
    name = ": ".join(part for part in (links[0].name, "; ".join(said)) if part)
    return [link(LinkKind.UNKNOWN, name), *links[1:]]


def _of_autocast() -> list[str]:
    if not torch.is_autocast_cache_enabled():
        return []
    devices = [one for one in ("cuda", "cpu") if torch.is_autocast_enabled(one)]
    if not devices:
        return []
    return [f"autocast is on ({devices[0]}) and caches low-precision weights"]


def _of_block(block: Block) -> list[str]:
    said = []
    if block.size in _CUBLAS_WORKSPACES:
        said.append("it has the size of a cuBLAS workspace, which torch keeps for every stream")
    graph, pool = block.pool
    if graph:
        said.append(f"it lies in the private pool of a CUDA graph ({graph}, {pool})")
    elif pool:
        said.append(f"it lies in the memory pool (0, {pool}): a MemPool, or graphs that share one")
    if block.stream:
        said.append("it was allocated on a side stream, as a library such as NCCL does")
    return said
