"""Where tensors' bytes lie: device and address, read without a copy, a wait or a new allocation."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, TypeAlias

from memprof.cpython.signal_errors import guarded_errors

__all__ = ["DeviceBlock", "PlaceOf", "StorageAddress", "has_ended", "place_of", "storage_place"]

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
    try:
        address = _address_reader()(tensor)
        if not address:
            return _NOWHERE
        return _CUDA[tensor.get_device()] if tensor.is_cuda else str(tensor.device), address
    except guarded_errors():  # torch's, or whatever a subclass raises
        return _NOWHERE


@cache
def _address_reader() -> Callable[[Any], int]:
    """What reads the address of a tensor's bytes; 0 where there are none."""
    import torch

    data_address: Callable[[Any], int] | None = getattr(torch._C, "_data_address", None)
    return data_address or _storage_address


def _storage_address(tensor: Any) -> int:
    storage = tensor.untyped_storage()
    return int(storage.data_ptr()) if storage.nbytes() else 0


class _DeviceNames(dict[int, str]):
    def __missing__(self, index: int) -> str:
        self[index] = name = f"cuda:{index}"
        return name


_CUDA = _DeviceNames()


def has_ended(storage: Any) -> bool:
    """Whether nothing is left of a storage but Python's object and weak references of C++.

    torch.compile leaves such about. Asking one of them for anything that copies torch's handle,
    its device for example, frees its memory a second time (2.4: the heap is damaged).
    """
    return bool(storage._expired(storage._cdata))


def storage_place(storage: Any) -> StorageAddress:
    """Where a storage begins that no tensor shows; nowhere if its memory was taken away.

    torch.compile leaves storages of fake tensors about: torch warns of whoever asks for the address
    of those on the meta device, and torch 2.7 damages the heap at those that have no bytes.
    """
    try:
        if has_ended(storage) or storage.device.type == "meta" or not storage.nbytes():
            return _NOWHERE
        return str(storage.device), int(storage.data_ptr())
    except (RuntimeError, NotImplementedError):
        return _NOWHERE
