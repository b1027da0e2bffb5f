"""Objects that a program may have and that raise when they are looked at; no test is here."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import torch


class Half(torch.Tensor):
    """A wrapper whose inner tensor is not there: its constructor has not come so far."""

    @staticmethod
    def __new__(cls, like: torch.Tensor):  # type: ignore[no-untyped-def]
        return torch.Tensor._make_wrapper_subclass(cls, like.shape, dtype=like.dtype)

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["inner"], None

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError(str(func))


class Looped(Half):
    """A wrapper of itself."""

    def __init__(self, like: torch.Tensor) -> None:
        self.inner = self


class Rude(torch.Tensor):
    """Has bytes of its own, and tells nothing."""

    layout = grad_fn = is_leaf = requires_grad = _base = is_cuda = device = property(  # type: ignore[assignment]
        lambda self: {}["nothing"]
    )


def rude() -> torch.Tensor:
    """One of those."""
    return torch.Tensor._make_subclass(Rude, torch.ones(4))


class Lazy(Mapping[str, object]):
    """A dict whose values cannot be had."""

    def __getitem__(self, key: str) -> object:
        raise ValueError("not loaded")

    def __iter__(self) -> Iterator[str]:
        return iter("ab")

    def __len__(self) -> int:
        return 2


class _Incomparable(type):
    def __eq__(cls, other: object) -> bool:
        raise TypeError("no")

    __hash__ = None  # type: ignore[assignment]


class Nameless(metaclass=_Incomparable):
    """Its class is no key of a dict and equal to nothing."""


class Withheld(dict):  # type: ignore[type-arg]
    """An optimizer's state that cannot be gone through."""

    def items(self) -> Any:
        raise AttributeError("somewhere else")


def dead_proxy() -> object:
    """A proxy of what is gone: even `isinstance` raises."""

    class Gone:
        pass

    gone = Gone()
    return weakref.proxy(gone)


def stale_view() -> torch.Tensor:
    """A view that torch refuses to ask for its graph: its base was changed behind its back."""
    base = torch.ones(3, requires_grad=True).clone()
    with torch.no_grad():
        view = base.view(3)
    base.mul_(2)
    return view
