"""unread-at-peak: tensors that no operator reads any more are there at the peak."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memprof.reference_chain import LinkKind
from memprof.rules.case import Case, says
from memprof.rules.results_read import reads_outside_torch
from memprof.rules.rule import EVERY_OTHER, Advice, Match, WasteRule
from memprof.rules.running_variables import still_running, variable_of
from memprof.rules.same_memory import ANY_GROWTH
from memprof.source_code.lasting_names import keeping_line
from memprof.source_code.program import place_of
from memprof.trace import EMPTY, Action, Frame, Phase
from memprof.units import format_bytes
from memprof.views.window import Bools, Ints, Window

__all__ = ["RULE"]

_LEAST_SHARE, _LEAST_OF_UNKNOWN = 0.2, 0.3
"""Of the peak, that goes where they do after their last read, and of what nobody is known to hold:
few programs let go at once."""
_LONGEST = 1
"""Steps after the one that made them: what stays longer is meant to, as in a cache."""
_AS_HIGH = 0.98
"""Of the peak, that another is the same in another step."""
_FEWEST_STEPS = 4
_VARIABLES = frozenset({LinkKind.LOCAL, LinkKind.GLOBAL})


@dataclass(frozen=True, slots=True, eq=False)
class UnreadTensors(Match):
    """Tensors that go together, some time after they were read last."""

    last: Frame | None = None
    """The program's line from which an operator was called that read one of them last: of the
    function that has them in a variable, else the innermost."""
    until: Frame | None = None
    """That of what was allocated next after they went."""
    variable: str = ""
    """The variable that has them, where their function still runs at the peak, …"""
    container: str = ""
    """… else what the line ``look_at`` puts them into, as written: ``self.maps[name]``."""
    is_never_read: bool = False
    """No operator was given any of them, but for views."""

    def unread(self, them: str = "") -> str:
        """From when on nothing reads ``them``."""
        if self.is_never_read:
            return f"nothing ever reads{them}"
        since = f"after line {self.last.line}" if self.last is not None else "any more"
        return f"nothing reads{them} {since}"


class UnreadAtPeak(WasteRule[UnreadTensors]):
    """A dictionary of a teacher's feature maps, of which the loss has long been computed."""

    name = "unread-at-peak"
    summary = "tensors are there at the peak that no operator reads any more"
    fixes = ("del_ref",)
    yields_to = EVERY_OTHER
    is_general = True
    yields_beyond = (ANY_GROWTH, "kept-distributions", "stored-views", "unread-entries")
    names_holders = True

    def matches(self, window: Window) -> Iterator[UnreadTensors]:
        """Those at the peak that went together, where much of the peak goes without them."""
        peak = _peak_with_ends(window)
        if peak < 0:
            return
        lives = window.lives
        unread = _is_unread(window)
        there = np.flatnonzero(unread & lives.alive_at(peak) & (window.unread_from <= peak))
        if window.share(int(lives.size[there].sum())) < _LEAST_SHARE:
            return
        for rows in _groups(window, there):
            match = _match(window, unread, rows, peak)
            if match is not None:
                yield match

    def title(self, match: UnreadTensors) -> str:
        """Say since when nothing reads them."""
        return f"are there at the peak, though {match.unread(' them')}"

    def advice(self, match: UnreadTensors, case: Case) -> Iterator[Advice]:
        """Let go of them after their last read; of who has them, as the job found out."""
        last, until = match.last, match.until
        unread = f"{format_bytes(match.nbytes)} that {match.unread()}"
        to_line = f" until line {until.line} has run" if until is not None else ""
        place = place_of(last) if last is not None else None
        holder = next(iter(case.finding.holders), None)
        name = match.variable
        if holder is not None and [one.kind in _VARIABLES for one in holder.links] == [True]:
            name = holder.links[0].name
        if name:
            why = f"`{name}` keeps {unread}: `del {name}` there."
        elif holder is not None:
            place = case.place_of(holder) or place
            why = f"{says(holder)} keeps {unread}: empty it there."
        elif match.look_at is not None:
            place = place_of(match.look_at)
            why = (
                f"`{match.container}` keeps {unread}: put in what is read later alone, or let go "
                "of them after their last read."
            )
        else:
            why = f"{unread} stay{to_line}: let go of what has them."
        yield Advice("del_ref", why, place)


