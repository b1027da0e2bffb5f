"""What large tensors are full of: zeros, few different values, or the same values again."""

from __future__ import annotations

import ctypes
import time
from collections import defaultdict
from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from memprof.records import LargeValues
from memprof.sources.cpu.live_storages import LiveStorages, StorageReference, storage_of
from memprof.sources.operator_schema import schema_name
from memprof.trace import EMPTY, Category

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["LEAST_BYTES", "LargeValuesWatch"]

LEAST_BYTES = 64 << 10
"""Smaller tensors are no reason to change a program, and there are many."""
_LARGE_BYTES = 1 << 20
"""From here on it is looked whether others of the same size have the same values."""
_LEAST_SHARE = 0.05
"""Of the bytes in use, that all tensors of a stack and size have to be worth a look."""
_HIGHER = 1.05
"""A new high is looked at once it is so many times the last one."""
_AS_HIGH, _AGAIN = 0.9, (3, 8, 24)
"""In steps that follow so many others, what had the same values is looked at again when so much of
the high is there: before a model has learned anything, layers that begin with zeros return what
they are given."""
_LATER = 1.25
"""Times as many steps as were over at the last look are over at the next one."""
_MOST_TENSORS = 512
"""Tensors that are known at once, with those that died since the last look, …"""
_MOST_ALIKE, _MOST_READ = 64, 8
"""… those among them that one stack made in one size, and those that more is read of."""
_MOST_ROWS = 4096
"""Stacks and sizes that are noted in a window."""
_SAMPLE = 1024
"""Values that are read of a tensor, spread over all of it, …"""
_RARE, _LARGE_SAMPLE = 0.02, 32 * 1024
"""… more of them where so few are not zero, …"""
_LINES = 48
"""… and lines along each dimension, …"""
_MOST_IN_LINES = 1 << 16
"""… which have so many values in all: a dimension that is longer is not looked along."""
_FEW = 0.6
"""Of the values, that are not zero: with more of them no line is read."""
_LEAST_TO_TELL, _ALIKE, _BYTE = 64, 1 / 3, 255
"""Values that are not zero, so many of which are read, of so few different ones that each is there
several times: a byte can tell them apart."""
_SETTLED = 1.25
"""Times as much that is filled: what each step fills a part of has twice as much of it after twice
the steps."""
_WHILE, _LEAST_MORE, _HARDLY = 0.05, 20, 1.02
"""Of its steps, in which so many more values of the sample come to be not zero, and more than times
as many, if it is filled step by step."""
_FEW_SAME = 1
"""Tensors of the same values: one is by itself."""
_DENSE = 0.8
"""Of the places up to its last value, that a line fills."""
_BEYOND = 1 << 14
"""Places that are read beyond where all lines end: one entry in thousands may go further."""
_FIRST, _REST = slice(64), slice(64, None)
"""Of a sample: most that is not the same differs in its first values already."""
_PRIMES = (2, 3, 5, 7)
"""Factors of how often heads, channels or rows are repeated."""
FREE_S, _SHARE = 0.1, 0.01
"""Seconds of the processor that looks may take in any case, and their share of what the thread
takes beyond that."""
LONGEST_S = 0.02
"""Of one look: what was looked at less often comes first, then what is larger."""
_FROM_FILES = ("aten::from_file",)
"""Operators whose result lies in a file: reading a place of it may read the disk."""

_OWNED = frozenset((Category.PARAMETER, Category.GRADIENT, Category.OPTIMIZER_STATE))

_PATTERNS: dict[int, type[np.unsignedinteger[Any]]] = {
    1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64
}  # fmt: skip
_Values: TypeAlias = "npt.NDArray[np.unsignedinteger[Any]]"
"""Bit patterns: only whether they are zero, and whether two are the same, is asked."""


