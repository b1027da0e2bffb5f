"""uncalled-module: a part of a model that no step calls, and that nothing reads."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.registered_buffers import has_known_bases, mentions
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.called_attributes import is_only_called
from memprof.source_code.frame_kind import FrameKind, frame_kind
from memprof.source_code.program import (
    Place,
    assigned,
    bound_names,
    calls_in,
    place_of,
    source_of,
)
from memprof.source_code.verbs import SAVING
from memprof.trace import Category, Frame, Phase
from memprof.units import format_bytes
from memprof.views.window import Ints, Window

__all__ = ["RULE"]

_LEAST_STEPS = 8
"""In which it is not called: a part may be for an evaluation now and then."""
_LEAST_SHARE = 0.1
"""Of the peak, in parameters of one part."""
_SAVING = SAVING - {"load_state_dict"}
_NUMBER = re.compile(r"\.(\d+)")
_LEARNING = (Category.GRADIENT, Category.OPTIMIZER_STATE)


@dataclass(frozen=True, slots=True, eq=False)
class UncalledModule(Match):
    """Parameters of a part of a model."""

    module: str = ""
    """Its path."""
    place: Place | None = None
    """The program's statement that makes it."""
    line: int = 0
    """The line of it that does, of a dictionary of several parts; 0 for the first."""
    is_own: bool = False
    """The program's own class has it; else a library's has."""
    called_at: int = 0
    """The line that called it last, before all steps; 0 where nothing ever did."""
    unused: str = ""
    """By what it is to be dropped, where the program has ended and did not call it, though its
    files may name it: ``layers[4:12]``."""


class UncalledModules(WasteRule[UncalledModule]):
    """A decoder from an earlier version of the model, which is still made in `__init__`."""

    name = "uncalled-module"
    summary = "a part of a model is never called"
    fixes = ("del_ref",)

    def matches(self, window: Window) -> Iterator[UncalledModule]:
        """Each part whose parameters make much of the peak, in a model whose other parts run."""
        if len(window.steps) < _LEAST_STEPS or window.peak.event < 0:
            return
        for module, rows in _uncalled(window).items():
            nbytes = int(window.lives.size[rows].sum())
            if window.share(nbytes) < _LEAST_SHARE:
                continue
            row = int(rows[np.argmax(window.lives.size[rows])])
            container, attribute = module.split(".")[-2:]
            place, line = _own_place(window, row, attribute), 0
            if place is None:
                place, line = _place_of_entry(window, row, container, attribute)
            is_own = place is not None
            if place is None and _is_of_library(window, row, attribute):
                place = place_of(window.frame_of(row))
            done = _done_before(window, attribute) if place is None else None
            if done is not None:
                yield UncalledModule(
                    row=row,
                    rows=rows,
                    nbytes=nbytes,
                    saving=window.replayed(window.ended_at(rows, np.full(len(rows), done.event))),
                    module=module,
                    place=done.place,
                    called_at=done.line,
                )
            elif place is not None:
                yield UncalledModule(
                    row=row,
                    rows=rows,
                    nbytes=nbytes,
                    saving=window.replayed(window.whole(rows)),
                    module=module,
                    place=place,
                    line=line,
                    is_own=is_own,
                )
        yield from _never_called(window)

    def title(self, match: UncalledModule) -> str:
        """Say whose they are."""
        return f"are parameters of `{match.module}`, which no step calls"

    def advice(self, match: UncalledModule, case: Case) -> Iterator[Advice]:  # noqa: ARG002 - the match says all
        """Make the model without it."""
        attribute = match.module.rpartition(".")[2]
        if match.called_at:
            why = (
                f"Line {match.called_at} is the last that calls `{match.module}`, of "
                f"{format_bytes(match.nbytes)}, before all steps: drop it when this has run "
                f"(`del …{attribute}`)."
            )
            yield Advice("del_ref", why, match.place)
            return
        why = f"No step calls `{match.module}`, of {format_bytes(match.nbytes)}, "
        if match.unused:
            why += (
                "and the program has come to its end without it: do not make it, or drop it once "
                f"the weights are loaded (`del model.{match.unused}`)."
            )
        elif match.is_own:
            why += f"and nothing in the program's files reads `{attribute}`: do not make it."
        else:
            why += (
                "and nothing in the program's files names it: make the part of the model that is "
                f"used, or drop this one (`del model.{attribute}`)."
            )
        yield Advice("del_ref", why, match.place, line=match.line)


