"""What a search looks for: storages, tensors without one, blocks of a device's memory; finds none.

A storage has its key, ``UntypedStorage._cdata``; a block, of which only the address is known, has a
negative number instead, and every storage that begins inside it is the block's.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from memprof.sources.tensor_addresses import (
    DeviceBlock,
    PlaceOf,
    StorageAddress,
    has_ended,
    place_of,
    storage_place,
)

__all__ = ["BlockIndex", "Targets", "storage_key", "unwrapped"]


def storage_key(tensor: torch.Tensor) -> int:
    """``storage._cdata`` of a tensor, made without a storage object; 0 where it has none."""
    try:
        return int(torch._C._storage_id(tensor))  # type: ignore[attr-defined]
    except (RuntimeError, NotImplementedError):
        inner = unwrapped(tensor)
        return 0 if inner is None else storage_key(inner)


def unwrapped(tensor: torch.Tensor) -> torch.Tensor | None:
    """What a wrapper of ``torch.func`` (``vjp``, ``grad``, ``vmap``) wraps; None for others."""
    if not torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return None
    return torch._C._functorch.get_unwrapped(tensor)


class BlockIndex:
    """Blocks by their address on each device."""

    def __init__(self, blocks: Iterable[DeviceBlock], place: PlaceOf = place_of) -> None:
        """``place`` says where a tensor lies; tests give their own."""
        self.key_of = {one: -1 - at for at, one in enumerate(dict.fromkeys(blocks))}
        self.place = place
        on_device: dict[str, list[DeviceBlock]] = defaultdict(list)
        for one in sorted(self.key_of, key=lambda block: block.address):
            on_device[one.device].append(one)
        self._on_device: Mapping[str, tuple[list[int], list[DeviceBlock]]] = {
            device: ([one.address for one in blocks_here], blocks_here)
            for device, blocks_here in on_device.items()
        }

    def block(self, key: int) -> DeviceBlock | None:
        """The block with a key."""
        return list(self.key_of)[-1 - key] if key < 0 else None

    def at(self, place: StorageAddress) -> int:
        """The key of the block that a place lies in; 0 where it is none of these."""
        device, address = place
        starts, blocks = self._on_device.get(device, ((), ()))
        row = bisect_right(starts, address) - 1
        inside = row >= 0 and address < blocks[row].address + blocks[row].size
        return self.key_of[blocks[row]] if inside else 0


@dataclass(frozen=True)
class Targets:
    """What is looked for, each thing under one integer key."""

    keys: frozenset[int] | None
    """Storage keys; ``None``: every tensor."""
    ids: frozenset[int] = frozenset()
    """Ids of tensors without a storage (sparse, opaque)."""
    blocks: BlockIndex = field(default_factory=lambda: BlockIndex(()))

    def all(self) -> frozenset[int]:
        """Every key that was asked for; none where everything is."""
        return frozenset({*(self.keys or ()), *self.ids, *self.blocks.key_of.values()})

    def key(self, tensor: torch.Tensor) -> int:
        """The key that a tensor's memory is wanted under; 0: it is not looked for."""
        key = self.stored_key(tensor)
        return key or (id(tensor) if self.keys is None or id(tensor) in self.ids else 0)

    def stored_key(self, tensor: torch.Tensor) -> int:
        """The same by its storage or block alone."""
        if self.blocks.key_of:
            block = self.blocks.at(self.blocks.place(tensor))
            if block:
                return block
        key = storage_key(tensor)
        return key if self.keys is None or key in self.keys else 0

    def storage_keys(
        self, storages: Sequence[torch.UntypedStorage], tensors: Sequence[torch.Tensor]
    ) -> dict[int, int]:
        """Keys of storages that Python itself holds, by their ids; only the wanted ones."""
        if self.keys is None or not storages:
            return {}
        by_storage = {storage_key(one): one for one in tensors}
        keys = (
            (one, self._storage_key(one, by_storage.get(one._cdata)))
            for one in storages
            if not has_ended(one)
        )
        return {id(one): key for one, key in keys if key}

    def _storage_key(self, storage: torch.UntypedStorage, shown_by: torch.Tensor | None) -> int:
        if shown_by is not None:
            return self.stored_key(shown_by)
        key = int(storage._cdata)
        if self.keys is not None and key in self.keys:
            return key
        return self.blocks.at(storage_place(storage)) if self.blocks.key_of else 0
