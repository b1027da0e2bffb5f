"""idle-copy: a model that was only asked for its parameters stays, though nothing reads it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.rules.running_variables import still_running, variable_of
from memprof.source_code.frame_kind import FrameKind, frame_kind
from memprof.source_code.last_reads import last_read_before, reads_again
from memprof.source_code.program import Place, called_name, calls_in, place_of
from memprof.source_code.scopes import reads_of
from memprof.trace import Frame
from memprof.units import format_bytes
from memprof.views.window import Ints, Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.1
"""Of the peak, with all tensors of the model."""
_LEAST_STEPS = 8
"""In which nothing reads it: an evaluation may come now and then."""
_KNOWN = 0.9
"""Of its bytes: small tensors' last reads are not recorded."""
_FEWEST = 4
"""Tensors that a model has, at least."""
_ASKED = frozenset(("buffers", "named_buffers", "named_parameters", "parameters", "state_dict"))
"""Methods by which a model hands out its tensors …"""
_HANDED = frozenset(("dict", "list", "tuple"))
"""… and functions that keep them as they are."""
_PUT = frozenset(("eval", "load_state_dict", "requires_grad_", "train"))
"""Methods that make it what it is to be."""
_COPYING, _MAKING = "deepcopy", "__init__"


@dataclass(frozen=True, slots=True, eq=False)
class IdleCopies(Match):
    """The variable that has the model."""

    name: str = ""
    place: Place | None = None
    """The statement that binds it."""
    last_line: int = 0
    """On which it is read last."""
    copied: str = ""
    """What it is a copy of, as written: ``unet``; empty where it is made otherwise."""
    copied_to: str = ""
    """The only variable that a copy of it is bound to; empty for none."""


class IdleCopy(WasteRule[IdleCopies]):
    """`ema = EMAModel(copied.parameters())`, which copies them itself; and `copied` stays."""

    name = "idle-copy"
    summary = "a model that was only asked for its parameters stays, though nothing reads it"
    fixes = ("del_ref",)
    yields_to = ("frozen-twin",)

    def matches(self, window: Window) -> Iterator[IdleCopies]:
        """Models in variables of running functions, which no operator reads while others train."""
        if window.peak.event < 0 or len(window.steps) < _LEAST_STEPS:
            return
        lives = window.lives
        mask = window.at_peak & ~window.has_owner & (lives.alloc >= 0)
        by_name: dict[tuple[str, int, str], tuple[Place, list[int]]] = {}
        for stack in np.unique(lives.stack[mask]).tolist():
            made = _variable(window, stack)
            if made is not None:
                place, name = made
                key = (place.program.filename, place.line, name)
                by_name.setdefault(key, (place, []))[1].append(stack)
        for (_, _, name), (place, stacks) in by_name.items():
            rows = np.flatnonzero(mask & np.isin(lives.stack, stacks))
            match = _match(window, rows, name, place)
            if match is not None:
                yield match

    def title(self, match: IdleCopies) -> str:
        """Say in which variable, and since when."""
        return f"are a model in `{match.name}`, which nothing reads after line {match.last_line}"

    def advice(self, match: IdleCopies, case: Case) -> Iterator[Advice]:
        """Drop it; or make none, where it is a copy."""
        why = (
            f"`{match.name}` keeps {format_bytes(match.nbytes)} that nothing reads after line "
            f"{match.last_line}: `del {match.name}` there"
        )
        if match.copied:
            why += (
                f", or make no copy: hand on `{match.copied}` itself, if what is given its "
                "parameters makes copies of them"
            )
        elif match.copied_to:
            why += f", or make no copy, where `{match.copied_to}` may be that model itself"
        assert match.place is not None
        place = match.place.program.at(match.last_line)
        yield Advice("del_ref", f"{why}.", match.place if match.copied else place or case.site)