@dataclass(frozen=True, slots=True, eq=False)
class _Done:
    """The last call of a part, before all steps."""

    event: int
    """The first event after it."""
    line: int
    place: Place
    """The statement of the function around that, or of what called it."""


def _done_before(window: Window, attribute: str) -> _Done | None:
    """Where what has a name was called last, if that is long ago and recording has ended since.

    Then nothing called it later, whatever the source says.
    """
    if not window.reaches_end:
        return None
    calls = {
        (program.filename, line)
        for program in window.programs
        for call in calls_in(program.tree, attribute)
        for line in range(call.lineno, (call.end_lineno or call.lineno) + 1)
    }
    stacks = window.trace.events.stack
    own = [
        one
        for one in np.unique(stacks).tolist()
        if any((frame.filename, frame.line) in calls for frame in window.trace.stack(one))
    ]
    events = np.flatnonzero(np.isin(stacks, own))
    if not len(events) or len(window.steps) < 2 * _LEAST_STEPS:
        return None
    last = int(events[-1])
    if window.step_of_event[last] > window.steps[0]:
        return None
    frames = window.user_frames(window.trace.stack(int(stacks[last])))
    at = next(at for at, one in enumerate(frames) if (one.filename, one.line) in calls)
    place = place_of(frames[min(at + 1, len(frames) - 1)])
    return _Done(last + 1, frames[at].line, place) if place is not None else None


def _never_called(window: Window) -> Iterator[UncalledModule]:
    """What the program's own class makes and the program ended without having called.

    Its files may name it, in the `forward` of a base class or by what a setting chooses, but only
    to call it; and save no weights, which may be for another program.
    """
    is_whole = window.reaches_end and window.number == 0
    if not is_whole or len(window.steps) < 2 * _LEAST_STEPS:
        return
    if any(calls_in(program.tree, *_SAVING) for program in window.programs):
        return
    groups: dict[str, list[tuple[str, Ints]]] = {}
    for path, rows in _uncalled(window).items():
        parent, _, last = path.rpartition(".")
        groups.setdefault(parent if last.isdigit() else path, []).append((last, rows))
    for path, parts in groups.items():
        rows = np.concatenate([rows for _, rows in parts])
        nbytes = int(window.lives.size[rows].sum())
        row = int(rows[np.argmax(window.lives.size[rows])])
        names = path.split(".")
        attribute = next((one for one in names[:0:-1] if _making(window, row, one)), "")
        place = _making(window, row, attribute) if attribute else None
        if window.share(nbytes) < _LEAST_SHARE or place is None:
            continue
        if _own_place(window, row, attribute) is not None or not is_only_called(
            window.programs, attribute
        ):
            continue
        numbers = [int(last) for last, _ in parts if last.isdigit()]
        lowest, highest = min(numbers, default=-1), max(numbers, default=-1)
        is_several = lowest < highest
        entry = f"[{lowest}:{highest + 1}]" if is_several else f"[{lowest}]"
        of_list = f".{lowest} to .{highest}" if is_several else f".{lowest}"
        yield UncalledModule(
            row=row,
            rows=rows,
            nbytes=nbytes,
            saving=window.replayed(window.whole(rows)),
            module=path + (of_list if numbers else ""),
            place=place,
            unused=_NUMBER.sub(r"[\1]", ".".join(names[1:])) + (entry if numbers else ""),
        )


def _making(window: Window, row: int, attribute: str) -> Place | None:
    """The statement of a class of the program's that gives it an attribute."""
    for frame in window.user_frames(window.stack(row)):
        place = place_of(frame)
        if place is not None and place.class_ is not None and _binds(place, attribute):
            return place
    return None


