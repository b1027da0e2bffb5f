"""What lives on devices whose recorder knows blocks only: labels, owners, and what is told late.

It is kept up with the recorder's events and with what modules and optimizers point at. Nothing is
watched for each allocation, and nothing is held.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import msgspec
import numpy as np

from memprof.sources.label_rows import LabelRows
from memprof.sources.loop.loop_watch import LoopWatch
from memprof.sources.owners.block_lifetimes import (
    Lives,
    final_of_dead,
    lives_of,
    own,
    replaced,
    settle,
)
from memprof.sources.owners.owner_samples import OwnerSamples
from memprof.sources.owners.saved_blocks import SavedBlocks
from memprof.sources.owners.tensor_owners import Owner
from memprof.sources.protocol import Chunk, Interner, LateOwner
from memprof.sources.tensor_addresses import DeviceBlock, PlaceOf
from memprof.trace import (
    EMPTY,
    NOT_RECORDED,
    Blocks,
    BlockState,
    Column,
    Events,
    Segments,
    State,
)

if TYPE_CHECKING:  # a millisecond of a recording's beginning
    import numpy.typing as npt

__all__ = ["LiveBlocks", "LivingBlocks"]

Ints: TypeAlias = "npt.NDArray[np.int64]"
_NEVER_TOLD = -2
"""Instead of an event's index: neither an event nor a state that was written has the block."""


class LivingBlocks(msgspec.Struct, frozen=True, eq=False):
    """The blocks that are in use on a device, as columns: there may be hundreds of thousands."""

    device: str
    address: Column
    size: Column
    stream: Column
    pool: Column
    """Index into ``pools``."""
    stack: Column
    label: Column
    category: Column
    """`Category` as far as it is known."""
    pools: Sequence[tuple[int, int]]

    def __len__(self) -> int:
        return len(self.address)

    def key(self, row: int) -> DeviceBlock:
        """The block by which holders are searched for."""
        return DeviceBlock(
            self.device,
            int(self.address[row]),
            int(self.size[row]),
            int(self.stream[row]),
            self.pools[int(self.pool[row])],
        )


