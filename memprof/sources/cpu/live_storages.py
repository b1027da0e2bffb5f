"""The CPU storages that are alive: one weak reference each, and an event when one comes or goes."""

from __future__ import annotations

import itertools
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from memprof.cpython.signal_errors import (
    covers_entry,
    guarded_errors,
    is_of_signal,
    raised_at_death,
)
from memprof.sources.loop.thread_state import ThreadPosition
from memprof.trace import EMPTY, NOT_RECORDED, Blocks, BlockState, Column, Columns, State, column

__all__ = ["ROW", "LiveStorages", "LivingStorages", "StorageReference", "storage_of"]

_MOST_RESIZED = 10_000
"""Storages that gave their memory up, and whose stacks are kept in mind for when they get other."""

ROW = 8
"""Numbers in a row of the recording: kind, address, bytes, time (ns), stack, label, serial, owner.

Kind 1 is an allocation, whose "owner" is its origin (`Events.origin`). Kind 0 is the end of a
storage: its "stack" is the label that its allocation should have; its "owner" packs the index of
its allocation if that was handed out before (else 0), its category and the category handed out for
it.
"""


def storage_of(tensor: Any) -> Any:
    """The storage of a tensor; None of one that has none, as a sparse one."""
    try:
        return tensor.untyped_storage()
    except guarded_errors(NotImplementedError):
        return None


class StorageReference(weakref.ref):  # type: ignore[type-arg]
    """A storage that is alive, and what is known of its bytes."""

    __slots__ = (
        "address",
        "category",
        "event",
        "handed",
        "handed_label",
        "key",
        "label",
        "node",
        "part",
        "read",
        "recomputed",
        "serial",
        "size",
        "stack",
        "width",
    )

    key: int
    """``UntypedStorage._cdata``."""
    address: int
    size: int
    serial: int
    """In the order in which storages became known."""
    node: tuple[int, str] | None
    """The stack and operator that made it, see `OperatorGraphWatch`; None where nobody asks."""
    part: float
    """Of its bytes, that operators have read, see `LastReadsWatch`; 1 where nobody counts."""
    read: int
    """The serial of the newest storage as an operator read it last, see `LastReadsWatch`."""
    stack: int
    label: int
    category: int
    """`Category` as it is known now."""
    handed: int
    """`Category` as it was last told."""
    handed_label: int
    """``label`` as it was last told."""
    event: int
    """Index of the allocation in this window, once told; -1 for what was there before."""
    width: int
    """Why it is in double precision, see `DoublePrecisionWatch`; -1 where it is not or unknown."""


@dataclass(frozen=True, slots=True, eq=False)
class LivingStorages(Columns):
    """Storages that are alive, as columns."""

    cdata: Column = column("i8")
    """``UntypedStorage._cdata``."""
    size: Column = column("i8")
    stack: Column = column("i4")
    label: Column = column("i4")
    category: Column = column("u1")
    """`Category` as it is known now."""

    @staticmethod
    def of(references: Iterable[StorageReference]) -> LivingStorages:
        """The columns of some storages, which are not held by them."""
        rows = [(h.key, h.size, h.stack, h.label, h.category) for h in references]
        columns = zip(*rows, strict=True) if rows else [()] * 5
        living: LivingStorages = LivingStorages.build(
            len(rows), **dict(zip(LivingStorages.names(), columns, strict=True))
        )
        return living

    def key(self, row: int) -> int:
        """The ``_cdata`` by which holders are searched for."""
        return int(self.cdata[row])


