"""unread-outputs: a model is asked for what it computes on the way, and nothing reads that."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeGuard

import numpy as np

from memprof.rules.case import Case
from memprof.rules.forward_passes import kept_beyond_pass
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.frame_kind import FrameKind, frame_kind, is_of_library
from memprof.source_code.idioms import arguments_named, keyword
from memprof.source_code.program import Place, Program, assigned, calls_in, place_of
from memprof.source_code.settings import may_be_true
from memprof.source_code.unread_results import UnreadResult, unread_result
from memprof.trace import Frame
from memprof.units import format_bytes
from memprof.views.window import Bools, Ints, Window

__all__ = ["RULE", "may_read_cache", "states_read", "unread_flag"]

_LEAST_SHARE = 0.1
"""Of the peak."""
_STATES_FLAG = "output_hidden_states"
_FLAGS = {
    _STATES_FLAG: (
        *("hidden_states", "encoder_hidden_states", "decoder_hidden_states"),
        "image_hidden_states",
    ),
    "output_attentions": (
        *("attentions", "encoder_attentions", "decoder_attentions", "cross_attentions"),
    ),
}
"""Arguments of models of transformers, and the fields of what they return that they fill."""
_OF_TOKENS = {"output_scores": ("scores",), "output_logits": ("logits",)}
"""The same of what `generate` keeps for each new token."""
_FEWEST_TOKENS = 4
_NONE, _LAST, _ANY = "none", "last", "any"
_CACHE_FLAG = "use_cache"
_CACHE_FIELDS = ("past_key_values", "cache")
"""What a model that can generate keeps for the next token, unless it is told not to: its name in
transformers 4, and in 5.24."""
_KEYS_AND_VALUES = 2
"""Tensors of a layer that its attention reads together."""
_CACHES = "/transformers/cache_utils.py"
_GENERATION = "/transformers/generation/"


@dataclass(frozen=True, slots=True)
class _Call:
    """The line that calls a model, and the argument that asks for what is kept."""

    frame: Frame
    flag: str
    asked_in: Place | None = None
    """The statement that says so, if another: a configuration is made there, …"""
    asked_at: int = 0
    """… and its line that does."""
    last_is_read: bool = False
    result: UnreadResult | None = None
    """What a function of the program's own returns besides."""


_Asks = Callable[[Window, int], "_Call | None"]
"""Of a lifetime what asks for it."""


@dataclass(frozen=True, slots=True, eq=False)
class UnreadOutputs(Match):
    """What is asked for, and the call that asks."""

    flag: str = ""
    filename: str = ""
    line: int = 0
    last_is_read: bool = False
    """Of the results of all layers the last one, and no other."""
    result: UnreadResult | None = None


class UnreadOutputsOfModels(WasteRule[UnreadOutputs]):
    """`model.generate(…, output_hidden_states=True)`, of which the tokens are read."""

    name = "unread-outputs"
    summary = "a model returns hidden states, attentions or a cache that nothing reads"
    fixes = ("drop_outputs",)

    def matches(self, window: Window) -> Iterator[UnreadOutputs]:
        """What layers made under such a call without gradients, that is there after their pass."""
        if window.peak.event < 0:
            return
        kept = _kept_beyond_pass(window)
        of_cache = np.isin(window.lives.stack, _stacks_of_caches(window))
        kept_to_end = _kept_beyond_pass(window, to_its_end=True)
        of_flag = list(_matches(window, kept & ~of_cache, _asks_by_flag))
        # An output of which one field is read at once goes before anything else is made: of that
        # field more is there later.
        unread = kept_to_end & ~kept & ~of_cache
        yield from of_flag or _matches(window, unread, _asks_by_flag)
        yield from _matches(window, kept_to_end & of_cache, _asks_by_default)
        yield from _matches(window, _kept_of_tokens(window), _asks_for_tokens)
        yield from _matches(window, _kept_by_own_modules(window), _asks_by_result)

    def title(self, match: UnreadOutputs) -> str:
        """Say what they are."""
        if match.result is not None:
            return f"are collected in `{match.result.name}`, a result that nothing reads"
        if match.flag == _CACHE_FLAG:
            return "are keys and values of all layers, for next tokens that nothing asks for"
        what = match.flag.removeprefix("output_").replace("_", " ")
        if match.flag in _OF_TOKENS:
            return f"are {what} of every new token, which a call asks for and nothing reads"
        if match.last_is_read:
            return f"are {what} of all layers, of which the last are read"
        return f"are {what} of all layers, which a call asks for and nothing reads"

    def advice(self, match: UnreadOutputs, case: Case) -> Iterator[Advice]:
        """Ask for none."""
        place = case.place_at(match.filename, match.line)
        if match.result is not None:
            name, parameter = match.result.name, match.result.parameter
            how = "collect it only for callers that ask for it."
            if parameter:
                how = f"`{parameter}` is True by default, so say `{parameter}=False` in this call."
            why = f"`{name}` is returned beside what this call reads, and is there as long: {how}"
            yield Advice("drop_outputs", why, place or case.site)
            return
        if match.flag == _CACHE_FLAG:
            yield Advice(
                "drop_outputs",
                "A model that can generate keeps the keys and values of each layer until its "
                "output goes, and nothing reads them: say `use_cache=False` in this call.",
                place or case.site,
                typed="outputs = model(**inputs, use_cache=False)",
            )
            return
        instead = ""
        if match.last_is_read and match.flag == _STATES_FLAG:
            instead = " (the last are `last_hidden_state` of the model without its head)"
        yield Advice(
            "drop_outputs",
            f"`{match.flag}=True` has the model return {format_bytes(match.nbytes)} that nothing "
            f"reads: leave it out{instead}.",
            place or case.site,
            match.line if place is not None else 0,
        )