class _Look(NamedTuple):
    """What the values of a tensor were, as far as they were read."""

    filled: float
    """Share of the values that are not zero."""
    read: int
    """How many of the sample that are."""
    distinct: int = 0
    """Different values among those of the sample that are not zero; 0: there are too few to tell,
    or as many as there are values."""
    ones: bool = False
    """Those that are not zero are the same one."""
    dim: int = -1
    """The dimension along which values come first and zeros after them; -1 where none is."""
    extent: int = 0
    """Its length."""
    used: int = 0
    """Places along it that the longest line fills."""
    mean_used: float = 0.0
    """And a line on average."""
    repeats: int = 1
    """How often the same values are there, along one or more dimensions; 0: all are one value."""


class _Places:
    """Places that are spread as if by chance, and are the same in every look.

    By splitmix64 (Steele et al. 2014): NumPy's own generators take milliseconds to be imported.
    """

    def __init__(self) -> None:
        self._drawn = 0

    def draw(self, number: int, below: int) -> npt.NDArray[np.int64]:
        """So many more of them, each from 0 to less than ``below``."""
        at = np.arange(self._drawn + 1, self._drawn + number + 1, dtype=np.uint64)
        self._drawn += number
        at *= np.uint64(0x9E3779B97F4A7C15)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            at = (at ^ (at >> np.uint64(shift))) * np.uint64(factor)
        at ^= at >> np.uint64(31)
        places: npt.NDArray[np.int64] = (at % np.uint64(below)).astype(np.int64)
        return places


class _Filled(NamedTuple):
    """How much of a tensor was not zero at a look."""

    share: float
    read: int
    """Values of the sample."""


class _Tensor:
    """A large tensor that is known, and what was read of it last."""

    __slots__ = (
        "filled_by_age", "is_graphless", "item_bytes", "look", "looks", "reference", "same",
        "shape", "since",
    )  # fmt: skip

    def __init__(
        self,
        reference: StorageReference,
        shape: tuple[int, ...],
        item_bytes: int,
        since: int,
        *,
        is_graphless: bool,
    ) -> None:
        self.reference, self.shape, self.item_bytes = reference, shape, item_bytes
        self.is_graphless = is_graphless
        """Its operator was given nothing that needs a gradient."""
        self.look: _Look | None = None
        self.looks = 0
        self.same = 1
        """Tensors of its size that had the same values at the last look, itself among them."""
        self.since = since
        self.filled_by_age: dict[int, _Filled] = {}
        """By the steps since it was made, at each look, what was filled then."""

    def note(self, look: _Look, steps: int) -> None:
        """What is there now, when so many steps of the window are over."""
        self.looks += 1
        before = self.look
        if before is not None and before.dim == look.dim:
            look = look._replace(used=max(before.used, look.used))
        self.look = look
        self.filled_by_age[steps - self.since] = _Filled(look.filled, look.read)

    @property
    def is_settled(self) -> bool:
        """Whether it was as full when half the steps since it was made were over.

        Or just as full a while ago, where so many values were read that any more would show.
        """
        if not self.filled_by_age:
            return False
        age, now = max(self.filled_by_age.items())
        for at, before in self.filled_by_age.items():
            if 0 < 2 * at <= age and now.share <= _SETTLED * before.share:
                return True
            more = min(before.read, now.read) * (age - at)
            is_while = 0 < at <= (1 - _WHILE) * age and more >= _LEAST_MORE * age
            if is_while and now.share <= _HARDLY * before.share:
                return True
        return False


class _Group:
    """Tensors of one stack and size."""

    __slots__ = ("made", "since", "tensors")

    def __init__(self, since: int) -> None:
        self.since = since
        """Steps of the window that were over."""
        self.tensors: list[_Tensor] = []
        self.made = 0
        """How many there were, those that have died as well."""


