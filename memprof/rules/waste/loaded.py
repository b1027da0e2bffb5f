"""loaded: what `torch.load` read from a file is there beside the model, or at the peak."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.lifespan import FEWEST_STEPS, outlive_steps
from memprof.rules.references import advice_on_exceptions, advice_on_views
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.enclosed_reads import enclosed_read
from memprof.source_code.idioms import growing
from memprof.source_code.last_reads import reads_again
from memprof.source_code.lasting_names import Binding, first_binding
from memprof.source_code.patch import diff, with_keyword
from memprof.source_code.program import Place, assigned, called_name, calls_in, own_calls
from memprof.source_code.scopes import qualified_name
from memprof.trace import Frame
from memprof.units import format_bytes
from memprof.views.peak_without import Saving
from memprof.views.window import Bools, Ints, Window

__all__ = ["RULE", "LoadedCheckpoint"]

_LOADERS = re.compile(r"/torch/serialization\.py$|/safetensors/")
"""Files of the libraries whose functions read tensors from a file."""
_OF_FILES = frozenset(("load_checkpoint", "load_file", "load_state_dict_from_file"))
"""Functions of these libraries that load one file."""
_ENTRIES = frozenset(("get", "pop", "setdefault"))
"""Methods of a dict that return what it has."""
_MOST_PARTS = 3
_MOSTLY = 0.5
"""Share of the bytes, or of the steps: a checkpoint also has what is no parameter."""


@dataclass(frozen=True, slots=True, eq=False)
class LoadedCheckpoint(Match):
    """Tensors from files, and how long they are there."""

    name: str = ""
    """The user's name for what was loaded; empty where the source does not show it."""
    passing: bool = False
    """They are there at the peak only; else they stay over the steps."""
    dropped: Saving | None = None
    """What is saved where they go before the first step: until then the model is filled from
    them."""


class LoadedFile(WasteRule[LoadedCheckpoint]):
    """A checkpoint is loaded to the device, and a model that has its own copy is filled from it."""

    name = "loaded"
    summary = "tensors that were loaded from a file are there beside the model"
    fixes = ("map_location_cpu", "del_ref", "running_total", "clear_traceback", "clone_view")
    names_holders = True

    def matches(self, window: Window) -> Iterator[LoadedCheckpoint]:
        """Tensors that a loader made and that are no model's: those that stay, else at the peak."""
        if len(window.steps) < FEWEST_STEPS:
            return
        from_files = ~window.has_owner & _made_by_loaders(window)
        loaded = from_files & window.at_peak
        staying = loaded & outlive_steps(window)
        mask = staying if staying.any() else loaded
        if not mask.any():
            return
        row = window.main_site(mask)
        binding = first_binding(window.stack(row))
        rows = np.flatnonzero(mask)
        ends = np.full(len(rows), _end_of_loading(window, rows, row, binding))
        yield LoadedCheckpoint(
            row=row,
            rows=rows,
            nbytes=window.bytes_of(mask),
            saving=window.replayed(window.whole(rows)),
            dropped=window.replayed(window.ended_at(rows, ends)) if staying.any() else None,
            name=binding.target if binding is not None else "",
            passing=not staying.any(),
            tentative=_in_most_steps(window, from_files)
            if not staying.any()
            else not _is_of_model(window, staying),
        )

    def title(self, match: LoadedCheckpoint) -> str:
        """Say beside what they are there."""
        if match.passing:
            return "were loaded from files and are there at once"
        return "were loaded from a file and are still there beside the model"

    def advice(self, match: LoadedCheckpoint, case: Case) -> Iterator[Advice]:
        """Load to the host; else, or where it lies there already, drop it once it has been used."""
        place = case.site
        yield from advice_on_views(case)
        calls = own_calls(place.statement, "load") if place is not None else ()
        loads = [call for call in calls if place is not None and _is_torch_load(place, call)]
        on_host = case.finding.device == "cpu"
        if on_host:
            yield from advice_on_exceptions(case)
            yield _drop(match, place, case)
        if not any(map(_goes_to_host, loads)):
            yield _load_to_host(match, place, loads)
        if not on_host:
            yield from advice_on_exceptions(case)
            yield _drop(match, place, case)