def _matches(window: Window, kept: Bools, asks: _Asks) -> Iterator[UnreadOutputs]:
    """What is ``kept`` where it is much, and the line of the program that asks for it."""
    rows = np.flatnonzero(kept & window.at_peak)
    if not len(rows) or window.share(int(window.lives.size[rows].sum())) < _LEAST_SHARE:
        return
    call = asks(window, int(rows[0]))
    if call is None:
        return
    stacks = np.unique(window.lives.stack[kept]).tolist()
    own = [stack for stack in stacks if call.frame in window.trace.stack(stack)]
    every = np.flatnonzero(kept & np.isin(window.lives.stack, own))
    if call.result is not None:  # the loop's own variable has them for one layer more
        ends = _ends_of_use(window, every, 2 * _KEYS_AND_VALUES)
    else:
        ends = _ends_of_use(window, every, _KEYS_AND_VALUES if call.flag == _CACHE_FLAG else 1)
    if call.last_is_read:
        is_unread = ~_are_last(window, every)
        every, ends = every[is_unread], ends[is_unread]
    there = every[window.at_peak[every]]
    if not len(there):
        return
    asked_in = call.asked_in
    yield UnreadOutputs(
        row=int(there[0]),
        rows=there,
        nbytes=int(window.lives.size[there].sum()),
        saving=window.replayed(window.ended_at(every, ends)),
        flag=call.flag,
        filename=asked_in.program.filename if asked_in is not None else call.frame.filename,
        line=call.asked_at if asked_in is not None else call.frame.line,
        last_is_read=call.last_is_read,
        result=call.result,
    )


def _are_last(window: Window, rows: Ints) -> Bools:
    """Which of some results of layers is its pass' last: it is gone when the next one is made."""
    lives = window.lives
    return np.append(lives.free[rows[:-1]] <= lives.alloc[rows[1:]], [True])[: len(rows)]


def _asks_by_flag(window: Window, row: int) -> _Call | None:
    """The innermost line that says so, or that calls a model of which a configuration does."""
    frames = window.user_frames(window.stack(row))
    for frame in frames:
        place = place_of(frame)
        flag = unread_flag(place, window.programs) if place is not None else ""
        if place is not None and flag:
            which = states_read(place, window.programs, flag)
            return _Call(frame, flag, last_is_read=which == _LAST)
    return _asked_elsewhere(window, frames, _FLAGS)


def _asks_by_result(window: Window, row: int) -> _Call | None:
    """The line that calls a function of the program's and reads only other results of it."""
    for frame, caller in pairwise(window.user_frames(window.stack(row))):
        place, calling = place_of(frame), place_of(caller)
        if place is None or calling is None:
            continue
        result = unread_result(place, calling)
        if result is not None:
            return _Call(caller, result.parameter, result=result)
    return None


def _asked_elsewhere(
    window: Window, frames: Sequence[Frame], flags: Mapping[str, Sequence[str]]
) -> _Call | None:
    """The innermost line, which calls a model, and the one place that has it asked for."""
    innermost = place_of(frames[0]) if frames else None
    if innermost is None or _is_taken_apart(innermost):
        return None
    for flag in flags:
        asked = _asked(window.programs, flag)
        which = states_read(innermost, window.programs, flag)
        if len(asked) == 1 and which != _ANY:
            (asked_in, value) = asked[0]
            return _Call(frames[0], flag, asked_in, value.lineno, which == _LAST)
    return None


def _asked(programs: Sequence[Program], flag: str) -> list[tuple[Place, ast.expr]]:
    """Where a flag is true: an argument, an entry, ``config.output_attentions = True``.

    Where none is written as true, those that a variable or a setting of the program makes true.
    """
    settings = list(arguments_named(programs, flag))
    settings += [
        (place, value)
        for program in programs
        for node in program.nodes
        for target, value in assigned(node)
        if isinstance(target, ast.Attribute) and target.attr == flag and value is not None
        if (place := program.place(value)) is not None
    ]
    written = [(place, value) for place, value in settings if _is_true(value)]
    return written or [
        (place, value) for place, value in settings if may_be_true(place, value, programs)
    ]