class LargeValuesWatch:
    """Looks at samples of large tensors at new highs, and ever more rarely while they stay.

    A look reads a thousand values of a tensor, and some lines along its dimensions. Only tensors
    that an operator of the window's own thread returned are known, and only those whose values lie
    one behind the other.
    """

    def __init__(self, live: LiveStorages) -> None:
        """``live`` has what lives; the bytes in use are asked of it."""
        self._live = live
        self._groups: dict[tuple[int, int], _Group] = {}
        self._rows: dict[tuple[int, int], _Row] = {}
        self._same: dict[tuple[int, int], dict[int, int]] = defaultdict(dict)
        """Of each stack and size, by how many steps were over when they were made, the most tensors
        of the same values."""
        self._due: dict[int, list[tuple[int, int]]] = defaultdict(list)
        """By how many steps are over, what is to be looked at then."""
        self._began_s = self._spent_s = 0.0
        self._tensors = self._high = self._steps = 0
        self._step = -1
        """The number that the program's step has; -1 before the first."""
        self._made_high: tuple[int, int] | None = None
        """What the last high came with: it is looked at when the next tensor comes, as some are
        filled only then."""
        self._again: list[tuple[int, int]] = []
        """What had the same values in an earlier step, and is to be looked at again in this one."""

    def add(self, reference: StorageReference, tensor: Any, func: Any, args: Any) -> None:
        """A result of `LEAST_BYTES` or more is new; what is there besides may be a new high.

        Not what an operator was given, or took from a file: nobody knows where that lies.
        """
        made_high, self._made_high = self._made_high, None
        if self._live.bytes > _HIGHER * self._high and self._may_look():
            self._high = self._live.bytes
            self.look()
            self._made_high = reference.stack, reference.size
        elif made_high is not None and self._may_look():
            self._look([made_high])
        elif self._again and self._live.bytes >= _AS_HIGH * self._high and self._may_look():
            again, self._again = self._again, []
            self._look(again)
        if schema_name(func) in _FROM_FILES or _is_given(reference.key, args):
            return
        if self._tensors >= _MOST_TENSORS:
            self._sweep()
        key = reference.stack, reference.size
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group(self._steps)
            self._due[self._steps + 1].append(key)
        group.made += 1
        most = _MOST_ALIKE if reference.size >= _LARGE_BYTES else _MOST_READ
        if len(group.tensors) >= most or self._tensors >= _MOST_TENSORS:
            return
        item_bytes = tensor.element_size()
        if (
            item_bytes in _PATTERNS
            and tensor.is_contiguous()
            and tensor.numel() * item_bytes == reference.size
        ):
            shape = tuple(map(int, tensor.shape))
            is_graphless = not _needs_gradient(args)
            group.tensors.append(
                _Tensor(reference, shape, item_bytes, self._steps, is_graphless=is_graphless)
            )
            self._tensors += 1

    def reach(self, step: int) -> None:
        """The program is in this step now; safe to call often."""
        if step == self._step:
            return
        self._steps += max(1, step - self._step) if self._step >= 0 else 1
        self._step = step
        if self._steps in _AGAIN:
            self._again = [key for key, same in self._same.items() if max(same.values()) > 1]
            if self._again:
                self._sweep()
        if not self._may_look():
            return
        due = [key for at in list(self._due) if at <= self._steps for key in self._due.pop(at)]
        if due:
            self._look(due)
            for key in due:
                group = self._groups.get(key)
                if group is not None:
                    age = self._steps - group.since
                    self._due[group.since + max(age + 1, int(_LATER * age))].append(key)

    def _may_look(self) -> bool:
        """Whether looks have not taken more than their share of the time."""
        now_s = time.thread_time()
        self._began_s = self._began_s or now_s
        return self._spent_s <= FREE_S + _SHARE * (now_s - self._began_s)

    def begin(self) -> None:
        """A window begins; what is known from an earlier one and lives is looked at again."""
        self._rows.clear()
        self._same.clear()
        self._high = 0

    def clear(self) -> None:
        """Forget all."""
        self._groups.clear()
        self._rows.clear()
        self._same.clear()
        self._due.clear()
        self._tensors = self._high = 0

    def look(self) -> None:
        """Read samples of all that is large and there."""
        self._look(list(self._groups))

    def _look(self, keys: list[tuple[int, int]]) -> None:
        """The same of what some stacks made in some sizes, and of all that is as large."""
        began_s = time.thread_time()
        self._sweep()
        least, sizes = _LEAST_SHARE * self._live.bytes, {size for _, size in keys}
        alike: dict[tuple[int, bytes], list[_Tensor]] = defaultdict(list)
        due = [
            (tensor.looks, -size, number < _MOST_READ, tensor)
            for (_, size), group in self._groups.items()
            if size in sizes and size * group.made >= least
            for number, tensor in enumerate(group.tensors)
        ]
        for _, size, is_whole, tensor in sorted(due, key=lambda one: one[:2]):
            if time.thread_time() - began_s > LONGEST_S:
                break
            sample = _read(tensor, self._steps if is_whole else -1)
            if sample:
                alike[size, sample].append(tensor)
        for tensors in alike.values():
            for tensor in tensors:
                tensor.same = len(tensors)
                by_step = self._same[tensor.reference.stack, tensor.reference.size]
                by_step[tensor.since] = max(tensor.same, by_step.get(tensor.since, 0))
        self._spent_s += time.thread_time() - began_s

    def take(self, device: str) -> list[LargeValues]:
        """What was read since the last call."""
        self._sweep()
        for group in self._groups.values():
            for tensor in group.tensors:
                self._note(tensor)
        rows = {key: row for key, row in self._rows.items() if row.says_something}
        self._rows = {}
        if not rows:
            return []
        values = rows.values()
        same = [self._same.get(key, {}) for key in rows]
        self._same = defaultdict(dict)
        return [
            LargeValues(
                device,
                stack=[stack for stack, _ in rows],
                size=[size for _, size in rows],
                count=[row.count for row in values],
                looks=[row.looks for row in values],
                filled=[round(row.filled, 4) for row in values],
                settled=[row.settled for row in values],
                graphless=[row.graphless for row in values],
                distinct=[row.distinct for row in values],
                ones=[row.ones for row in values],
                repeats=[row.repeats or 1 for row in values],
                same=[row.same for row in values],
                same_in_steps=[
                    min(by_step.values()) if len(by_step) > 1 else 1 for by_step in same
                ],
                shape=[list(row.shape) for row in values],
                dim=[row.dim for row in values],
                used=[row.used for row in values],
                mean_used=[round(row.mean_used, 2) for row in values],
            )
        ]

    def _sweep(self) -> None:
        """Note what has died, and forget it."""
        self._tensors = 0
        for key, group in list(self._groups.items()):
            for tensor in group.tensors:
                if tensor.reference() is None:
                    self._note(tensor)
            group.tensors = [one for one in group.tensors if one.reference() is not None]
            self._tensors += len(group.tensors)
            if not group.tensors:
                del self._groups[key]

    def _note(self, tensor: _Tensor) -> None:
        reference = tensor.reference
        if tensor.look is None or reference.stack == EMPTY:
            return
        key = reference.stack, reference.size
        row = self._rows.get(key)
        if row is None and len(self._rows) >= _MOST_ROWS:
            return
        # A line makes others on the way, too, which are gone before a second look.
        if row is None or (row.looks == 1 < tensor.looks):
            row = self._rows[key] = _Row(tensor)
        elif tensor.looks == 1 < row.looks:
            return
        row.add(tensor, tensor.look)