class LiveBlocks:
    """The blocks in use on every device, as the last state and the events since then say."""

    def __init__(
        self,
        interner: Interner,
        loop_watch: LoopWatch,
        place: PlaceOf,
        *,
        of_cpu: bool = False,
    ) -> None:
        """``place`` says where a tensor lies; ``of_cpu``: the CPU is meant, else all others are."""
        self.labels = LabelRows(interner)
        self.sightings = OwnerSamples(loop_watch, place, of_cpu=of_cpu)
        self._saved_blocks = SavedBlocks(self.labels)
        self._loop_watch = loop_watch
        self._pools = interner.pools
        self._lives: dict[str, Lives] = {}
        self._states: dict[str, State] = {}
        self._next_event: dict[str, int] = {}

    def refresh(self, states: Mapping[str, State]) -> dict[str, State]:
        """The states, with the labels of blocks that were known and with their owners.

        Between windows no event says what went and came: a block is the one that was known if its
        stack is still the same, as torch keeps none for what it does not record.
        """
        owners = self.sightings.owners()
        return {device: self._begin(device, state, owners) for device, state in states.items()}

    def begin(self, states: Mapping[str, State], *, anew: bool) -> dict[str, State]:
        """The states in which a window begins, with labels and owners.

        ``anew``: it is another window, not one that devices join. What has no state now is unknown;
        that of a device which has events already stays as it is.
        """
        if anew:
            self._next_event.clear()
            self._lives = {device: self._lives.get(device, Lives.build()) for device in states}
        new = {device: state for device, state in states.items() if device not in self._next_event}
        self._next_event.update(dict.fromkeys(new, 0))
        return {**states, **self.refresh(new)}

    def forget(self) -> None:
        """Nothing is known any more of what lives."""
        self._lives.clear()

    def take(self, chunks: Sequence[Chunk], ends: Mapping[str, State]) -> list[Chunk]:
        """The chunks, one a device, with categories; ``ends`` are the states after their events."""
        events: dict[str, list[Events]] = defaultdict(list)
        for chunk in chunks:
            events[chunk.device].append(chunk.events)
        owners, samples_of = self.sightings.owners(), self.sightings.take()
        modes = self.sightings.take_modes()
        changes = []
        for device in dict.fromkeys([*events, *ends]):
            sightings = [*samples_of.get("", ()), *samples_of.get(device, ())]
            all_events = Events.concatenate(events[device])
            before = self._lives.get(device, Lives.build())
            blocks_before = replaced(before, allocated_at=np.full(len(before), NOT_RECORDED))
            lives = lives_of(blocks_before, all_events, self._next_event.get(device, 0))
            lives = settle(lives, all_events, self.labels, sightings, modes)
            changes.append(
                self._settle(device, all_events, ends.get(device), lives, owners.get(device, {}))
            )
        return [one for one in changes if len(one.events) or one.late_events or one.late_blocks]

    def end(self, states: Mapping[str, State]) -> dict[str, State]:
        """The states of the windows' ends, with the labels and categories of what is known."""
        return {device: self._with_known_owners(device, state) for device, state in states.items()}

    def living(self, device: str) -> LivingBlocks:
        """The blocks in use on a device."""
        state = self._with_known_owners(device, self._states.get(device, State()))
        used: Blocks = state.blocks.take(state.blocks.state == BlockState.ACTIVE_ALLOCATED)
        segments = state.segments
        inside = (used.segment >= 0) & (used.segment < len(segments))
        return self._living(device, used, used.size, segments, np.where(inside, used.segment, -1))

    def alive(self, device: str) -> LivingBlocks:
        """The same by the events alone; streams and pools are those of the window's beginning."""
        lives = self._lives.get(device, Lives.build())
        segments = self._states.get(device, State()).segments
        order = np.argsort(segments.address, kind="stable")
        starts, ends = segments.address[order], (segments.address + segments.size)[order]
        place = np.searchsorted(starts, lives.address, side="right") - 1
        inside = (place >= 0) & (lives.address < np.append(ends, 0)[place])
        segment = np.where(inside, np.append(order, -1)[place], -1)
        return self._living(device, lives, lives.size, segments, segment)

    def _living(
        self, device: str, rows: Blocks | Lives, size: Column, segments: Segments, segment: Ints
    ) -> LivingBlocks:
        """``segment`` is each row's, -1 where it is in none that is known."""
        return LivingBlocks(
            device=device,
            address=rows.address,
            size=size,
            stream=np.append(segments.stream, 0)[segment],
            pool=np.append(segments.pool, EMPTY)[segment],
            stack=rows.stack,
            label=rows.label,
            category=rows.category,
            pools=self._pools(),
        )

    def _begin(self, device: str, state: State, owners: Mapping[str, dict[int, Owner]]) -> State:
        blocks_then = _in_use(state.blocks)  # columns of its own
        before = self._lives.get(device, Lives.build())
        row = _row_of(before.address, blocks_then.address)
        same = (row >= 0) & (blocks_then.stack != EMPTY)
        if len(before):
            same &= (before.stack[row] == blocks_then.stack) & (
                before.size[row] == blocks_then.size
            )
            blocks_then = replaced(
                blocks_then,
                label=np.where(same, before.label[row], blocks_then.label),
                category=np.where(same, before.category[row], blocks_then.category),
                graph=np.where(same, before.graph[row], blocks_then.graph),
            )
        own(blocks_then, owners.get(device, {}), 0, self.labels)
        self._lives[device] = _handed_over(blocks_then)
        self._states[device] = state
        return self._with_known_owners(device, state)

    def _settle(
        self,
        device: str,
        events: Events,
        end: State | None,
        lives: Lives,
        owners: Mapping[int, Owner],
    ) -> Chunk:
        first = self._next_event.get(device, 0)
        own(lives, owners, len(events), self.labels)
        step, saved = self._loop_watch.step, self.sightings.saved
        lives = self._saved_blocks.judge(device, lives, events, step, saved)
        lives = replaced(lives, category=final_of_dead(lives, events, self.labels))
        self._next_event[device] = first + len(events)
        chunk = _chunk(device, events, lives)
        survivors = lives.take(lives.freed_at == len(events))
        self._lives[device] = _handed_over(survivors)
        if end is not None:
            self._states[device] = end
            self._lives[device] = _agreeing(self._lives[device], end)
        return chunk

    def _with_known_owners(self, device: str, state: State) -> State:
        lives = self._lives.get(device, Lives.build())
        row = _row_of(lives.address, state.blocks.address)
        here = (row >= 0) & (state.blocks.state == BlockState.ACTIVE_ALLOCATED)
        label, category = state.blocks.label.copy(), state.blocks.category.copy()
        label[here], category[here] = lives.label[row[here]], lives.category[row[here]]
        columns = {name: getattr(state.blocks, name) for name in Blocks.names()}
        return State(
            segments=state.segments,
            blocks=Blocks(**{**columns, "label": label, "category": category}),
            unlisted=state.unlisted,
        )