def _end_of_loading(window: Window, rows: Ints, row: int, binding: Binding | None) -> int:
    """The event by which the function that loads has returned, or else the step has ended.

    Until then a model may be filled from what was loaded. In a function that goes on for long, as
    one that trains does: the event from which on it no longer reads the name of what was loaded.
    """
    last = int(window.lives.alloc[rows].max())
    if last < 0:
        return 0
    steps = window.step_of_event[: window.events]
    following = int(np.searchsorted(steps, steps[last], side="right"))
    frames = _frames_of_function(window, window.frame_of(row))
    inside = np.array([not frames.isdisjoint(one) for one in window.trace.tables.stacks])
    through = np.flatnonzero(inside[window.trace.events.stack[last:following]])
    end = last + int(through[-1]) + 1 if len(through) else following
    if binding is None:
        return end
    frames = _frames_of_function(window, window.stack(row)[binding.depth])
    reading = {at for at in frames if _reads_on(binding, window.trace.tables.frames[at].line)}
    unread = np.array(
        [
            not frames.isdisjoint(one) and reading.isdisjoint(one)
            for one in window.trace.tables.stacks
        ]
    )
    after = np.flatnonzero(unread[window.trace.events.stack[last + 1 : end]])
    if len(after):
        return last + 1 + int(after[0])
    # A name that is read later may be a number of the file: operators know what reads its tensors.
    unread_from = window.unread_from[rows]
    is_known = unread_from < window.lives.free[rows]
    known = int(window.lives.size[rows[is_known]].sum())
    if known < _MOSTLY * int(window.lives.size[rows].sum()):
        return end
    return min(end, max(last + 1, int(unread_from[is_known].max())))


def _frames_of_function(window: Window, frame: Frame) -> set[int]:
    """All frames of the function that one is of."""
    return {
        at
        for at, one in enumerate(window.trace.tables.frames)
        if (one.filename, one.name) == (frame.filename, frame.name)
    }


def _reads_on(binding: Binding, line: int) -> bool:
    """Whether a function that binds what was loaded reads it, or a part of it, at a line or later.

    Where it is bound to anything but a variable, others may read it.
    """
    scope = binding.place.scope
    if not binding.target.isidentifier() or line <= binding.place.line:
        return True
    parts = [
        target.id
        for node in ast.walk(scope)
        for target, value in assigned(node)
        if isinstance(target, ast.Name) and _is_part(value, binding.target)
    ]
    return any(reads_again(binding.place, one, line) for one in (binding.target, *parts))


def _is_part(value: ast.expr | None, name: str) -> bool:
    """Whether an expression is an entry or an attribute of a name: ``name["model"]``."""
    while isinstance(value, (ast.Subscript, ast.Attribute)):
        value = value.value
        if isinstance(value, ast.Name) and value.id == name:
            return True
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        return value.func.attr in _ENTRIES and ast.unparse(value.func.value) == name
    return False


def _load_to_host(
    match: LoadedCheckpoint, place: Place | None, loads: Sequence[ast.Call]
) -> Advice:
    patch = ""
    if place is not None and loads:
        patch = diff(place.program, with_keyword(loads[-1], "map_location", '"cpu"'))
    there = "there at the peak" if match.passing else "still there when the model has its own copy"
    why = f"`torch.load` put {format_bytes(match.nbytes)} on the device, {there}."
    return Advice("map_location_cpu", why, place, patch=patch)


