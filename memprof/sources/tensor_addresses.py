"""Where tensors' bytes lie: device and address, read without a copy, a wait or a new allocation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

__all__ = ["DeviceBlock", "PlaceOf", "StorageAddress", "place_of", "storage_place"]

StorageAddress: TypeAlias = "tuple[str, int]"
"""A device such as ``cuda:0``, and the first byte of a storage on it; 0 where it has no bytes."""

PlaceOf: TypeAlias = "Callable[[Any], StorageAddress]"

_NOWHERE: StorageAddress = ("", 0)


class DeviceBlock(NamedTuple):
    """A block of a device's memory, whose owners may be looked for; plain values."""

    device: str
    address: int
    size: int
    stream: int = 0
    pool: tuple[int, int] = (0, 0)
    """``(0, 0)`` is the allocator's own, ``(n, 0)`` a CUDA graph's, ``(0, n)`` a ``MemPool``'s."""


def place_of(tensor: Any) -> StorageAddress:
    """Where a tensor's storage begins; nowhere for fake, sparse, wrapped and opaque ones.

    ``data_ptr()`` is not asked: it gives a lazily cloned tensor memory of its own there and then.
    """
    import torch

    data_address = getattr(torch._C, "_data_address", None)
    try:
        if data_address is None:
            storage = tensor.untyped_storage()
            address = storage.data_ptr() if storage.nbytes() else 0
        else:
            address = data_address(tensor)
        return (_device_of(tensor), int(address)) if address else _NOWHERE
    except Exception:  # noqa: BLE001 - torch's, or whatever a subclass raises
        return _NOWHERE


def storage_place(storage: Any) -> StorageAddress:
    """Where a storage begins that no tensor shows; nowhere if its memory was taken away.

    torch.compile leaves storages of fake tensors about: torch warns of whoever asks for the address
    of those on the meta device, and torch 2.7 damages the heap at those that have no bytes.
    """
    try:
        if storage.device.type == "meta" or not storage.nbytes():
            return _NOWHERE
        return str(storage.device), int(storage.data_ptr())
    except (RuntimeError, NotImplementedError):
        return _NOWHERE


def _device_of(tensor: Any) -> str:
    index = tensor.get_device()
    return f"cuda:{index}" if tensor.is_cuda else str(tensor.device)
