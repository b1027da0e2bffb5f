"""Storages that Python clones, as `copy.deepcopy` does: no allocator that is set sees them.

`torch.UntypedStorage.clone` takes its memory from torch's default allocator for the CPU itself, not
from the one that is set (`THPStorage_pynew` in torch/csrc/Storage.cpp).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["ClonedStorages"]

_NAME = "clone"


class ClonedStorages:
    """Tells of every clone, where it was made, while it is open."""

    def __init__(self, see: Callable[[Any], None]) -> None:
        """``see`` is called with each new storage, on the thread that made it."""
        self._see = see
        self._real: Any = None

    def open(self) -> None:
        """Tell from now on; safe to call twice."""
        import torch

        if self._real is None:
            self._real = torch.UntypedStorage.clone
            setattr(torch.UntypedStorage, _NAME, self._wrapper())

    def close(self) -> None:
        """Tell no more; safe to call twice. A wrapper of somebody else's stays."""
        import torch

        own = vars(torch.UntypedStorage).get(_NAME)
        if self._real is not None and getattr(own, "watcher", None) is self:
            delattr(torch.UntypedStorage, _NAME)  # it is a method of the base class
        self._real = None

    def _wrapper(self) -> Callable[..., Any]:
        real = self._real

        def clone(storage: Any) -> Any:
            copied = real(storage)
            if self._real is not None and copied.device.type == "cpu":
                self._see(copied)
            return copied

        clone.watcher = self  # type: ignore[attr-defined]
        return clone
