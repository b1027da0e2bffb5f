"""One window of a device: the trace with its lifetimes, steps, phases, owners and lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from memprof.allocator import ReplayedTrace, replayed_trace
from memprof.records import (
    BatchSizes,
    DoubleResults,
    Finding,
    GraphInputs,
    KeptResults,
    LabelledRows,
    LargeValues,
    OperatorGraph,
    OverlapCopies,
    PaddedBatches,
    Site,
)
from memprof.run import Run
from memprof.source_code.frame_kind import FrameKind, frame_kind
from memprof.source_code.program import Program, code_of, program_of
from memprof.trace import EMPTY, SURVIVOR_AGE, WARM_UP, Action, Category, Frame, Phase, Trace
from memprof.views.bound_lines import bound_lines
from memprof.views.lifetimes import Lifetimes
from memprof.views.owners import OWNED, OwnerGroupings, owners
from memprof.views.peak_without import Cuts, Saving, replayed
from memprof.views.steps import step_of_event
from memprof.views.timeline import Peak, Timeline, timeline

__all__ = ["Bools", "Ints", "Window"]

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_DOMINATES = 4
"""A peak before the steps are alike that is so many times the later one is what to look at."""
_ENOUGH_STEPS = 8
_ALIKE = 0.1
"""Of its size, by which a tensor of an earlier step may differ: tables grow, batches vary."""


@dataclass(frozen=True, eq=False)
class Window:
    """A recorded trace with all that is derived from it, each thing once, when it is asked for.

    Columns have an entry for each lifetime unless they say otherwise.
    """

    trace: Trace
    """The recording."""
    line: Timeline
    """Bytes after every event."""
    owners: OwnerGroupings
    """Category, phase, module and line of every lifetime."""
    device: str = ""
    number: int = -1
    """Its place among the device's windows; -1 where it is none of them."""
    host: Window | None = None
    """The host's window of the same run, where tensors of the CPU were recorded beside a device."""

    unmoved: frozenset[str] = frozenset()
    """Paths of the modules that no step of an optimizer changes, as its rate for them is 0."""
    padded: PaddedBatches | None = None
    """How much of its batches a model is called with is padding; None where that is not known."""
    batch_sizes: BatchSizes | None = None
    """How many rows models are called with; None where that is not known."""
    graph_inputs: GraphInputs | None = None
    """Which calls of models were given what takes a gradient; None where that is not known."""
    doubles: tuple[DoubleResults, ...] = ()
    """What operators returned in double precision on its device, where that was recorded."""
    labelled: tuple[LabelledRows, ...] = ()
    """How many of the rows that they are given losses count there, where that was recorded."""
    kept_results: tuple[KeptResults, ...] = ()
    """What was read of results that outlived calls of models, where that was recorded."""
    large_values: tuple[LargeValues, ...] = ()
    """What large tensors of its device are full of, where that was recorded."""
    overlap_copies: tuple[OverlapCopies, ...] = ()
    """What was computed of views that show memory several times, where that was recorded."""
    operator_graphs: tuple[OperatorGraph, ...] = ()
    """What operators made of large tensors of its device, where that was recorded."""

    searches: tuple[Finding, ...] = ()
    """What searches in the job found of who holds tensors of its device."""
    bound_lines: Mapping[int, Frame] = field(default_factory=dict)
    """By the bytes of what was made where nothing was recorded, the line that binds it."""

    reaches_end: bool = False
    """Recording ended with it and with the program, which came to its end: nothing came later."""
    of_setup: bool = False
    """Its peak is the highest of all, though steps that are like one another come later."""
    replay: ReplayedTrace | None = None
    """The replay that its bytes come from; None where they are counted as its events stand."""

    @classmethod
    def of(
        cls, trace_of_file: Trace, number: int = -1, *, exact: bool = True, run: Run | None = None
    ) -> Window:
        """The window of a trace; ``exact`` replays the bytes that each block took.

        Runs are short of events and their figures must equal torch's own counters to the byte. A
        plain snapshot is counted as its events stand, requests rounded up: it may hold millions of
        events, and it may contradict itself; `memprof replay` is there for the rest. ``run`` is
        asked what else is known of it.
        """
        replay = replayed_trace(trace_of_file) if exact and _has_blocks(trace_of_file) else None
        trace = trace_of_file if replay is None else replay.trace
        line = timeline(trace)
        attributed = owners(trace, line.lives)
        device = trace_of_file.device
        doubles = tuple(one for one in run.doubles if one.device == device) if run else ()
        unmoved = run.unmoved if run else frozenset()
        return cls(
            trace,
            line,
            attributed,
            device,
            number,
            unmoved=unmoved,
            padded=run.padded if run else None,
            batch_sizes=run.batch_sizes if run else None,
            graph_inputs=run.graph_inputs if run else None,
            doubles=doubles,
            labelled=tuple(one for one in run.labelled if one.device == device) if run else (),
            kept_results=tuple(one for one in run.kept_results if one.device == device)
            if run
            else (),
            large_values=tuple(one for one in run.large_values if one.device == device)
            if run
            else (),
            overlap_copies=tuple(one for one in run.overlap_copies if one.device == device)
            if run
            else (),
            operator_graphs=tuple(one for one in run.operator_graphs if one.device == device)
            if run
            else (),
            searches=tuple(
                one
                for one in (run.findings if run else ())
                if one.finding == "holders" and one.device == device and one.holders
            ),
            bound_lines=bound_lines(run, device) if run else {},
            replay=replay,
            reaches_end=_reaches_end(run, number) if run else False,
        )

    @property
    def lives(self) -> Lifetimes:
        """Its lifetimes."""
        return self.line.lives

    @property
    def events(self) -> int:
        """How many events it has; also the ``free`` of what outlived it."""
        return len(self.trace.events)

    @cached_property
    def first_entry(self) -> int:
        """The entry of the timeline from which on steps are like one another.

        The first steps build models and optimizer state; what they need for a moment is not waste,
        unless it is most of what the program ever needs.
        """
        if self.of_setup or len(self.steps) < _ENOUGH_STEPS:
            return 0
        entry = self.first_event[int(self.steps[WARM_UP])] + 1
        allocated = self.line.allocated
        is_most = allocated.max() > _DOMINATES * allocated[entry:].max(initial=0)
        return 0 if is_most else entry

    @cached_property
    def peak(self) -> Peak:
        """The most bytes in use at once after warm-up; the last time, where there are several.

        Before an optimizer has stepped, a program's module calls are taken for its steps.
        """
        allocated = self.line.allocated
        highest = len(allocated) - 1 - int(allocated[self.first_entry :][::-1].argmax())
        return Peak(int(allocated[highest]), highest - 1)

    def replayed(self, cuts: Cuts, *, divisor: int = 1) -> Saving:
        """That peak with and without the bytes in ``cuts``, or one part in ``divisor`` of them.

        A step in the middle of which the window began or ended says less of what is in it than the
        others: what is cut of these is not told there. It is left out, unless the peak is there.
        """
        first = self._end_of_unknown(cuts)
        counted = slice(first or None, self._whole_entries)
        return replayed(self.line, cuts, self.first_entry, counted=counted, divisor=divisor)

    @cached_property
    def _peaks(self) -> tuple[int, int]:
        """The events of the peak, and of the highest one with the warm-up, in order.

        Of several that are as high the last.
        """
        allocated = self.line.allocated
        overall = len(allocated) - 2 - int(allocated[::-1].argmax())
        return min(self.peak.event, overall), max(self.peak.event, overall)

    @cached_property
    def _whole_entries(self) -> int | None:
        """Entries of the timeline before a last step that is cut off; None where all count."""
        first = self.first_event[int(self.steps[-1])] if len(self.steps) else 0
        is_freed_later = (self.freed_by == Phase.BACKWARD) & (self.lives.free >= self.events)
        return first + 1 if self._peaks[1] < first and is_freed_later.any() else None

    def _end_of_unknown(self, cuts: Cuts) -> int:
        """The entry at which what is about as large as ``cuts`` and was there before is gone.

        Of a step that was under way: no stack says that it is the like of them.
        """
        if not len(cuts.rows) or len(self.steps) < _ENOUGH_STEPS:
            return 0
        lives = self.lives
        first_step_ends = self.first_event[int(self.steps[1])]
        before = (lives.alloc < 0) & ~self.has_owner & (lives.free < first_step_ends)
        size = int(lives.requested[cuts.rows[lives.size[cuts.rows].argmax()]])
        alike = np.abs(lives.requested - size) <= _ALIKE * size
        ends = lives.free[before & alike]
        last = int(ends.max()) + 1 if len(ends) else 0
        return last if last <= self._peaks[0] else 0

    def whole(self, rows: Ints) -> Cuts:
        """Lifetimes that do not happen at all."""
        return Cuts.whole(self.line, rows)

    def ended_at(self, rows: Ints, at: Ints) -> Cuts:
        """Lifetimes that end at an event each, where that is before their own end."""
        return Cuts.ended_at(self.line, rows, at)

    @cached_property
    def unread_from(self) -> Ints:
        """The event from which on no operator is given it; its end where that is not known.

        Nor is it of what outlives the window, unless the program ends with that.
        """
        rows, reads = self._rows_read, self.trace.last_reads
        unread: Ints = self.lives.free.copy()
        unread[rows[rows >= 0]] = reads.read[rows >= 0]
        return unread

    @property
    def may_be_read_unseen(self) -> bool:
        """Whether kernels that no operator starts may read its tensors: those of a card."""
        return self.device != "cpu"

    @cached_property
    def part_read(self) -> npt.NDArray[np.float64]:
        """Of its bytes, that operators read, added up: 1 for all, or where that is not known."""
        rows, reads = self._rows_read, self.trace.last_reads
        parts = np.ones(len(self.lives))
        parts[rows[rows >= 0]] = reads.part[rows >= 0]
        return parts

    @cached_property
    def _rows_read(self) -> Ints:
        """The lifetimes of which the trace knows the last reads; -1 for none."""
        made = self.lives.alloc >= 0
        rows = np.full(self.events, -1, dtype=np.int64)
        rows[self.lives.alloc[made]] = np.flatnonzero(made)
        own: Ints = rows[self.trace.last_reads.made]
        if not self.reaches_end:
            own[self.lives.free[own] >= self.events] = -1
        return own

    @cached_property
    def at_peak(self) -> Bools:
        """Alive at the peak."""
        return self.lives.alive_at(self.peak.event)

    @cached_property
    def stack_at_peak(self) -> tuple[Frame, ...]:
        """The frames that ran at the peak, innermost first; empty where they are not known.

        A small allocation may have none: then those of the last event before it in its step.
        """
        stacks, steps = self.trace.events.stack, self.step_of_event
        for event in range(self.peak.event, -1, -1):
            if steps[event] != steps[self.peak.event]:
                break
            if stacks[event] != EMPTY:
                return self.trace.stack(int(stacks[event]))
        return ()

    @cached_property
    def step_of_event(self) -> Ints:
        """The step of every event and, last, one more for what is not freed."""
        steps = step_of_event(self.trace)
        last = steps[-1] + 1 if len(steps) else 0
        return np.append(steps, last)

    @cached_property
    def made_in(self) -> Ints:
        """The step that made it; -1 if it was there before."""
        return np.where(self.lives.alloc >= 0, self.step_of_event[self.lives.alloc], -1)

    @cached_property
    def freed_in(self) -> Ints:
        """The step that freed it; one beyond the last where none did."""
        return self.step_of_event[self.lives.free]

    @cached_property
    def freed_by(self) -> Ints:
        """The phase in which it was freed; unknown where none did.

        A window may end in the middle of a step: of what that step made and had not freed, the
        phase in which all that the same stack made in earlier steps, and they freed, was freed.
        """
        phases: Ints = np.append(self.phase_of_event, Phase.UNKNOWN)[self.lives.free]
        last = int(self.steps[-1]) if len(self.steps) else -1
        cut_off = (self.lives.free >= self.events) & (self.made_in == last) & (last >= 0)
        if not cut_off.any():
            return phases
        complete = (self.freed_in == self.made_in) & (self.made_in >= 0) & (self.made_in < last)
        counts = np.zeros((len(self.trace.tables.stacks) + 1, len(Phase)), dtype=np.int64)
        np.add.at(counts, (self.lives.stack[complete], phases[complete]), 1)
        is_alike = counts.max(axis=1) == counts.sum(axis=1)
        is_alike &= counts.any(axis=1)
        is_alike[EMPTY] = False
        known = cut_off & is_alike[self.lives.stack]
        phases[known] = counts.argmax(axis=1)[self.lives.stack[known]]
        return phases

    @cached_property
    def stays(self) -> Bools:
        """There when the last step began, several steps after it was made.

        What a program's functions held is freed when they return: the end of a recording tells
        nothing of what is still there.
        """
        last = self.first_event[int(self.steps[-1])] if len(self.steps) else self.events
        staying: Bools = (self.lives.free >= last) & (self.freed_in - self.made_in >= SURVIVOR_AGE)
        return staying

    @cached_property
    def steps(self) -> Ints:
        """The numbers of the steps that have events."""
        return np.unique(self.step_of_event[:-1][self.step_of_event[:-1] >= 0])

    @cached_property
    def first_event(self) -> dict[int, int]:
        """The first event of every step."""
        return {int(s): int(np.searchsorted(self.step_of_event, s)) for s in self.steps}

    @cached_property
    def phase_of_label(self) -> npt.NDArray[np.uint8]:
        """The phase in every label of the tables."""
        return np.array([label.phase for label in self.trace.tables.labels], dtype=np.uint8)

    @cached_property
    def phase_of_event(self) -> npt.NDArray[np.uint8]:
        """The phase in which every event happened, as recorded."""
        return self.phase_of_label[self.trace.events.label]

    @cached_property
    def phase(self) -> Ints:
        """The phase that made it, recorded or inferred."""
        return self.owners.phase.of

    @cached_property
    def category(self) -> Ints:
        """Whose bytes they are, recorded or inferred."""
        return self.owners.category.of

    @cached_property
    def has_owner(self) -> Bools:
        """Part of a model or an optimizer."""
        return np.isin(self.category, OWNED)

    @cached_property
    def site(self) -> Ints:
        """Row in ``seen.owners.sites.frames``."""
        return self.owners.site.of

    @property
    def origin_site(self) -> Ints:
        """The same of the forward line whose backward pass made it; 0 elsewhere, or not known."""
        return self.owners.origin

    @cached_property
    def module(self) -> Ints:
        """Row in ``seen.owners.module.names``."""
        return self.owners.module.of

    @cached_property
    def programs(self) -> tuple[Program, ...]:
        """The program's own files that stand in the stacks, as far as they are here."""
        names = dict.fromkeys(f.filename for f in self.trace.tables.frames if not f.changed)
        programs = (program_of(name) for name in names)
        return tuple(program for program in programs if program is not None)

    def module_name(self, row: int) -> str:
        """The module path of a lifetime; empty where it has none."""
        label = self.trace.label(int(self.lives.label[row]))
        return label.module

    def is_phase(self, event: int, phase: Phase) -> bool:
        """Whether an event happened in a phase."""
        return 0 <= event < self.events and int(self.phase_of_event[event]) == phase

    def learns_after(self, event: int) -> bool:
        """Whether a backward pass comes after an event, in the same step."""
        step = self.step_of_event[event]
        later = self.phase_of_event[event + 1 :][self.step_of_event[event + 1 : -1] == step]
        return bool((later == Phase.BACKWARD).any())

    def bytes_of(self, mask: Bools) -> int:
        """Bytes of the lifetimes in a mask."""
        return int(self.lives.size[mask].sum())

    def large_sites(self, mask: Bools, least_share: float) -> Iterator[int]:
        """The lines that made such a part of the peak or more of a mask, most bytes first."""
        total = np.bincount(self.site[mask], weights=self.lives.size[mask])
        for site in np.argsort(-total, kind="stable").tolist():
            if self.share(float(total[site])) < least_share:
                return
            yield site

    def most_in_a_step(self, rows: Ints, sizes: Ints) -> int:
        """The most bytes that any step made of some lifetimes, which have ``sizes``; 0 of none.

        Those that were there before the window count as one step's: they were made once and stay.
        """
        if not len(rows):
            return 0
        _, step = np.unique(self.made_in[rows], return_inverse=True)
        return int(np.bincount(step.reshape(-1), weights=sizes).max())

    def share(self, nbytes: float) -> float:
        """A part of the peak, without what torch keeps for its libraries: that is fixed."""
        return nbytes / self._own_peak if self._own_peak else 0.0

    @cached_property
    def _own_peak(self) -> int:
        scratch = self.at_peak & (self.category == Category.LIBRARY_WORKSPACE)
        return self.peak.bytes - self.bytes_of(scratch)

    def stack(self, row: int) -> tuple[Frame, ...]:
        """The frames that made a lifetime, innermost first."""
        return self.trace.stack(int(self.lives.stack[row]))

    def user_frames(self, stack: tuple[Frame, ...]) -> list[Frame]:
        """The user's own frames of a stack, innermost first."""
        return [f for f in stack if frame_kind(f.filename) is FrameKind.USER]

    def largest(self, mask: Bools) -> int:
        """The row of the largest lifetime in a mask that is not empty."""
        rows = np.flatnonzero(mask)
        return int(rows[np.argmax(self.lives.size[rows])])

    def main_site(self, mask: Bools) -> int:
        """The row of the largest lifetime at the site that has most of the bytes in a mask."""
        total = np.bincount(self.site[mask], weights=self.lives.size[mask])
        return self.largest(mask & (self.site == int(total.argmax())))

    def site_of(self, row: int) -> Site:
        """The user's line that made a lifetime, with its text where the file is here."""
        return site_at(self.frame_of(row))

    def frame_of(self, row: int) -> Frame:
        """The frame of that line; of what was made before the window the line that binds it."""
        frame = self.owners.sites.frames[int(self.site[row])]
        return frame if frame.filename else self._bound_at.get(row, frame)

    @cached_property
    def _bound_at(self) -> dict[int, Frame]:
        """By row, those lines; of two tensors that are as large neither is told by its size."""
        lives, lines = self.lives, {}
        for size, frame in self.bound_lines.items():
            rows = np.flatnonzero((lives.stack == EMPTY) & (lives.alloc < 0) & (lives.size == size))
            if len(rows) == 1:
                lines[int(rows[0])] = frame
        return lines

    def origin_of(self, row: int) -> Frame | None:
        """The frame of the forward line whose backward pass made a lifetime; None elsewhere."""
        origin = int(self.origin_site[row])
        return self.owners.sites.frames[origin] if origin else None

    def origin_stack(self, row: int) -> tuple[Frame, ...]:
        """The frames of that line and what called it, innermost first; empty elsewhere."""
        event = int(self.lives.alloc[row])
        return self.trace.stack(int(self.trace.events.origin[event])) if event >= 0 else ()


def _reaches_end(run: Run, number: int) -> bool:
    """Whether a window was the last, and ended as recording did, with a program that went well.

    One that fails has not done all that it would have done.
    """
    footer, windows = run.footer, run.windows
    if footer is None or not footer.is_over or footer.status != "ok" or not windows:
        return False
    return (windows[-1].window, windows[-1].end) == (number, "stop")


def site_at(frame: Frame) -> Site:
    """A frame as a site; ``code`` is empty where the file that ran is not here."""
    return Site(frame.filename, frame.line, frame.name, code_of(frame))


def _has_blocks(trace: Trace) -> bool:
    """Whether a caching allocator was there, and was asked: else its blocks are not to be known."""
    has_requests = np.isin(trace.events.action, (Action.ALLOC, Action.OOM)).any()
    return bool(has_requests) and not trace.modelled