class _Row:
    """Tensors of one stack and size; of each figure the one that says least of a waste."""

    def __init__(self, first: _Tensor) -> None:
        self.shape = first.shape
        self.count = 0
        self.looks = first.looks
        self.filled = 0.0
        self.settled = 0
        self.graphless = 0
        self.ones = 0
        self.distinct = first.look.distinct if first.look is not None else 0
        self.repeats = first.look.repeats if first.look is not None else 1
        self.same = 1
        self.dim = first.look.dim if first.look is not None else -1
        self.used = 0
        self.mean_used = 0.0

    def add(self, tensor: _Tensor, look: _Look) -> None:
        """One more."""
        self.looks = min(self.looks, tensor.looks)
        self.filled = max(self.filled, look.filled)
        self.settled += tensor.is_settled
        self.graphless += tensor.is_graphless
        self.ones += look.ones
        self.distinct = max(self.distinct, look.distinct) if self.distinct * look.distinct else 0
        # What is of one value so far says nothing of what its line fills it with, or makes of it.
        self.repeats = min((one for one in (self.repeats, look.repeats) if one), default=0)
        self.same = max(self.same, tensor.same)
        if tensor.shape != self.shape or look.dim != self.dim:
            self.dim = -1
        self.used = max(self.used, look.used)
        self.mean_used = (self.mean_used * self.count + look.mean_used) / (self.count + 1)
        self.count += 1

    @property
    def says_something(self) -> bool:
        """Whether they are full of zeros, or of the same values again."""
        is_repeated = self.repeats > 1 or self.same > _FEW_SAME
        return self.filled <= _FEW or is_repeated or self.distinct > 0