def _uncalled(window: Window) -> dict[str, Ints]:
    """Parameters at the peak of the outermost parts that are not called, of models that are.

    What has gradients is used, by its parameters if not by a call.
    """
    names = window.owners.module.names
    labels = window.trace.tables.labels
    forward = np.array([one.phase == Phase.FORWARD for one in labels])
    used = {labels[at].module for at in np.unique(window.trace.events.label) if forward[at]}
    used |= {names[at] for at in np.unique(window.module[np.isin(window.category, _LEARNING)])}
    used = {
        ".".join(parts[:end]) for parts in map(_parts, used) for end in range(1, len(parts) + 1)
    }
    rows_of: dict[str, list[int]] = {}
    parameters = window.at_peak & (window.category == Category.PARAMETER)
    for row in np.flatnonzero(parameters).tolist():
        parts = _parts(names[window.module[row]])
        around = (".".join(parts[:end]) for end in range(1, len(parts) + 1))
        outermost = next((path for path in around if path not in used), "")
        if "." in outermost:
            rows_of.setdefault(outermost, []).append(row)
    return {path: np.array(rows, dtype=np.int64) for path, rows in rows_of.items()}


def _parts(path: str) -> list[str]:
    return path.split(".")


def _own_place(window: Window, row: int, attribute: str) -> Place | None:
    """The program's statement ``self.decoder = …`` that made it, if no other names that."""
    for frame in window.user_frames(window.stack(row)):
        place = place_of(frame)
        if place is None or not _binds(place, attribute) or place.class_ is None:
            continue
        is_alone = has_known_bases(place) and mentions(window.programs, attribute) == 1
        return place if is_alone else None
    return None


def _place_of_entry(
    window: Window, row: int, container: str, attribute: str
) -> tuple[Place | None, int]:
    """The statement that makes it as an entry of a dictionary of modules, and the line that does.

    ``{"decoder": …}`` or ``self.parts["decoder"] = …``, if no other names that, and the program
    asks the dictionary for no entry but by a name that is written out.
    """
    for frame in window.user_frames(window.stack(row)):
        place = place_of(frame)
        line = _line_of_entry(place.statement, attribute) if place is not None else 0
        if place is None or not line or place.class_ is None:
            continue
        is_alone = has_known_bases(place) and mentions(window.programs, attribute) == 1
        is_known = all(_is_read_by_name(one.tree, container) for one in window.programs)
        return (place, line) if is_alone and is_known else (None, 0)
    return None, 0


def _line_of_entry(statement: ast.stmt, key: str) -> int:
    """The line at which a statement makes a module under a key; 0 where it makes none."""
    entries: list[tuple[ast.expr | None, ast.expr | None]] = []
    for node in ast.walk(statement):
        if isinstance(node, ast.Dict):
            entries += zip(node.keys, node.values, strict=True)
    for target, value in assigned(statement):
        if isinstance(target, ast.Subscript):
            entries.append((target.slice, value))
    return next(
        (
            name.lineno
            for name, value in entries
            if isinstance(name, ast.Constant) and name.value == key and isinstance(value, ast.Call)
        ),
        0,
    )


def _is_read_by_name(tree: ast.AST, attribute: str) -> bool:
    """Whether each read of an attribute takes an entry by a constant: ``self.parts["a"]``."""
    reads = {
        id(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr == attribute
        and isinstance(node.ctx, ast.Load)
    }
    by_name = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant)
    }
    return reads <= by_name


def _is_of_library(window: Window, row: int, attribute: str) -> bool:
    """Whether a library's class, none of torch's, makes it, and the program never names it."""
    return mentions(window.programs, attribute) == 0 and any(
        frame_kind(frame.filename) is FrameKind.LIBRARY and _binds(_library_place(frame), attribute)
        for frame in window.stack(row)
    )


def _library_place(frame: Frame) -> Place | None:
    program = source_of(frame.filename)
    return program.at(frame.line) if program is not None else None


def _binds(place: Place | None, attribute: str) -> bool:
    return place is not None and any(
        isinstance(target, ast.Attribute) and target.attr == attribute
        for target in bound_names(place.statement)
    )


RULE = UncalledModules()