def _handed_over(lives: Lives) -> Lives:
    """The lives, all of whose owners are written."""
    return replaced(lives, handed=lives.category, handed_label=lives.label)


def _in_use(blocks: Blocks) -> Lives:
    used: Blocks = blocks.take(blocks.state == BlockState.ACTIVE_ALLOCATED)
    lives: Lives = Lives.build(
        len(used),
        address=used.address,
        size=used.requested,
        stack=used.stack,
        label=used.label,
        category=used.category,
    )
    return lives


def _agreeing(lives: Lives, end: State) -> Lives:
    """The lives that a state confirms, and its blocks that no event made (entries were lost)."""
    blocks = _in_use(end.blocks)
    row = _row_of(lives.address, blocks.address)
    vanished = blocks.take(row < 0)
    vanished = replaced(vanished, event=np.full(len(vanished), _NEVER_TOLD))
    agreeing: Lives = Lives.concatenate([lives.take(row[row >= 0]), vanished])
    return agreeing


def _chunk(device: str, events: Events, lives: Lives) -> Chunk:
    """The events with the categories and labels of what they made, and what older ones became."""
    category, label = events.category.copy(), events.label.copy()
    new = lives.allocated_at >= 0
    category[lives.allocated_at[new]], label[lives.allocated_at[new]] = (
        lives.category[new],
        lives.label[new],
    )
    columns = {name: getattr(events, name) for name in Events.names()}
    changed = ~new & ((lives.category != lives.handed) | (lives.label != lives.handed_label))
    late, blocks = changed & (lives.event >= 0), changed & (lives.event == NOT_RECORDED)
    return Chunk(
        device,
        Events(**{**columns, "category": category, "label": label}),
        _late_owners(lives.event, lives, late),
        _late_owners(lives.address, lives, blocks),
    )


def _late_owners(key: Ints, lives: Lives, which: npt.NDArray[np.bool_]) -> dict[int, LateOwner]:
    """The owners of some lives by their row of ``key``."""
    late_owners = map(LateOwner, lives.category[which].tolist(), lives.label[which].tolist())
    return dict(zip(key[which].tolist(), late_owners, strict=True))


def _row_of(addresses: Ints, targets: Ints) -> Ints:
    """The row of each wanted address; -1 where it is not among them."""
    if not len(addresses):
        return np.full(len(targets), -1, np.int64)
    order = np.argsort(addresses, kind="stable")
    place = np.minimum(np.searchsorted(addresses[order], targets), len(order) - 1)
    rows: Ints = np.where(addresses[order][place] == targets, order[place], -1)
    return rows