def _peak_with_ends(window: Window) -> int:
    """The event of the peak or, where the last two steps have it, of one as high before, if any.

    What they made goes in no step that is recorded, perhaps, or with the program's functions.
    """
    if len(window.steps) < _FEWEST_STEPS:
        return window.peak.event
    ends = window.first_event[int(window.steps[-2])]
    if window.peak.event < ends:
        return window.peak.event
    before = window.line.allocated[window.first_entry : ends + 1]
    if not len(before) or before.max() < _AS_HIGH * window.peak.bytes:
        return window.peak.event
    return window.first_entry + len(before) - 1 - int(before[::-1].argmax()) - 1


def _is_unread(window: Window) -> Bools:
    """What is there for a while after its last read, and goes before the program's end does it.

    What autograd keeps goes with its graph, and what it makes there is its own.

    The last step that is recorded may be the program's last: all goes with its functions.
    """
    lives = window.lives
    unread: Bools = (window.unread_from < lives.free) & ~window.has_owner
    last = int(window.steps[-1]) if len(window.steps) else -1
    unread &= (window.freed_in < last) | (window.made_in == window.freed_in)
    unread &= window.freed_in - window.made_in <= _LONGEST
    unread &= (window.phase != Phase.BACKWARD) & (window.freed_by != Phase.BACKWARD)
    return unread


def _groups(window: Window, rows: Ints) -> list[Ints]:
    """Rows that went together, or that one line made: they have the same holder, likely."""
    allocations = np.flatnonzero(window.trace.events.action == Action.ALLOC)
    release = np.searchsorted(allocations, window.lives.free[rows])
    site = window.site[rows]
    groups = np.arange(len(rows))
    while True:  # until no two groups have a release or a line in common
        before = groups
        for key in (release, site):
            _, at = np.unique(key, return_inverse=True)
            lowest = np.full(len(rows), len(rows), dtype=np.int64)
            np.minimum.at(lowest, at.reshape(-1), groups)
            groups = lowest[at.reshape(-1)]
        if (groups == before).all():
            return [rows[groups == one] for one in np.unique(groups).tolist()]


def _match(window: Window, unread: Bools, rows: Ints, peak: int) -> UnreadTensors | None:
    """Of tensors ``rows`` that went together, and all of the same stacks."""
    lives = window.lives
    if window.share(int(lives.size[rows].sum())) < _LEAST_SHARE:
        return None
    every, ends = _with_last_step(window, np.flatnonzero(_alike(window, unread, rows)))
    saving = window.replayed(window.ended_at(every, ends))
    if window.share(saving.bytes) < _LEAST_SHARE:
        return None
    mask = np.zeros(len(lives), dtype=bool)
    mask[rows] = True
    row = window.main_site(mask)
    last = int(window.unread_from[rows].max()) - 1
    is_never_read = not window.part_read[rows].any()
    if not (is_never_read or _has_gone_on(window, last, peak)):
        return None  # it is still in the statement that reads them: nobody can let go there
    variable, last_line = _variable(window, row, last) if len(rows) == 1 else ("", None)
    keeping, container = (
        (None, "") if variable else keeping_line(window.user_frames(window.stack(row)))
    )
    has_holder = any(one.stack in lives.stack[rows] for one in window.searches)
    is_unknown = not (variable or keeping or has_holder)
    if is_unknown and window.share(saving.bytes) < _LEAST_OF_UNKNOWN:
        return None
    return UnreadTensors(
        row=row,
        rows=every,
        nbytes=int(lives.size[rows].sum()),
        saving=saving,
        tentative=window.may_be_read_unseen or reads_outside_torch(window.programs),
        last=last_line or _user_line(window, last),
        until=_user_line(window, _next_allocation(window, int(lives.free[row]))),
        variable=variable,
        container=container,
        is_never_read=is_never_read,
        look_at=keeping,
    )