def _variable(window: Window, stack: int) -> tuple[Place, str] | None:
    """The variable of a running function that has what a stack made, if no more reads it."""
    made_by, now = window.trace.stack(stack), window.stack_at_peak
    back = still_running(made_by, now)
    place = place_of(made_by[-back]) if back is not None else None
    if back is None or place is None or not isinstance(place.statement, ast.Assign):
        return None
    line_now = now[-back].line
    inner = made_by[:-back]
    name = variable_of(place, inner, *_classes(inner))
    if not name or line_now <= (place.statement.end_lineno or place.line):
        return None
    if reads_again(place, name, line_now) or not _is_only_asked(place, name):
        return None
    return place, name


def _classes(inner: Sequence[Frame]) -> list[str]:
    """The classes of the program whose objects frames make: ``Net`` of ``Net.__init__``."""
    names = [one.name for one in inner if frame_kind(one.filename) is FrameKind.USER]
    return [name.split(".")[-2] for name in names if name.endswith(f".{_MAKING}")]


def _is_only_asked(place: Place, name: str) -> bool:
    """Whether a function asks a variable for its parameters, or a copy, and for nothing else."""
    is_asked = False
    for read, around in reads_of(place.scope, name):
        attribute = around[-1]
        if isinstance(attribute, ast.Call) and called_name(attribute) == _COPYING:
            is_asked = attribute.args == [read]
            if not is_asked:
                return False
            continue
        if not isinstance(attribute, ast.Attribute):
            return False
        call = around[-2] if len(around) > 1 else None
        is_method = isinstance(call, ast.Call) and call.func is attribute
        if attribute.attr in _ASKED:
            above = around[-3]
            is_given = isinstance(above, (ast.Call, ast.keyword)) and is_method
            if not is_given or called_name(above) in _HANDED:
                return False
            is_asked = True
        elif is_method and (attribute.attr not in _PUT or not isinstance(around[-3], ast.Expr)):
            return False
    return is_asked


def _match(window: Window, rows: Ints, name: str, place: Place) -> IdleCopies | None:
    """The model, where its last read is known and long past."""
    lives = window.lives
    nbytes = int(lives.size[rows].sum())
    known = rows[window.unread_from[rows] < lives.free[rows]]
    if len(rows) < _FEWEST or window.share(nbytes) < _LEAST_SHARE:
        return None
    if int(lives.size[known].sum()) < _KNOWN * nbytes:
        return None
    end = int(window.unread_from[known].max())
    steps = window.step_of_event[min(end, window.events - 1) : window.peak.event + 1]
    if end >= window.peak.event or len(np.unique(steps)) < _LEAST_STEPS:
        return None
    mask = np.zeros(len(lives), dtype=bool)
    mask[rows] = True
    copies = calls_in(place.statement, _COPYING)
    return IdleCopies(
        row=window.main_site(mask),
        rows=rows,
        nbytes=nbytes,
        saving=window.replayed(window.ended_at(rows, np.full(len(rows), end))),
        tentative=window.may_be_read_unseen,
        name=name,
        place=place,
        last_line=last_read_before(place, name, _line_at_peak(window, place)),
        copied=ast.unparse(copies[0].args[0]) if copies and copies[0].args else "",
        copied_to=_copied_to(place, name),
    )


def _copied_to(place: Place, name: str) -> str:
    """The variable that the only copy of a model is bound to; empty for none, or several."""
    copies = [
        around[-1]
        for _, around in reads_of(place.scope, name)
        if isinstance(around[-1], ast.Call) and called_name(around[-1]) == _COPYING
    ]
    at = place.program.place(copies[0]) if len(copies) == 1 else None
    statement = at.statement if at is not None else None
    if not isinstance(statement, ast.Assign) or statement.value is not copies[0]:
        return ""
    return ast.unparse(statement.targets[0])


def _line_at_peak(window: Window, place: Place) -> int:
    """The line at which the function of a statement is at the peak."""
    frames = window.stack_at_peak
    return next(
        frame.line
        for frame in frames
        if frame.filename == place.program.filename
        and (at := place_of(frame)) is not None
        and at.scope is place.scope
    )


RULE = IdleCopy()
