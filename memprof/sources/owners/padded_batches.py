"""How much of its batches a model is called with is padding, by a mask or by their own values."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from memprof.records import PaddedBatches
from memprof.sources.guarded_access import plain_attributes
from memprof.sources.loop.loop_watch import Listener, LoopWatch
from memprof.sources.tensor_addresses import place_of

__all__ = ["PaddedBatchesWatch"]

_MASK = "attention_mask"
"""The parameter of transformers' models, and of others that are called as these are."""
_MOST_CALLS = 512
"""Calls whose masks are looked at, and calls whose tensors are; each takes 20 to 60 µs."""
_MOST_VALUES = 1 << 20
"""Values of a mask, above which looking at them takes milliseconds."""
_MOST_IN_ALL = 1 << 27
"""Values that are compared with padding in a whole run, which takes a tenth of a second or two."""
_MOST_TENSORS = 4
"""Of what one call is given."""
_MOST_KNOWN = 256
"""Tensors and dimensions by which module is given them."""
_MOST_DIMENSIONS = 4
_LEAST_PLACES = 32
"""Of a dimension that may be one of places: fewer are channels, or a small image."""
_LEAST_SAMPLES = 256
"""The same where a sequence has one number for each place, as sound has: else these are features of
one row."""
_KINDS = {
    "torch.float16": "f2",
    "torch.float32": "f4",
    "torch.float64": "f8",
    "torch.bool": "?",
    "torch.int8": "i1",
    "torch.int16": "i2",
    "torch.int32": "i4",
    "torch.int64": "i8",
    "torch.uint8": "u1",
}
"""Types of torch by those of NumPy."""


class _Given(NamedTuple):
    """A dimension of what a kind of module is called with."""

    module: str
    name: str
    at: int
    """Its place among the arguments without a name."""
    ndim: int
    dimension: int


@dataclass(slots=True)
class _Places:
    """What is known of one mask, or of one dimension of what calls are given."""

    calls: int = 0
    sequences: int = 0
    places: int = 0
    longest: int = 0

    def add(self, sequences: int, places: int, longest: int) -> None:
        """Take in a call, in which the longest sequence uses so many of its places."""
        if not self.calls or longest * self.places > self.longest * places:
            self.places, self.longest = places, longest
        self.sequences = max(self.sequences, sequences)
        self.calls += 1

    @property
    def used(self) -> float:
        """The share of the places that the longest sequence uses."""
        return self.longest / self.places


class PaddedBatchesWatch(Listener):
    """Listens to outermost calls and looks at the masks of the CPU that they are given.

    Where there is none, at the tensors themselves: whether they end in places that have the same
    value in every sequence. What is on a device is left alone: reading it would wait for the
    device. NumPy looks through a tensor's own memory, so that torch runs nothing for it.
    """

    def __init__(self, loop_watch: LoopWatch) -> None:
        """No model was called."""
        self._guard = loop_watch.guard
        self._masks = _Places()
        self._tensors: dict[_Given, _Places] = {}
        self._calls, self._values = _MOST_CALLS, _MOST_IN_ALL
        self._last = PaddedBatches()

    def take(self) -> PaddedBatches | None:
        """What is known by now; None where that is what it was at the last call."""
        known = self._masks if self._masks.calls else self._emptiest()
        record = PaddedBatches(known.calls, known.sequences, known.places, known.longest)
        last, self._last = self._last, record
        return record if record != last else None

    def _emptiest(self) -> _Places:
        """The dimension with the most padding, among those of most calls."""
        most = max((one.calls for one in self._tensors.values()), default=0)
        often = [one for one in self._tensors.values() if 2 * one.calls >= most]
        return min(often, key=lambda one: one.used, default=self._masks)

    # Listener of the loop watch.

    def outermost_call(self, module: Any, args: Any, kwargs: Any) -> None:
        """Its mask, where it has one, says how many places its sequences use."""
        if self._masks.calls >= _MOST_CALLS:
            return
        # A model around one of transformers' is handed the whole batch.
        batches = [one for one in (kwargs, *args) if type(one) is dict]
        masks = [one[_MASK] for one in batches if _MASK in one]
        if masks:
            with plain_attributes():
                self._guard.each(self._see, masks[:1])
        elif not self._masks.calls and self._calls and self._values > 0:
            self._calls -= 1
            with plain_attributes():
                self._guard.each(self._see_call, [(module, args, kwargs)])

    def _see_call(self, call: tuple[Any, Any, Any]) -> None:
        """Look at the tensors of a call, each by what is the same of it in other calls."""
        module, args, kwargs = call
        named = [("", at, one) for at, one in enumerate(args)]
        for name, value in kwargs.items():
            named.append((name, 0, value))
        for name, at, value in tuple(named):
            if type(value) is dict:  # of keys that are no texts none is kept
                named += [(f"{name} {key}", at, value[key]) for key in value if type(key) is str]
        readable = [one for one in named if _is_readable(one[-1])]
        for name, at, tensor in readable[:_MOST_TENSORS]:
            self._see_values((type(module).__name__, name, at), tensor)

    def _see(self, mask: Any) -> None:
        if not _is_readable(mask) or mask.ndim != 2:
            return
        if mask.is_floating_point() or mask.numel() > _MOST_VALUES:
            return
        values = _array(mask)
        if values is None:
            return
        used = values.any(axis=0).nonzero()[0]
        if not len(used):
            return
        (sequences, places), longest = mask.shape, int(used[-1] - used[0]) + 1
        self._masks.add(sequences, places, longest)

    def _see_values(self, name: tuple[str, str, int], tensor: Any) -> None:
        for at, places, longest in _places_used(tensor):
            if longest < places:
                self._values -= tensor.numel()
            if not longest:  # a state that begins with zeros
                continue
            given = _Given(*name, tensor.ndim, at)
            if given not in self._tensors and len(self._tensors) >= _MOST_KNOWN:
                return
            known = self._tensors.setdefault(given, _Places())
            known.add(tensor.shape[0], places, longest)