def _variable(window: Window, row: int, last: int) -> tuple[str, Frame | None]:
    """The variable of a running function that has a tensor, and its line at the last read."""
    made_by = window.stack(row)
    stacks, at_peak = window.trace.events.stack, window.stack_at_peak
    back = still_running(made_by, at_peak)
    place = place_of(made_by[-back]) if back is not None else None
    if back is None or place is None:
        return "", None
    reading = window.trace.stack(int(stacks[last]))
    if len(reading) < back or reading[-back].name != made_by[-back].name:
        return "", None
    return variable_of(place, made_by[:-back]), reading[-back]


def _alike(window: Window, mask: Bools, rows: Ints) -> Bools:
    return mask & np.isin(window.lives.stack, window.lives.stack[rows])


def _with_last_step(window: Window, rows: Ints) -> tuple[Ints, Ints]:
    """Some rows and where nothing reads them any more, with what the last two steps made like them.

    Those go with the program's functions, perhaps: nothing reads them later than others like them.
    Of what has not gone it is not known, and the step before the two is asked, where it made as
    many.
    """
    lives, steps = window.lives, window.steps
    if len(steps) < _FEWEST_STEPS:
        return rows, window.unread_from[rows]
    model_step, *last_steps = steps[-3:].tolist()
    others = np.ones(len(lives), dtype=bool)
    others[rows] = False
    alike = _alike(window, others, rows) & np.isin(window.made_in, last_steps)
    models = rows[window.made_in[rows] == model_step]
    is_large = lives.size >= lives.size[models].min(initial=window.peak.bytes) // 2
    is_known = alike & (window.unread_from < lives.free)
    if len(models):  # what the same call makes for itself, as a layer does of its input, is none
        is_known &= is_large
    own = [*rows.tolist(), *np.flatnonzero(is_known).tolist()]
    at = window.unread_from[own].tolist()
    alike &= ~is_known & is_large
    for step in last_steps:
        of_step = np.flatnonzero(alike & (window.made_in == step))
        for stack in np.unique(lives.stack[models]).tolist():
            those = models[lives.stack[models] == stack]
            these = of_step[lives.stack[of_step] == stack]
            if len(those) == len(these):
                own += these.tolist()
                rest = window.unread_from[those] - lives.alloc[those]
                at += np.minimum(lives.alloc[these] + rest, lives.free[these]).tolist()
    return np.array(own, dtype=np.int64), np.array(at, dtype=np.int64)


def _has_gone_on(window: Window, event: int, peak: int) -> bool:
    """Whether the program has left its statement of an event by the peak.

    Then something was allocated outside of that.
    """
    stacks = window.trace.events.stack
    frames = window.trace.stack(int(stacks[event]))
    own = next(iter(window.user_frames(frames)), None)
    if own is None:
        return True
    statement = frames[frames.index(own) :]
    later = np.unique(stacks[event + 1 : peak + 1][stacks[event + 1 : peak + 1] != EMPTY])
    return any(window.trace.stack(one)[-len(statement) :] != statement for one in later.tolist())


def _next_allocation(window: Window, event: int) -> int:
    later = np.flatnonzero(window.trace.events.action[event:] == Action.ALLOC)
    return event + int(later[0]) if len(later) else -1


def _user_line(window: Window, event: int) -> Frame | None:
    """The innermost line of the program's own in an event's stack."""
    if not 0 <= event < window.events:
        return None
    frames = window.user_frames(window.trace.stack(int(window.trace.events.stack[event])))
    return frames[0] if frames else None


RULE = UnreadAtPeak()
