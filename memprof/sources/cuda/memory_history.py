"""torch's recorder of memory history: ours while nobody else uses it, else shared and left alone.

Who has it, what is new in it and how long a look may take is decided here; what its entries mean is
`memprof.snapshot`'s matter, and devices are `snapshot_source`'s.
"""

from __future__ import annotations

import enum
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from memprof.sources.cuda.avoid_compiler_import import compiler_left_out
from memprof.sources.cuda.history_calls import HistoryCalls, recording_options
from memprof.sources.cuda.read_budget import BLOCK_ROWS, LONGEST_US, Backoff, ReadCost
from memprof.sources.cuda.ring_buffer import Entry, RingPosition, new_entries, operations_in
from memprof.sources.cuda.segments import leaves_out_traces, records_pinned
from memprof.units import format_duration

__all__ = ["SHARED", "HistoryOwner", "MemoryHistory", "operations_of"]

ROW_US = 4.0
"""Until one was measured: torch takes 0.6 to 1.2 µs an entry, what is done with it 1 to 3."""
THEIR_ROW_US = 30.0
"""The program may have asked for C++ frames, whose names take long to find."""
LEAST_ENTRIES = 1000
"""A window of fewer would hold less than a step of most programs."""
SHARED = "the program records memory history itself: it goes on undisturbed, and is shared"
_HOST = (
    "the program records its pinned host memory, and torch has one switch for that and for CUDA's "
    "memory: counters only"
)
_MOST_OVERFLOWS = 3
"""Windows in a row; after them another is tried ever more rarely."""


class HistoryOwner(enum.Enum):
    """Whose recording runs."""

    NOBODY = enum.auto()
    MEMPROF = enum.auto()
    PROGRAM = enum.auto()


