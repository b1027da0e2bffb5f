"""What a tensor is and how large, as torch's C++ side knows it; looks for no tensors.

What a subclass defines is passed over, and one with a ``__torch_dispatch__`` of its own is not
asked for sizes at all: whether asking runs it cannot be told beforehand.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import torch

from memprof.reference_chain import Link, LinkKind
from memprof.referrers.introspection import type_mro
from memprof.referrers.torch_references import is_tensor_type

__all__ = [
    "device_of",
    "dtype_of",
    "is_view",
    "nbytes_of",
    "requires_grad",
    "shape_of",
    "shown_and_kept",
    "storage_bytes_of",
    "view_link",
]

_TENSOR: Any = torch.Tensor
_SIZELESS = (RuntimeError, NotImplementedError, ValueError)
"""What torch raises for tensors without a single block of memory: sparse, nested, not made yet."""


def _runs_code(kind: type) -> bool:
    """Whether asking an instance for its size, layout or device may run code of its class."""
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        return False
    for one in type_mro(kind):
        method = type.__dict__["__dict__"].__get__(one).get("__torch_dispatch__")
        if method is not None:
            return method is not torch._C._disabled_torch_dispatch_impl
    return False


def nbytes_of(tensor: object) -> int:
    """Bytes that a tensor shows; 0 where it cannot be told."""
    if _runs_code(type(tensor)):
        return 0
    try:
        return int(_TENSOR.nbytes.__get__(tensor))
    except _SIZELESS:
        return 0


def storage_bytes_of(tensor: object) -> int:
    """Bytes of a tensor's storage; those that it shows where it has none."""
    try:
        return int(_TENSOR.untyped_storage(tensor).nbytes())
    except _SIZELESS:
        return nbytes_of(tensor)


def shape_of(tensor: object) -> tuple[int, ...]:
    """A tensor's shape; none where it cannot be told."""
    if _TENSOR.is_nested.__get__(tensor) or _runs_code(type(tensor)):
        return ()
    return tuple(_TENSOR.shape.__get__(tensor))


def device_of(tensor: object) -> str:
    """The device that a tensor's bytes lie on; a fake tensor only says that it is on another."""
    if type(tensor) is torch.Tensor or type(tensor) is torch.nn.Parameter:
        return _text(tensor.device)
    try:
        return _text(_TENSOR.untyped_storage(tensor).device)
    except _SIZELESS:
        return "" if _runs_code(type(tensor)) else _text(_TENSOR.device.__get__(tensor))


def dtype_of(tensor: object) -> str:
    """The type of a tensor's elements, as ``float32``."""
    return _text(_TENSOR.dtype.__get__(tensor))


def is_view(tensor: object) -> bool:
    """Whether a tensor shows the memory of another one, its base."""
    return _TENSOR._base.__get__(tensor) is not None


def requires_grad(tensor: object) -> bool:
    """Whether a tensor takes part in gradients."""
    return bool(_TENSOR.requires_grad.__get__(tensor))


@lru_cache(maxsize=256)
def _text(what: torch.device | torch.dtype) -> str:
    return str(what).removeprefix("torch.")


def shown_and_kept(value: object) -> tuple[int, int]:
    """Bytes that a tensor shows and bytes of its storage; equal for what is no view.

    A view that inference mode has made, or ``.data``, has no base: only its storage tells. A
    storage object stays with its tensor once asked for, so this is for the few that are answers.
    """
    if not is_tensor_type(type(value)) or _runs_code(type(value)):
        return 0, 0
    if _TENSOR.layout.__get__(value) is not torch.strided or _TENSOR.is_nested.__get__(value):
        return 0, 0
    shown_bytes = nbytes_of(value)
    base = _TENSOR._base.__get__(value)
    if base is not None:
        return shown_bytes, nbytes_of(base) or shown_bytes
    return shown_bytes, storage_bytes_of(value)


def _offset_of(value: object) -> int:
    """Where in its storage a tensor begins; -1 for what is none, or may not be asked."""
    if not is_tensor_type(type(value)) or _runs_code(type(value)):
        return -1
    if _TENSOR.layout.__get__(value) is not torch.strided:
        return -1
    return int(_TENSOR.storage_offset(value))


def view_link(value: object, others: Iterable[object] = ()) -> list[Link]:
    """A link for a view that shows less than it keeps, with ``others`` of the same storage."""
    shown_bytes, storage_bytes = shown_and_kept(value)
    shown = {_offset_of(value): shown_bytes}
    for one in others:  # of those that begin at one place, as ``x`` and ``x.detach()``, the largest
        at = _offset_of(one)
        shown[at] = max(shown.get(at, 0), shown_and_kept(one)[0])
    shown_bytes = sum(shown.values())
    if shown_bytes >= storage_bytes:
        return []
    name = type(value).__name__
    return [
        Link(LinkKind.BASE, type_name=name, shown_bytes=shown_bytes, storage_bytes=storage_bytes)
    ]