def _drop(match: LoadedCheckpoint, place: Place | None, case: Case) -> Advice:
    keeping = _loading_many(case) if match.passing else None
    if keeping is not None:
        why = (
            "All files are loaded before any is used: load one after the other, and add up what is "
            "made of it."
        )
        return Advice("running_total", why, keeping)
    what = f"`{match.name}`" if match.name else "the loaded file"
    used = (
        "as soon as it has been used" if match.passing else "once the model has been filled from it"
    )
    read = enclosed_read(place, match.name) if place is not None and match.name else None
    if read is not None:
        parts = " and ".join(f"`{one}`" for one in read.parts[:_MOST_PARTS])
        why = (
            f"{read.function} reads {parts} later, and keeps all of {what} for that: put what it "
            f"reads into variables of their own before it, and drop {what} {used}."
        )
        return Advice("del_ref", why[0].upper() + why[1:], read.place, saving=match.dropped)
    later = _read_by_others(match.name, place) if place is not None else []
    if later:
        parts = " and ".join(f"`{one}`" for one in later[:_MOST_PARTS])
        why = f"Keep of {what} what is read later ({parts}), and drop the rest {used}."
        return Advice("del_ref", why, place, saving=match.dropped)
    return Advice("del_ref", f"Drop {what} {used}.", place, saving=match.dropped)


def _read_by_others(name: str, place: Place) -> list[str]:
    """The entries of an attribute, as written, that other functions of the file read."""
    if "." not in name:
        return []
    own = {id(node) for node in ast.walk(place.scope)}
    return list(
        dict.fromkeys(
            ast.unparse(node)
            for node in place.program.nodes
            if isinstance(node, ast.Subscript)
            and isinstance(node.ctx, ast.Load)
            and id(node) not in own
            and ast.unparse(node.value) == name
        )
    )


def _loading_many(case: Case) -> Place | None:
    """The statement that keeps what each turn of a loop loads: one around it, or its own.

    That is the statement that loads, or one that calls the function which does.
    """
    called = "load"
    for frame, place in case.frames:
        if place.loop is not None and growing(place) is not None:
            return place
        for node in ast.walk(place.statement):
            if isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp)):
                values: list[ast.expr] = [node.elt]
            elif isinstance(node, ast.DictComp):
                values = [node.key, node.value]
            else:
                continue
            names = {called_name(call) for value in values for call in calls_in(value)}
            if called in names or names & _OF_FILES:
                return place
        called = frame.name.rpartition(".")[2]
    return None


def _goes_to_host(call: ast.Call) -> bool:
    """Whether the call says ``map_location="cpu"`` already."""
    location = next((one.value for one in call.keywords if one.arg == "map_location"), None)
    if location is None and len(call.args) > 1:
        location = call.args[1]
    if isinstance(location, ast.Call) and location.args:  # torch.device("cpu")
        location = location.args[0]
    return isinstance(location, ast.Constant) and location.value == "cpu"


def _in_most_steps(window: Window, from_files: Bools) -> bool:
    """Whether files are loaded step by step: samples of a data set, which are meant."""
    steps = np.unique(window.made_in[from_files & (window.made_in >= 0)])
    return len(steps) > _MOSTLY * len(window.steps)


def _is_of_model(window: Window, loaded: Bools) -> bool:
    """Whether most of it has the sizes of what a model and its optimizer consist of.

    Else it may be a table or a data set that a step reads. A model that is made of plain tensors is
    known by their staying.
    """
    of_model = window.has_owner | (window.stays & ~_made_by_loaders(window))
    alike = loaded & np.isin(window.lives.requested, window.lives.requested[of_model])
    return window.bytes_of(alike) > _MOSTLY * window.bytes_of(loaded)


def _is_torch_load(place: Place, call: ast.Call) -> bool:
    return "torch.load" in (qualified_name(place, call.func), ast.unparse(call.func))


def _made_by_loaders(window: Window) -> Bools:
    """Whether a function that reads tensors from files is in the stack of each lifetime."""
    tables = window.trace.tables
    loaders = [bool(_LOADERS.search(frame.filename.replace("\\", "/"))) for frame in tables.frames]
    of_stack = np.array([any(loaders[i] for i in stack) for stack in tables.stacks], dtype=bool)
    in_loaders: Bools = of_stack[window.lives.stack]
    return in_loaders


RULE = LoadedFile()