class MemoryHistory:
    """Entries of torch's recorder since the last look, in windows.

    Ours is bounded so that a look never takes long, and cleared after one. The program's own is
    only ever read; which of its entries are new `ring_buffer` tells. When the program starts or
    stops its own in a window, what is there is taken first.
    """

    def __init__(
        self,
        torch: Any,
        ordinals: Callable[[], Sequence[int]],
        take: Callable[[], None],
        say: Callable[[str], None],
        clock_us: Callable[[], float],
    ) -> None:
        """``take`` is called when entries must be read before they are gone; ``say`` notes."""
        self.owner = HistoryOwner.NOBODY
        self.is_over = False
        """Whether the window cannot go on: it has a gap, or looks proved to take too long."""
        self.gathers = False
        """Whether torch's recorder is on for the native part, which needs its stacks alone."""
        self.incomplete_devices: set[int] = set()
        """Devices of which entries of this window are missing."""
        self.lock = threading.RLock()
        """Held while entries are read and turned into events, by any thread of the job."""
        self._torch, self._ordinals, self._take, self._say = torch, ordinals, take, say
        self._clock_us = clock_us
        self._too_dear = Backoff(clock_us)
        self._too_fast = {owner: Backoff(clock_us) for owner in HistoryOwner}
        self._blocks_too_dear = Backoff(clock_us)
        self._calls = HistoryCalls(torch, self._program_calls, self._program_called)
        self._paces = {
            HistoryOwner.MEMPROF: ReadCost(ROW_US, 1),
            HistoryOwner.PROGRAM: ReadCost(THEIR_ROW_US, 1),
        }
        self._overflows: Counter[HistoryOwner] = Counter()
        self._positions: dict[int, RingPosition] = {}
        self._operations_read: dict[int, int] = {}
        self._counted_before: dict[int, int] = {}
        """As the counters stood before and after the last look, or when counting began."""
        self._counters: dict[int, int] = {}
        self._before_reset: dict[int, int] = {}
        self._was_reset = False
        """Whether the program reset torch's counters since the last look: they count too little."""
        self._since_us = 0
        self._before_program = 0
        self._most: dict[int, int] = {}
        self._max_entries = 0
        """Entries that our ring holds."""
        self._room = 0
        """Entries that a look may find; less than it holds once looks proved to be slow."""
        self._rows = 0.0

    # -- windows -------------------------------------------------------------------------------

    def forget_losses(self) -> None:
        """Another window begins."""
        self.is_over, self.incomplete_devices = False, set()

    def begin(self) -> bool:
        """Record from now on, or share what the program records; whether that is possible."""
        with self.lock:
            if self.owner is HistoryOwner.NOBODY:
                self._start()
            if self.owner is not HistoryOwner.NOBODY:
                self._calls.open()
            return self.owner is not HistoryOwner.NOBODY

    def end(self) -> None:
        """Stop recording, unless the recording is the program's; safe to call twice."""
        with self.lock:
            self._calls.close()
            if self.owner is not HistoryOwner.NOBODY and self.incomplete_devices:
                self._overflows[self.owner] += 1
            elif self.owner is not HistoryOwner.NOBODY:
                self._overflows[self.owner] = 0
                self._too_fast[self.owner].succeeded()
            if self.owner is HistoryOwner.MEMPROF:
                self._record(None)
            self.owner = HistoryOwner.NOBODY

    def forget(self) -> None:
        """In a forked child: the recording is the parent's."""
        self._calls.close()
        self.owner = HistoryOwner.NOBODY

    def noticed(self, operations: Mapping[int, int]) -> None:
        """Between windows: remember when the program was last seen not to record.

        ``operations`` are those of each device, as `operations_of` has them.
        """
        total = sum(self._growth(i, count) for i, count in operations.items())
        if not self._is_on():
            self._before_program = total
            self._most.clear()

    def may_try_again(self) -> bool:
        """Whether it could not be recorded, and long enough ago for another try."""
        refusals = (self._too_dear, *self._too_fast.values())
        return self.owner is HistoryOwner.NOBODY and any(refusal.is_due for refusal in refusals)

    @property
    def is_shared(self) -> bool:
        """Whether the recording is the program's."""
        return self.owner is HistoryOwner.PROGRAM

    def pending(self) -> int:
        """About how many entries the next look would find, by the counters of the allocator."""
        return max(0, self.operations() - sum(self._operations_read.values()))

    def is_filling(self) -> bool:
        """Whether it is time to look, before the ring is full; of the program's, once it was."""
        room = (
            self._room
            if self.owner is HistoryOwner.MEMPROF
            else min(self._most.values(), default=0)
        )
        return self.owner is not HistoryOwner.NOBODY and 0 < room // 2 < self.pending()

    def operations(self) -> int:
        """Entries that torch's counters account for: one an allocation, two a free."""
        return sum(self._count().values())

    # -- looking -------------------------------------------------------------------------------

    def look(self) -> Any:
        """A snapshot whose traces have only what is new; None where there is none to be had."""
        if self.owner is HistoryOwner.NOBODY or self.is_over:
            return None
        if not self._is_on():  # by a way that nobody is told of
            self._gap("torch's recorder was stopped in the middle of a window")
            return None
        if self.is_shared and not self._is_affordable():
            self.is_over = True
            return None
        before = self._count()
        with compiler_left_out(self._torch):
            snapshot = self._torch.cuda.memory._snapshot()
        rings = list(enumerate(snapshot["device_traces"]))
        blocks = sum(len(segment["blocks"]) for segment in snapshot["segments"])
        ranges = len(snapshot.get("external_annotations") or ())
        self._rows = sum(len(ring) for _, ring in rings) + BLOCK_ROWS * (blocks + ranges)
        after = self._count()
        traces = [self._new(i, ring, before.get(i, 0), after.get(i, 0)) for i, ring in rings]
        self._counted_before, self._operations_read = before, after
        self._was_reset = False
        if (
            self.owner is HistoryOwner.MEMPROF
            and self._is_long()
            and self._operations_read == before
        ):
            self._afresh()
        return {**snapshot, "device_traces": traces}

    def can_see_blocks(self) -> bool:
        """Whether a look at the blocks alone holds the job up for no longer than allowed.

        Why not is said. It is the program's own history that some versions bring along.
        """
        if self._sees_their_history():
            return self._is_affordable()
        pace, blocks = self._paces[HistoryOwner.MEMPROF], self._blocks()
        duration_us = pace.duration_us(BLOCK_ROWS * blocks)
        if duration_us <= LONGEST_US:
            return True
        self._say(
            f"{blocks} blocks are in use, which a look would need about "
            f"{format_duration(duration_us)} for: what lives between windows is not looked at"
        )
        if not self._blocks_too_dear.is_refused:
            self._blocks_too_dear.refuse()
            pace.grow_bolder()
        return False

    def saw_blocks(self, took_us: float, blocks: int) -> None:
        """What a look at the blocks alone took, in a window or between two."""
        if self._sees_their_history():
            self._note_cost(HistoryOwner.PROGRAM, self._their_rows(), took_us)
        else:
            self._note_cost(HistoryOwner.MEMPROF, BLOCK_ROWS * blocks, took_us)

    def took(self, took_us: float) -> None:
        """What the last look took, all that was done with it included."""
        self._note_cost(self.owner, self._rows, took_us)

    def _sees_their_history(self) -> bool:
        is_ours = self.owner is HistoryOwner.MEMPROF or self.gathers
        is_theirs = not is_ours and self._is_on()
        return is_theirs and not leaves_out_traces(self._torch)

    def _note_cost(self, owner: HistoryOwner, rows: float, took_us: float) -> None:
        if owner is HistoryOwner.NOBODY:
            return
        pace = self._paces[owner]
        pace.add_measurement(rows, took_us)
        if owner is HistoryOwner.MEMPROF and self.owner is HistoryOwner.MEMPROF:
            self._room = min(self._room, pace.room(self._blocks()))
            self.is_over = self.is_over or self._room < LEAST_ENTRIES
        elif owner is HistoryOwner.PROGRAM and took_us > LONGEST_US:
            self._say(
                "reading the program's own memory history held the job up for "
                f"{format_duration(took_us)}: it is not read again as long as it is so long"
            )

    def _new(self, ordinal: int, ring: list[Entry], before: int, after: int) -> list[Entry]:
        """``before`` and ``after`` the snapshot the counters stood there."""
        if ordinal in self.incomplete_devices:
            return []
        if self.is_shared:
            position = self._positions.get(ordinal, RingPosition(self._since_us))
            ring = sorted(ring, key=itemgetter("time_us"))  # changing its size rotates a ring
            if not position.is_start_of(ring):
                self._most[ordinal] = len(ring)
            least = before - self._operations_read.get(ordinal, 0)
            most = after - self._counted_before.get(ordinal, 0)
            most = sys.maxsize if self._was_reset else most
            new = new_entries(position, ring, least, most)
            is_lost = operations_in(new) < least
        else:
            new = ring[self._positions.get(ordinal, RingPosition()).length :]
            is_lost = len(ring) >= self._max_entries
        self._positions[ordinal] = RingPosition.of(ring)
        if is_lost:
            self._has_overflowed(ordinal, len(ring))
            return []
        return [entry for entry in new if entry["action"] != "snapshot"]  # our own looks

    def _has_overflowed(self, ordinal: int, length: int) -> None:
        self.incomplete_devices.add(ordinal)
        whose = "torch's recorder"
        if self.is_shared:
            whose = "the program's own memory history"
            self._most[ordinal] = length
        self._gap(
            f"{whose} overflowed on cuda:{ordinal}: it does not hold all that happened between two "
            "looks; what is missing ends the window"
        )

    def _gap(self, message: str) -> None:
        self.is_over = True
        self._say(message)

    def _is_affordable(self) -> bool:
        """Whether reading the program's whole ring holds the job up for no longer than allowed."""
        pace, rows = self._paces[HistoryOwner.PROGRAM], self._their_rows()
        if rows > pace.room():
            self._say(
                "the program's own memory history is too long to be read without holding the job "
                f"up (about {rows:.0f} entries, {format_duration(pace.duration_us(rows))}): "
                "counters only"
            )
        return rows <= pace.room()

    def _their_rows(self) -> float:
        operations, known_rows = self.operations() - self._before_program, sum(self._most.values())
        return (
            min(operations, known_rows) if known_rows else operations
        ) + BLOCK_ROWS * self._blocks()

    # -- starting and stopping -----------------------------------------------------------------

    def _start(self) -> None:
        self._begin_to_count()
        is_on = self._is_on()
        owner = HistoryOwner.PROGRAM if is_on else HistoryOwner.MEMPROF
        if is_on:
            self._say(SHARED)
        if not self._has_kept_up(owner):
            return
        if not (self._is_affordable() if is_on else self._has_room()):
            self._too_dear.refuse()
            self._paces[owner].grow_bolder()
            return
        self._too_dear.succeeded()
        if not is_on and (self._calls.records_host or records_pinned(self._torch)):
            self._say(_HOST)
            return
        if not is_on:
            self._record("all")
        self.owner = owner

    def _begin_to_count(self) -> None:
        self._positions.clear()
        self._since_us = time.time_ns() // 1000  # before counting: no less may have happened since
        self._operations_read = self._counted_before = self._count()

    def _has_kept_up(self, owner: HistoryOwner) -> bool:
        """Whether windows hold what happens in them; after some that did not, one in a while."""
        backoff = self._too_fast[owner]
        if self._overflows[owner] < _MOST_OVERFLOWS or backoff.is_due:
            backoff.postpone()
            return True
        if not backoff.is_refused:
            backoff.refuse()
        self._say(
            f"{_MOST_OVERFLOWS} windows overflowed: more is allocated between two looks than the "
            "recorder may hold: mostly counters only from now on, and another try now and then"
        )
        return False

    def _has_room(self) -> bool:
        pace, blocks = self._paces[HistoryOwner.MEMPROF], self._blocks()
        self._room = pace.room(blocks)
        if self._room < LEAST_ENTRIES:
            longest_us = pace.duration_us(BLOCK_ROWS * blocks + LEAST_ENTRIES)
            self._say(
                f"{blocks} blocks are in use, and a look at them and at some events would hold "
                f"the job up for about {format_duration(longest_us)}: counters only"
            )
        return self._room >= LEAST_ENTRIES

    def _count(self) -> dict[int, int]:
        return {i: self._growth(i, operations_of(self._stats(i))) for i in self._ordinals()}

    def _growth(self, ordinal: int, count: int) -> int:
        """What a device's counters account for, also when the program sets them to 0."""
        last = self._counters.get(ordinal, 0)
        if count < last:
            self._before_reset[ordinal] = self._before_reset.get(ordinal, 0) + last
            self._was_reset = True
        self._counters[ordinal] = count
        return self._before_reset.get(ordinal, 0) + count

    def _blocks(self) -> int:
        return sum(int(self._stats(i)["allocation"]["all"]["current"]) for i in self._ordinals())

    def _stats(self, ordinal: int) -> Any:
        return self._torch.cuda.memory_stats_as_nested_dict(ordinal)

    def _is_long(self) -> bool:
        longest = max((position.length for position in self._positions.values()), default=0)
        return longest > self._room // 8 or self._room < self._max_entries

    def _afresh(self) -> None:
        """Clear our ring: what it held was read, and the next look is short again."""
        if "clear_history" not in recording_options(self._torch, on=False):
            self._record(None)
        self._record("all")
        self._positions.clear()
        if self._count() != self._operations_read:  # another thread allocated in these microseconds
            self.incomplete_devices.update(self._operations_read)
            self._gap("events were lost between two looks at torch's recorder")

    def _record(self, enabled: str | None) -> None:
        options = recording_options(self._torch, on=enabled is not None)
        if enabled is not None:
            options["max_entries"] = self._max_entries = self._room
        with self._calls.own():
            self._torch.cuda.memory._record_memory_history(enabled, **options)

    def _is_on(self) -> bool:
        return bool(self._torch._C._cuda_isHistoryEnabled())

    # -- the program's own calls ---------------------------------------------------------------

    def _program_calls(self, turns_on: bool) -> None:
        """The program is about to start, change or stop its recording: read what is there first."""
        with self.lock:
            self._take()
            if turns_on and self.owner is HistoryOwner.MEMPROF:
                self._record(None)  # theirs begins with an empty ring, as it would without us

    def _program_called(self, turns_on: bool) -> None:
        """It has: share it from here on, or go on alone."""
        with self.lock:
            if self.owner is HistoryOwner.NOBODY:
                return
            self._most.clear()
            self._begin_to_count()
            if not turns_on:
                self.owner = HistoryOwner.NOBODY
                self._start()
                self.is_over = self.is_over or self.owner is HistoryOwner.NOBODY
            elif self.owner is HistoryOwner.MEMPROF:
                self._before_program = sum(self._operations_read.values())
                self.owner = HistoryOwner.PROGRAM
                self._say(SHARED)


def operations_of(stats: Mapping[str, Any]) -> int:
    """Entries that a device's counters account for: one an allocation, two a free."""
    allocations = stats["allocation"]["all"]
    return int(allocations["allocated"] + 2 * allocations["freed"])