def _is_given(key: int, args: Any) -> bool:
    """Whether a storage is that of a tensor that an operator was given: it is its view, say."""
    given = (storage_of(one) for one in args if hasattr(one, "untyped_storage"))
    return any(storage is not None and storage._cdata == key for storage in given)


def _needs_gradient(args: Any) -> bool:
    """Whether one of the tensors that an operator was given, or of a list of them, needs one."""
    for one in args:
        if isinstance(one, (list, tuple)):
            if _needs_gradient(one):
                return True
        elif getattr(one, "requires_grad", False):
            return True
    return False


def _read(tensor: _Tensor, steps: int) -> bytes:
    """Look at a tensor: a sample, and along its dimensions where ``steps`` are given.

    Returns the sample of a large one whose values are not all the same, else nothing.
    """
    reference = tensor.reference
    storage = reference()
    if storage is None or storage.nbytes() != reference.size or reference.category in _OWNED:
        return b""
    address = storage.data_ptr()
    if address != reference.address:
        return b""
    held: Any = (ctypes.c_ubyte * reference.size).from_address(address)
    values: _Values = np.frombuffer(held, _PATTERNS[tensor.item_bytes])
    places_of = _Places()
    places = places_of.draw(_SAMPLE, len(values))
    sample = values[places]
    if steps >= 0:
        tensor.note(_look(values, tensor.shape, places, sample, places_of), steps)
    is_large = reference.size >= _LARGE_BYTES
    return sample.tobytes() if is_large and bool((sample != sample[0]).any()) else b""


def _look(
    values: _Values,
    shape: tuple[int, ...],
    places: npt.NDArray[np.int64],
    sample: _Values,
    places_of: _Places,
) -> _Look:
    """What values are there, which lie one behind the other."""
    repeats = _repeats(values, shape, places, sample)
    if np.count_nonzero(sample) < _RARE * _SAMPLE:
        sample = values[places_of.draw(_LARGE_SAMPLE, len(values))]
    filled = int(np.count_nonzero(sample)) / len(sample)
    others = sample[sample != 0]
    ordered = np.sort(others)  # `np.unique` imports all of `numpy.ma`
    distinct = int(np.count_nonzero(ordered[1:] != ordered[:-1])) + bool(len(ordered))
    if len(others) < _LEAST_TO_TELL or distinct > min(_BYTE, _ALIKE * len(others)):
        distinct = 0
    look = _Look(filled, len(others), distinct, repeats=repeats)
    if filled > _FEW:
        return look
    look = look._replace(ones=len(others) > 1 and bool((others == others[0]).all()))
    for dim, extent, used, mean_used in _prefixes(values, shape, places_of):
        return look._replace(dim=dim, extent=extent, used=used, mean_used=mean_used)
    return look


