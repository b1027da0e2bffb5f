"""What can be said about memory that no Python object owns: caches, pools and libraries' own."""

from __future__ import annotations

import msgspec
import torch

from memprof.reference_chain import Link
from memprof.sources.tensor_addresses import DeviceBlock

__all__ = ["with_what_is_known"]

_CUBLAS_WORKSPACES = frozenset({(4096 * 2 + 16 * 8) << 10, (4096 * 8) << 10})
"""Bytes of torch's default ``CUBLAS_WORKSPACE_CONFIG``, :4096:2:16:8; on Hopper :4096:8."""


def with_what_is_known(links: list[Link], block: DeviceBlock | None) -> list[Link]:
    """A chain that begins in C++, with all that is known of it; other chains as they are.

    ``block`` is the memory, where that is known.
    """
    if not links or links[0].unowned is None:
        return links
    memory = msgspec.structs.replace(links[0].unowned, autocast=_autocast())
    if block is not None:
        memory = msgspec.structs.replace(
            memory,
            workspace=block.size in _CUBLAS_WORKSPACES,
            pool=block.pool,
            side_stream=block.stream != 0,
        )
    return [msgspec.structs.replace(links[0], unowned=memory), *links[1:]]


def _autocast() -> str:
    """The device for which autocast is on and keeps what it has cast; empty where it does not."""
    if not torch.is_autocast_cache_enabled():
        return ""
    return next((one for one in ("cuda", "cpu") if torch.is_autocast_enabled(one)), "")
