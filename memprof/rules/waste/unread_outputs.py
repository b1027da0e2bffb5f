"""unread-outputs: a model is asked for what it computes on the way, and nothing reads that."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.forward_passes import runs_within
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.frame_kind import FrameKind, frame_kind
from memprof.source_code.idioms import keyword
from memprof.source_code.program import Place, Program, assigned, calls_in, place_of
from memprof.trace import Category, Phase
from memprof.units import format_bytes
from memprof.views.window import Bools, Ints, Window

__all__ = ["RULE", "unread_flag"]

_LEAST_SHARE = 0.1
"""Of the peak."""
_FLAGS = {
    "output_hidden_states": (
        *("hidden_states", "encoder_hidden_states", "decoder_hidden_states"),
        "image_hidden_states",
    ),
    "output_attentions": (
        *("attentions", "encoder_attentions", "decoder_attentions", "cross_attentions"),
    ),
}
"""Arguments of models of transformers, and the fields of what they return that they fill."""
_CACHES = "/transformers/cache_utils.py"
"""Keys and values are kept for the next token, whatever a model is asked for."""


@dataclass(frozen=True, slots=True, eq=False)
class UnreadOutputs(Match):
    """What is asked for, and the call that asks."""

    flag: str = ""
    filename: str = ""
    line: int = 0


class UnreadOutputsOfModels(WasteRule[UnreadOutputs]):
    """`model.generate(…, output_hidden_states=True)`, of which the tokens are read."""

    name = "unread-outputs"
    summary = "a model is asked for hidden states or attentions that nothing reads"
    fixes = ("drop_outputs",)

    def matches(self, window: Window) -> Iterator[UnreadOutputs]:
        """What layers made under such a call without gradients, that is there after their pass."""
        if window.peak.event < 0:
            return
        kept = _kept_beyond_pass(window)
        rows = np.flatnonzero(kept & window.at_peak)
        if not len(rows) or window.share(int(window.lives.size[rows].sum())) < _LEAST_SHARE:
            return
        for frame in window.user_frames(window.stack(int(rows[0]))):
            place = place_of(frame)
            flag = unread_flag(place, window.programs) if place is not None else ""
            if place is None or not flag:
                continue
            stacks = np.unique(window.lives.stack[kept]).tolist()
            own = [stack for stack in stacks if frame in window.trace.stack(stack)]
            every = np.flatnonzero(kept & np.isin(window.lives.stack, own))
            there = every[window.at_peak[every]]
            yield UnreadOutputs(
                row=int(there[0]),
                rows=there,
                nbytes=int(window.lives.size[there].sum()),
                saving=window.replayed(window.ended_at(every, _ends_of_use(window, every))),
                flag=flag,
                filename=place.program.filename,
                line=place.line,
            )
            return

    def title(self, match: UnreadOutputs) -> str:
        """Say what they are."""
        what = match.flag.removeprefix("output_").replace("_", " ")
        return f"are {what} of all layers, which a call asks for and nothing reads"

    def advice(self, match: UnreadOutputs, case: Case) -> Iterator[Advice]:
        """Ask for none."""
        yield Advice(
            "drop_outputs",
            f"`{match.flag}=True` has the model return {format_bytes(match.nbytes)} that nothing "
            "reads: leave it out.",
            case.place_at(match.filename, match.line) or case.site,
        )


def unread_flag(place: Place, programs: Sequence[Program]) -> str:
    """The argument of a statement's call that asks for what no program reads; empty without one."""
    if any(isinstance(one, ast.Tuple) for one in getattr(place.statement, "targets", ())):
        return ""  # the result is taken apart
    for call in calls_in(place.statement):
        for flag, fields in _FLAGS.items():
            value = keyword(call, flag)
            is_asked = isinstance(value, ast.Constant) and value.value is True
            if is_asked and not any(_may_read(program, fields) for program in programs):
                return flag
    return ""


def _may_read(program: Program, fields: Sequence[str]) -> bool:
    """Whether a program names one of the fields, or takes a result apart by places."""
    nodes = list(program.nodes)
    lists = {
        target.id
        for node in nodes
        for target, value in assigned(node)
        if isinstance(target, ast.Name) and isinstance(value, (ast.List, ast.ListComp))
    }
    return any(
        (isinstance(node, ast.Attribute) and node.attr in fields)
        or (isinstance(node, ast.Constant) and node.value in fields)
        or _takes_by_place(node, lists)
        for node in nodes
    )


def _takes_by_place(node: ast.AST, lists: Collection[str]) -> bool:
    """``output[2]``, ``output[-1]``, ``output.to_tuple()``: the first two are of other fields."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) and node.func.attr == "to_tuple"
    if not isinstance(node, ast.Subscript) or not isinstance(node.value, ast.Name):
        return False
    if node.value.id in lists:
        return False  # the program's own, and no output
    place = node.slice
    if isinstance(place, ast.Constant):
        return isinstance(place.value, int) and place.value > 1
    return isinstance(place, (ast.Slice, ast.UnaryOp))


def _kept_beyond_pass(window: Window) -> Bools:
    """What modules within a model make in a pass without a backward pass, and leave behind it."""
    lives = window.lives
    names = [label.module for label in window.trace.tables.labels]
    candidate = (window.module > 0) & ~window.has_owner & (window.freed_by != Phase.BACKWARD)
    candidate &= (window.phase == Phase.FORWARD) & (window.category != Category.ACTIVATION)
    inner = np.array(["." in name for name in window.owners.module.names], dtype=bool)
    candidate &= inner[window.module]
    kept = np.zeros(len(lives), dtype=bool)
    for root in sorted({name.partition(".")[0] for name in names if name}):
        inside = np.array([name.partition(".")[0] == root for name in names], dtype=bool)
        for first, last, following in runs_within(window, inside):
            low, high = np.searchsorted(lives.alloc, [first, last + 1])
            rows = np.arange(low, high)
            kept[rows[candidate[rows] & (lives.free[rows] > following)]] = True
    caches = [
        stack
        for stack in np.unique(lives.stack[kept]).tolist()
        if _is_of_cache(window, stack) or not _is_of_library(window, stack)
    ]
    kept &= ~np.isin(lives.stack, caches)
    return kept


def _is_of_cache(window: Window, stack: int) -> bool:
    frames = window.trace.stack(stack)
    return any(_CACHES in frame.filename.replace("\\", "/") for frame in frames)


def _is_of_library(window: Window, stack: int) -> bool:
    kinds = (frame_kind(frame.filename) for frame in window.trace.stack(stack))
    return next((kind for kind in kinds if kind is not FrameKind.TORCH), None) is FrameKind.LIBRARY


def _ends_of_use(window: Window, rows: Ints) -> Ints:
    """Where each is read last, as far as is known: when the next layer has made its result."""
    allocs = window.lives.alloc[rows]
    return np.append(allocs[1:], allocs[-1:] + 1)


RULE = UnreadOutputsOfModels()