def _asks_for_tokens(window: Window, row: int) -> _Call | None:
    """The line that asks `generate` for what it computed each new token from."""
    frames = window.user_frames(window.stack(row))
    for frame in frames:
        place = place_of(frame)
        flag = unread_flag(place, window.programs, _OF_TOKENS) if place is not None else ""
        if flag:
            return _Call(frame, flag)
    return _asked_elsewhere(window, frames, _OF_TOKENS)


def _asks_by_default(window: Window, row: int) -> _Call | None:
    """The program's own call of the model, where nothing names the keys and values it returns."""
    stack = window.stack(row)
    frame = next(iter(window.user_frames(stack)), None)
    place = place_of(frame) if frame is not None else None
    if frame is None or place is None or may_read_cache(place, window.programs):
        return None
    inner = stack[: stack.index(frame)]
    is_called = bool(inner) and _is_call_of_module(inner[-1])
    is_generated = any(_GENERATION in _posix(one) for one in inner)
    return _Call(frame, _CACHE_FLAG) if is_called and not is_generated else None


def _is_call_of_module(frame: Frame) -> bool:
    return _posix(frame).endswith("/torch/nn/modules/module.py")


def may_read_cache(place: Place, programs: Sequence[Program]) -> bool:
    """Whether the keys and values may be read that a call of a model in a statement returns.

    With a loss their place is the third, without one it is the second.
    """
    if any(_names_cache(node) for program in programs for node in program.nodes):
        return True
    if isinstance(getattr(place.statement, "targets", [None])[0], ast.Tuple):
        return True  # the result is taken apart
    return not _is_read_by_name(place) and any(
        _takes_by_place(node, (), 1) for program in programs for node in program.nodes
    )


def _names_cache(node: ast.AST) -> bool:
    if isinstance(node, ast.Name):
        return node.id == _CACHE_FIELDS[0]  # a variable of the other name may be anything
    if isinstance(node, ast.keyword):
        return node.arg in _CACHE_FIELDS
    if isinstance(node, ast.Attribute):  # an object of the program may have a cache of its own
        is_own = isinstance(node.value, ast.Name) and node.value.id == "self"
        return node.attr in _CACHE_FIELDS[: 1 if is_own else 2]
    return _is_of_field(node, _CACHE_FIELDS)


def _is_read_by_name(place: Place) -> bool:
    """Whether all that is read of a call's result are fields by name, or its first place."""
    statement = place.statement
    if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
        return any(isinstance(node, ast.Call) for node in _with_one_field_read(statement))
    target = statement.targets[0]
    if len(statement.targets) > 1 or not isinstance(target, ast.Name):
        return False
    of_fields = {id(node) for node in _with_one_field_read(place.scope)}
    return all(
        id(node) in of_fields
        for node in ast.walk(place.scope)
        if isinstance(node, ast.Name) and node.id == target.id and isinstance(node.ctx, ast.Load)
    )