def _repeats(
    values: _Values, shape: tuple[int, ...], places: npt.NDArray[np.int64], sample: _Values
) -> int:
    """How often all values are there: what is the same at another place of a dimension as here.

    At its first place, or as `_in_parts` says; 0 where all values are the same one.
    """
    if bool((sample == sample[0]).all()):
        return 0
    repeats = 1
    for dim, extent in enumerate(shape):
        if extent < 2:
            continue
        stride = prod(shape[dim + 1 :])
        at = places // stride % extent
        is_same = _Sames(values, places, stride, sample)
        repeats *= extent if is_same.back_by(at) else _in_parts(is_same, at, extent)
    return repeats


class _Sames(NamedTuple):
    """Compares a sample with what is elsewhere along a dimension."""

    values: _Values
    places: npt.NDArray[np.int64]
    stride: int
    sample: _Values

    def back_by(self, steps: npt.NDArray[np.int64]) -> bool:
        """Whether all values are the same so many places before."""
        return all(
            bool(
                (self.values[(self.places - steps * self.stride)[part]] == self.sample[part]).all()
            )
            for part in (_FIRST, _REST)
        )


def _in_parts(is_same: _Sames, at: npt.NDArray[np.int64], extent: int) -> int:
    """How often values are there that lie at places ``at`` of a dimension; 1 where once.

    One after the other, as of heads that share what they read; or laid out again behind all of
    them. What is there four times is there twice: so it is tried by prime factors.
    """
    behind = next_to = 1
    for prime in _PRIMES:
        while extent % (next_to * prime) == 0 and is_same.back_by(at % (next_to * prime)):
            next_to *= prime
        while extent % (behind * prime) == 0:
            period = extent // (behind * prime)
            if not is_same.back_by(at // period * period):
                break
            behind *= prime
    return max(next_to, behind)


def _last_used(values: _Values, stride: int, extent: int, used: int, places_of: _Places) -> int:
    """Places along a dimension that are filled, where some lines are filled up to ``used``."""
    if used >= extent:
        return used
    lines = places_of.draw(_BEYOND, len(values) // extent)
    at = used + places_of.draw(_BEYOND, extent - used)
    places = lines // stride * (stride * extent) + lines % stride + at * stride
    filled = at[values[places] != 0]
    return int(filled.max()) + 1 if len(filled) else used


def _prefixes(
    values: _Values, shape: tuple[int, ...], places_of: _Places
) -> Iterator[tuple[int, int, int, float]]:
    """Dimensions along which values come first, and zeros after them: up to where they do.

    Of each the length, the places that the longest of some lines fills, and a line on average. The
    one that is least used comes first. A few zeros may be among the values.
    """
    prefixes = []
    for dim, extent in enumerate(shape):
        lines = min(_LINES, _MOST_IN_LINES // extent)
        if extent < 8 or lines < 4:
            continue
        stride = prod(shape[dim + 1 :])
        starts = places_of.draw(lines, len(values))
        starts -= (starts // stride % extent) * stride
        read = values[starts[:, None] + np.arange(extent)[None, :] * stride] != 0
        ends = np.where(read.any(axis=1), extent - read[:, ::-1].argmax(axis=1), 0)
        used, total = int(ends.max()), int(ends.sum())
        filled = np.count_nonzero(ends)
        # Lines that are filled whole or not at all run across those that end somewhere.
        end_within = 2 * np.count_nonzero((ends > 0) & (ends < extent)) >= filled
        if filled and end_within and int(read.sum()) >= _DENSE * total:
            used = _last_used(values, stride, extent, used, places_of)
            prefixes.append((used / extent, total, (dim, extent, used, total / lines)))
    return iter(one for *_, one in sorted(prefixes))