def _is_readable(value: Any) -> bool:
    """Whether it is a plain tensor of the CPU that NumPy can show."""
    import torch

    if type(value) is not torch.Tensor:
        return False
    # While a call is traced even a size is a tensor, and NumPy's look would be warned of.
    if torch._C._get_tracing_state() is not None:
        return False
    if torch._C._functorch.is_functorch_wrapped_tensor(value):  # of `vmap`: it has no memory
        return False
    if not value.is_cpu or value.layout is not torch.strided or value.requires_grad:
        return False
    return not (value.is_conj() or value.is_neg())


def _places_used(tensor: Any) -> Iterator[tuple[int, int, int]]:
    """Dimensions of places: which, how many there are, and how many the longest sequence uses.

    Those of a batch of floats in which the rest is 0, or of indices, in which it is one index.
    """
    ndim = tensor.ndim
    if not 2 <= ndim <= _MOST_DIMENSIONS or tensor.shape[0] < 2:
        return
    is_float = tensor.is_floating_point()
    if not is_float and (ndim != 2 or tensor.is_complex()):
        return
    fewest = _LEAST_SAMPLES if is_float and ndim == 2 else _LEAST_PLACES
    values = _array(tensor)
    if values is None:
        return
    for at in range(1, ndim):
        places = values.shape[at]
        if places < fewest:
            continue
        by_place = np.moveaxis(values, at, 0)
        yield at, places, _used(by_place, 0.0 if is_float else by_place[-1, 0])


def _array(tensor: Any) -> npt.NDArray[Any] | None:
    """A tensor's own memory; None where NumPy has not its type, or it has not all of its memory.

    `Tensor.numpy()` is an operator, which a dispatch mode of the program would see. And a storage
    may have been made smaller than its tensors are, as of parameters that are sharded.
    """
    kind, (_, address) = _KINDS.get(str(tensor.dtype)), place_of(tensor)
    if kind is None or not address or not tensor.numel():
        return None
    shape, strides = tuple(tensor.shape), tuple(tensor.stride())
    width = np.dtype(kind).itemsize
    first = int(tensor.storage_offset()) * width
    extent = 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    if first + extent * width > tensor.untyped_storage().nbytes():
        return None
    held: Any = (ctypes.c_ubyte * (extent * width)).from_address(address + first)
    items = np.frombuffer(held, kind)
    in_bytes = [stride * width for stride in strides]
    return np.lib.stride_tricks.as_strided(items, shape, in_bytes, writeable=False)


def _used(by_place: npt.NDArray[Any], padding: Any) -> int:
    """Places up to the last that has another value than padding; 0 where none has."""
    if (by_place[-1] != padding).any():  # most are full: one place says so
        return len(by_place)
    used = (by_place != padding).reshape(len(by_place), -1).any(axis=1).nonzero()[0]
    return int(used[-1]) + 1 if len(used) else 0