def _with_one_field_read(tree: ast.AST) -> Iterator[ast.expr]:
    """What stands before ``.loss``, ``["loss"]`` or ``[0]``; not before a method."""
    methods = {id(call.func) for call in calls_in(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and id(node) not in methods:
            yield node.value
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            field = node.slice.value
            if field == 0 or isinstance(field, str):
                yield node.value


def unread_flag(
    place: Place, programs: Sequence[Program], flags: Mapping[str, Sequence[str]] = _FLAGS
) -> str:
    """The argument of a statement's call that asks for what no program reads, or but the last of.

    Empty without one. ``flags`` are the arguments, each with the fields that it fills.
    """
    if _is_taken_apart(place):
        return ""
    for call in calls_in(place.statement):
        for flag in flags:
            if _is_true(keyword(call, flag)) and states_read(place, programs, flag) != _ANY:
                return flag
    return ""


def _is_taken_apart(place: Place) -> bool:
    return any(isinstance(one, ast.Tuple) for one in getattr(place.statement, "targets", ()))


def _is_true(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Constant) and value.value is True


def states_read(place: Place, programs: Sequence[Program], flag: str) -> str:
    """What programs read of the fields that an argument fills: ``"none"``, ``"last"``, ``"any"``.

    ``"last"``: nothing but ``output.hidden_states[-1]``. Any of them may be meant where a program
    takes something apart by places, unless all reads of the call's result are of fields by name.

    Args:
        place: the statement that calls the model.
        programs: all of them.
        flag: the argument.
    """
    by_name = _is_read_by_name(place)
    fields = _FLAGS[flag] if flag in _FLAGS else _OF_TOKENS[flag]
    reads = {_read_in(program, fields, by_name=by_name) for program in programs}
    return next((one for one in (_ANY, _LAST) if one in reads), _NONE)


def _read_in(program: Program, fields: Sequence[str], *, by_name: bool) -> str:
    nodes = list(program.nodes)
    lists = {
        target.id
        for node in nodes
        for target, value in assigned(node)
        if isinstance(target, ast.Name) and isinstance(value, (ast.List, ast.ListComp))
    }
    last = {id(node.value) for node in nodes if _takes_last(node, fields)}
    # of `output["hidden_states"]` the name is a node by itself
    last |= {id(child) for node in nodes if id(node) in last for child in ast.walk(node)}
    others = (node for node in nodes if id(node) not in last)
    if any(_is_of_field(one, fields) for one in others):
        return _ANY
    if not by_name and any(_takes_by_place(one, lists, 2) for one in nodes):
        return _ANY
    return _LAST if last else _NONE


def _takes_last(node: ast.AST, fields: Sequence[str]) -> TypeGuard[ast.Subscript]:
    """``output.hidden_states[-1]``, ``output["hidden_states"][-1]``."""
    if not isinstance(node, ast.Subscript) or ast.unparse(node.slice) != "-1":
        return False
    value = node.value
    return _is_of_field(value.slice if isinstance(value, ast.Subscript) else value, fields)


def _is_of_field(node: ast.AST, fields: Sequence[str]) -> bool:
    """``output.field``, ``output["field"]``."""
    if isinstance(node, ast.Attribute):
        return node.attr in fields
    return isinstance(node, ast.Constant) and node.value in fields


def _takes_by_place(node: ast.AST, lists: Collection[str], first: int) -> bool:
    """``output[2]``, ``output[-1]``, ``output.to_tuple()``: a place from ``first`` on."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) and node.func.attr == "to_tuple"
    if not isinstance(node, ast.Subscript) or not isinstance(node.value, ast.Name):
        return False
    if node.value.id in lists:
        return False  # the program's own, and no output
    place = node.slice
    if isinstance(place, ast.Constant):
        return isinstance(place.value, int) and place.value >= first
    return isinstance(place, (ast.Slice, ast.UnaryOp))


def _kept_beyond_pass(window: Window, *, to_its_end: bool = False) -> Bools:
    """What a library's modules leave behind a pass, see `kept_beyond_pass`."""
    kept = kept_beyond_pass(window, to_its_end=to_its_end)
    stacks = np.unique(window.lives.stack[kept]).tolist()
    others = [stack for stack in stacks if not is_of_library(window.trace.stack(stack))]
    kept &= ~np.isin(window.lives.stack, others)
    return kept


def _kept_by_own_modules(window: Window) -> Bools:
    """What modules of the program leave behind a pass, see `kept_beyond_pass`."""
    kept = kept_beyond_pass(window, to_its_end=True)
    stacks = np.unique(window.lives.stack[kept]).tolist()
    own = [stack for stack in stacks if not is_of_library(window.trace.stack(stack))]
    return kept & np.isin(window.lives.stack, own)


def _kept_of_tokens(window: Window) -> Bools:
    """What the loop of `generate` makes itself, where several of one line are there at once."""
    there = window.at_peak & ~window.has_owner & (window.lives.alloc >= 0)
    stacks, number = np.unique(window.lives.stack[there], return_counts=True)
    own = [
        stack
        for stack in stacks[number >= _FEWEST_TOKENS].tolist()
        if _is_made_in(window.trace.stack(stack), _GENERATION)
    ]
    return ~window.has_owner & (window.lives.alloc >= 0) & np.isin(window.lives.stack, own)


def _is_made_in(stack: tuple[Frame, ...], path: str) -> bool:
    """Whether the innermost frame that is not torch's is in a file below a path."""
    outside = (one for one in stack if frame_kind(one.filename) is not FrameKind.TORCH)
    innermost = next(outside, None)
    return innermost is not None and path in _posix(innermost)


def _stacks_of_caches(window: Window) -> list[int]:
    """Those that keys and values for a next token were made by."""
    stacks = np.unique(window.lives.stack[window.at_peak & ~window.has_owner]).tolist()
    return [
        one for one in stacks if any(_CACHES in _posix(frame) for frame in window.trace.stack(one))
    ]


def _posix(frame: Frame) -> str:
    return frame.filename.replace("\\", "/")


def _ends_of_use(window: Window, rows: Ints, of_layer: int) -> Ints:
    """Where each is read last, as far as is known: when the next layer has made its result."""
    allocs = window.lives.alloc[rows]
    return np.append(allocs[of_layer:], np.repeat(allocs[-1:] + 1, min(of_layer, len(allocs))))


RULE = UnreadOutputsOfModels()