class LiveStorages:
    """What lives, by storage; the sum of its bytes; and, while recording, rows of events."""

    def __init__(self, place: Callable[[], ThreadPosition]) -> None:
        """``place`` tells where the calling thread is, with the row of the moment's label."""
        self.references: dict[int, StorageReference] = {}
        self.bytes = 0
        self.peak = 0
        self.rows: list[int] = []
        self.serials = itertools.count()
        self.newest = -1
        """The serial of the storage that became known last."""
        self._peak_before, self._peak_serial = 0, -1
        """The peak before the last storage that raised it, and that storage's serial."""
        self.failure = ""
        self._place = place
        self._recording = False
        self._owner_of: dict[int, int] = {}
        self._shared: dict[int, list[StorageReference]] = {}
        self._resized: dict[int, StorageReference] = {}
        self._on_death = self.forget

    def record(self, on: bool) -> None:
        """Begin or end to keep rows."""
        self._recording = on

    def take_rows(self) -> list[int]:
        """The rows since the last call, flat."""
        rows, self.rows = self.rows, []
        return rows

    def refresh(self, reference: StorageReference, storage: Any) -> bool:
        """Whether a known storage lost its memory or got other; the old is noted as freed."""
        if abs(reference.size) == storage.nbytes() and reference.address == storage.data_ptr():
            return False
        if len(self._resized) >= _MOST_RESIZED:
            self._resized.clear()
        if reference.stack != EMPTY:
            self._resized[reference.key] = reference
        self.forget(reference)
        return True

    def add(
        self, storage: Any, stack: int = EMPTY, label: int = EMPTY, origin: int = EMPTY
    ) -> StorageReference | None:
        """Note a storage that is not known; None where it has no bytes of its own.

        Of one that got other memory unseen the stack is the one that made the storage.
        """
        size = storage.nbytes()
        if not size:
            return None
        address = storage.data_ptr()
        if not address:
            return None
        key = storage._cdata
        owner = self._owner_of.get(address)
        if owner is not None and owner != key:
            self._verify(owner)
        if stack == EMPTY and self._resized:
            stack = self._stack_of_resized(key, storage)
        reference = StorageReference(storage, self._on_death)
        reference.key = key
        reference.address = address
        reference.size = size
        reference.serial = reference.read = self.newest = serial = next(self.serials)
        reference.stack = stack
        reference.label = reference.handed_label = label
        reference.category = reference.handed = 0
        reference.event = reference.width = -1
        reference.part = 1.0
        reference.node = None
        row = (
            (1, address, size, time.time_ns(), stack, label, serial, origin)
            if self._recording
            else ()
        )
        owner_of = self._owner_of
        if address in owner_of and owner_of[address] != key:
            sharers = self._shared.setdefault(address, [])
            reference.size = -size  # its bytes are counted already
            self.references[key] = reference
            sharers.append(reference)
            return reference
        # No branch and no call but the last: a handler of a signal, or another thread, runs before
        # or after all of it.
        owner_of[address] = key
        self.references[key] = reference
        self.bytes = total = self.bytes + size
        self.rows.extend(row)
        if total > self.peak:
            self._peak_before, self._peak_serial = self.peak, serial
            self.peak = total
        return reference

    def lower_peak(self, serial: int, freed: int) -> None:
        """Say that ``freed`` bytes had ended before the storage with that serial was made."""
        if self._peak_serial == serial:
            self.peak = max(self._peak_before, self.peak - freed)

    def _stack_of_resized(self, key: int, storage: Any) -> int:
        """The stack that made a storage which gave its memory up; `EMPTY` where it did not."""
        reference = self._resized.get(key)
        if reference is None:
            return EMPTY
        if reference() is storage:
            return reference.stack
        del self._resized[key]  # it died: another has its place
        return EMPTY

    def _verify(self, key: int) -> None:
        """Note the end of a storage that gave its memory up while it lives on.

        No operator shows ``resize_(0)`` of a storage, by which FSDP frees a gathered parameter.
        """
        reference = self.references.get(key)
        if reference is None:
            return
        storage = reference()
        if storage is None:  # it died in another thread, which has yet to say so
            self.forget(reference)
        else:
            self.refresh(reference, storage)

    def counted_references(self) -> Iterator[StorageReference]:
        """The storages whose bytes count; of several on the same memory only the first."""
        return (reference for reference in list(self.references.values()) if reference.size > 0)

    def state(self) -> State:
        """What lives as blocks, in the order of their addresses."""
        references = sorted(self.counted_references(), key=lambda h: h.address)
        size = [h.size for h in references]
        blocks = Blocks.build(
            address=[h.address for h in references],
            size=size,
            requested=size,
            state=[BlockState.ACTIVE_ALLOCATED] * len(references),
            segment=[NOT_RECORDED] * len(references),
            stack=[h.stack for h in references],
            label=[h.label for h in references],
            category=[h.category for h in references],
        )
        return State(blocks=blocks)

    def latest(self, serial: int) -> Iterator[StorageReference]:
        """The living storages that became known at or after ``serial``, the latest first."""
        for reference in reversed(list(self.references.values())):
            if reference.serial < serial:
                return
            yield reference

    def clear(self) -> None:
        """Forget everything."""
        self.references.clear()
        self._owner_of.clear()
        self._shared.clear()
        self._resized.clear()
        self.rows.clear()
        self.bytes = self.peak = 0

    @covers_entry
    def forget(self, reference: StorageReference) -> object:
        """Note the end of a storage, once; called as it dies, where Python ignores errors.

        What it needs it asks for first. Then comes neither branch nor call but the last, as in
        `add`: so it can be begun anew after an error. What it returns is to be dropped, see
        `raised_at_death`.
        """
        try:
            key, address, size = reference.key, reference.address, reference.size
            row: tuple[int, ...] = ()
            if self._recording and size > 0:
                label, now_ns = self._place().row, time.time_ns()
                owner = (reference.event + 1) << 8 | reference.category << 4 | reference.handed
                row = (0, address, size, now_ns, reference.label, label, reference.serial, owner)
            sharers = self._shared.get(address) if self._shared else None
            references, owner_of = self.references, self._owner_of
            try:
                if references[key] is not reference:
                    return None
            except KeyError:
                return None  # it was noted
            if size < 0 and sharers is not None:
                del references[key]
                sharers.remove(reference)
                return None
            if sharers:  # the memory lives on under another storage
                heir = sharers[0]
                del references[key], sharers[0]
                heir.size, heir.serial, heir.event = size, reference.serial, reference.event
                heir.category, heir.handed = reference.category, reference.handed
                heir.label, heir.handed_label = reference.label, reference.handed_label
                owner_of[address] = heir.key
                return None
            if address in owner_of:
                del owner_of[address]
            del references[key]
            self.bytes -= size
            self.rows.extend(row)
        except BaseException as error:  # noqa: BLE001  this runs wherever the job drops a tensor
            if is_of_signal(error):
                return self.forget(reference), raised_at_death(error)
            self.failure = f"a tensor's end was missed: {type(error).__name__}: {error}"
        return None
