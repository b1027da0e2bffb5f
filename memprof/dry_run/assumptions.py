"""What the user assumes of values that no kernel computed, where sizes or branches depend on them.

Without an assumption all of them are zeros. An assumption holds for the operators that are called
from Python's side of torch: what autograd's own threads read are zeros all the same. The
operators are torch's own: only the one number that they read from the device is another one.
"""

from __future__ import annotations

import ctypes
import importlib
import math
import struct
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memprof.cpython.import_hook import ImportWatch
from memprof.errors import SettingsError
from memprof.units import format_count

__all__ = ["ASSUMPTIONS", "Assumptions"]

ASSUMPTIONS = "MEMPROF_DRY_RUN_ASSUME"
"""The variable that carries them to the process: ``nonzero=0.5,bool=true``."""
_SHARES = ("nonzero", "unique")
_TRUTH = {"true": 1.0, "1": 1.0, "false": 0.0, "0": 0.0}
_KINDS = "there are nonzero=SHARE, unique=SHARE, item=NUMBER, bool=true"


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What is assumed, by the kind of reading, and how often each was made use of."""

    values: Mapping[str, float]
    used: dict[str, int]

    @staticmethod
    def of(texts: Sequence[str]) -> Assumptions:
        """From ``nonzero=0.5`` and the like, several in a text with commas between them.

        Raises:
            SettingsError: one is not understood.
        """
        values: dict[str, float] = {}
        for text in filter(None, (one.strip() for whole in texts for one in whole.split(","))):
            name, _, value = text.partition("=")
            values[name] = _number(name, value, text)
        return Assumptions(values, {})

    def __str__(self) -> str:
        """As they are given."""
        return ",".join(f"{name}={value:g}" for name, value in self.values.items())

    def __bool__(self) -> bool:
        return bool(self.values)

    def begin(self) -> None:
        """Let them hold once torch is imported."""
        if "torch" in sys.modules:
            self._enter()
        else:
            ImportWatch("torch", self._enter).start()

    def sentences(self) -> Iterator[str]:
        """What was assumed, and how often, in words."""
        for name, value in self.values.items():
            times = self.used.get(name, 0)
            often = "once" if times == 1 else f"{format_count(times)} times"
            yield f"{_meaning(name, value)} was assumed (--assume {name}={value:g}), {often}"

    def _enter(self) -> None:
        """Hold in the main thread until the program ends; a mode sees every operator there."""
        tell = ctypes.CDLL(None).memprof_dry_run_assume
        base: Any = importlib.import_module("torch.utils._python_dispatch").TorchDispatchMode
        numbers, count = self._numbers, self._count

        class Assume(base):  # type: ignore[misc]  # torch is not imported for types here
            def __torch_dispatch__(
                self,
                operator: Any,
                types: object,
                arguments: Sequence[Any] = (),
                keywords: Mapping[str, Any] | None = None,
            ) -> Any:
                kind, values = numbers(operator._schema.name, arguments)
                if not values:
                    return operator(*arguments, **(keywords or {}))
                tell((ctypes.c_uint64 * len(values))(*values), len(values))
                try:
                    return operator(*arguments, **(keywords or {}))
                finally:
                    count(kind, len(values) - tell(None, 0))

        Assume().__enter__()

    def _count(self, kind: str, times: int) -> None:
        self.used[kind] = self.used.get(kind, 0) + times

    def _numbers(self, name: str, arguments: Sequence[Any]) -> tuple[str, list[int]]:
        """The kind of what an operator will read, and the bits of each number it is to get."""
        if name == "aten::_local_scalar_dense":
            (tensor,) = arguments
            kind = "bool" if str(tensor.dtype) == "torch.bool" else "item"
            is_assumed = kind in self.values and tensor.is_cuda
            return kind, [_bits(self.values[kind], tensor.dtype)] if is_assumed else []
        kind, tensors = _FINDS.get(name, ("", _first))
        if kind not in self.values:
            return kind, []
        share = self.values[kind]
        return kind, [round(share * one.numel()) for one in tensors(arguments) if one.is_cuda]


def _bits(number: float, dtype: Any) -> int:
    """A number as an element of a tensor holds it; complex ones have no imaginary part."""
    if not dtype.is_floating_point and not dtype.is_complex:
        return int(number) & 0xFFFFFFFFFFFFFFFF
    code = _CODES.get(str(dtype).removeprefix("torch."), "<f")
    packed = struct.pack(code, number)
    return int.from_bytes(packed[2:] if str(dtype) == "torch.bfloat16" else packed, "little")


_CODES = {"float64": "<d", "complex128": "<d", "float16": "<e", "complex32": "<e"}


def _number(name: str, value: str, text: str) -> float:
    """The number that ``text`` assumes: of a truth 1 or 0.

    Raises:
        SettingsError: there is no such kind, or it has no such value.
    """
    if name not in (*_SHARES, "item", "bool"):
        raise SettingsError(f"--assume {text}: there is no kind {name!r}", _KINDS)
    if name == "bool":
        truth = _TRUTH.get(value.lower())
        if truth is None:
            raise SettingsError(f"--assume {text}: {value!r} is neither true nor false", _KINDS)
        return truth
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise SettingsError(f"--assume {text}: {value!r} is no finite number", _KINDS)
    if name in _SHARES and not 0 <= number <= 1:
        raise SettingsError(f"--assume {text}: a share lies between 0 and 1", _KINDS)
    return number


def _meaning(name: str, value: float) -> str:
    if name in _SHARES:
        which = "unique" if name == "unique" else "not zero"
        return f"that {100 * value:g} % of the elements are {which}"
    value_text = ("true" if value else "false") if name == "bool" else f"{value:g}"
    return f"that {'a condition' if name == 'bool' else 'a number'} on the device is {value_text}"


def _first(arguments: Sequence[Any]) -> list[Any]:
    return [arguments[0]]


def _mask(arguments: Sequence[Any]) -> list[Any]:
    tensor, mask = arguments[:2]
    return [tensor if tensor.numel() > mask.numel() else mask]


def _masks(arguments: Sequence[Any]) -> list[Any]:
    return [one for one in arguments[1] if one is not None and one.element_size() == 1]


_FINDS: Mapping[str, tuple[str, Callable[[Sequence[Any]], list[Any]]]] = {
    "aten::nonzero": ("nonzero", _first),
    "aten::masked_select": ("nonzero", _mask),
    "aten::index": ("nonzero", _masks),
    "aten::index_put_": ("nonzero", _masks),
    "aten::index_put": ("nonzero", _masks),
    "aten::_index_put_impl_": ("nonzero", _masks),
    "aten::_unique2": ("unique", _first),
    "aten::unique_consecutive": ("unique", _first),
}
"""The operators whose sizes depend on values, and the tensors whose elements they count."""
