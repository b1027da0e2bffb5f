"""unfused-attention: attention written by hand keeps scores that a fused kernel never makes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Flag
from itertools import takewhile

import numpy as np

from memprof.rules.case import NO_FIGURE, Case
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.frame_kind import FrameKind, frame_kind
from memprof.source_code.idioms import keyword
from memprof.source_code.program import (
    Place,
    arguments,
    called_name,
    calls_in,
    own_calls,
    place_of,
    source_of,
)
from memprof.trace import Frame, Phase
from memprof.units import format_bytes
from memprof.views.window import Bools, Ints, Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.1
"""Of the peak: short sequences have small tables of scores."""
_LEAST_RATIO = 2
"""Times as large as what attention returns are its scores: with short sequences nothing is won."""
_WIDTHS = (1, 2, 4)
"""By how much scores, masked scores and probabilities may differ: in their type."""
_MOST_PRODUCTS = 400
"""Of the largest, that are looked at."""
_NEAR = 12
"""Products that may come until the one with the values, of other heads or in between."""
_PRODUCTS = ("baddbmm", "bmm", "einsum", "matmul")
_NATIVE_PRODUCT = re.compile(r"\b(?:bmm|baddbmm|matmul|einsum)\b|_bmm|bmm_")
_NATIVE_SOFTMAX = re.compile(r"(?<!log_)softmax|\bexp\b|_exp\b")
_CHANGES = {
    *("_conv_forward", "abs", "conv1d", "conv2d", "cos", "elu", "gelu", "relu", "sigmoid", "sign"),
    *("sin", "softplus", "sort", "tanh", "topk"),
}
"""Functions of torch that give scores other values than a factor or a mask does: what is computed
with them between both products is no attention that a fused kernel knows."""
_MODULE = "multi_head_attention_forward"
"""The function behind `torch.nn.MultiheadAttention`."""
_RESULTS = 2
"""That it returns: the values and the weights."""
_INNERMOST = 3
"""Frames within which it is told what an operator computes."""
_BY_HAND = (FrameKind.USER, FrameKind.LIBRARY)
_HAS_SWITCH = "/transformers/models/"
"""Files of models that have both ways, of which a setting chooses …"""
_SWITCHABLE = "_supports_sdpa"
"""… where a class says so."""
_PROCESSORS = "/diffusers/models/attention_processor.py"
"""A file with both ways, each a class, of which a model is given one."""
_OLD, _FUSED = "AttnProcessor", "AttnProcessor2_0"
_GIVING = ("set_default_attn_processor", "set_attn_processor")
"""Methods of such models that put the old one in the place of the fused one, or either."""
_WEIGHTS = frozenset(("attentions", "cross_attentions", "decoder_attentions", "encoder_attentions"))
"""What outputs of such models have them in, where they were asked for."""


class _Does(Flag):
    """What the operator on a stack does."""

    NOTHING = 0
    PRODUCT = 1
    SOFTMAX = 2


@dataclass(frozen=True, slots=True, eq=False)
class AttentionScores(Match):
    """Tables of scores, and the function that makes them."""

    function: str = ""
    stays_unfused: bool = False
    """No fused kernel of this device does it: those of a CPU take no dropout."""
    is_of_torch: bool = False
    """torch's own module makes them, to return what nothing reads."""
    is_switchable: bool = False
    """A library makes them, whose models can do without."""
    by_processor: bool = False
    """By another class that a model of diffusers is given."""


class UnfusedAttention(WasteRule[AttentionScores]):
    """A product, a softmax and a product, each with a table of all pairs of positions."""

    name = "unfused-attention"
    summary = "attention without a fused kernel keeps a score for every pair of positions"
    fixes = ("fused_attention",)
    other_operators = True
    yields_to = ("evaluation-graph", "unused-gradients")

    def matches(self, window: Window) -> Iterator[AttentionScores]:
        """Tables of one size at the peak that a function made from a product and by a softmax.

        And which it then multiplied to something smaller: else they are what it is for.
        """
        if window.peak.event < 0:
            return
        for frame, size in _attentions(window):
            if _has_switch(frame.filename) and _reads_weights(window):
                continue
            tables = _tables(window, frame, size)
            if _changes_scores(window, tables, frame):
                continue
            mask = np.zeros(len(window.lives), dtype=bool)
            mask[tables] = True
            there = mask & window.at_peak
            if window.share(window.bytes_of(there)) < _LEAST_SHARE or _are_kept(window, there):
                continue
            stays = window.device == "cpu" and _drops_out(window, tables)
            yield AttentionScores(
                row=_row_of(window, np.flatnonzero(there), frame),
                rows=np.flatnonzero(there),
                nbytes=window.bytes_of(there),
                saving=window.replayed(window.whole(tables)),
                tentative=stays or _is_of_library(frame),
                function=frame.name.rpartition(".")[2],
                stays_unfused=stays,
                is_switchable=_has_switch(frame.filename),
                by_processor=_is_processor(frame.filename),
            )
            return
        yield from _unread_weights(window)

    def title(self, match: AttentionScores) -> str:
        """Say whose they are."""
        if match.is_of_torch:
            return "are weights of attention that nothing reads, and what they are made of"
        if match.is_switchable:
            return f"are scores of attention without a fused kernel, in `{match.function}`"
        return f"are scores of attention written by hand, in `{match.function}`"

    def advice(self, match: AttentionScores, case: Case) -> Iterator[Advice]:
        """Let a fused kernel do it."""
        if match.is_of_torch:
            why = (
                "`MultiheadAttention` makes a weight for each pair of positions, to return them, "
                "and nothing reads them: with `need_weights=False` a fused kernel does it."
            )
            yield Advice("fused_attention", why, case.site)
            return
        why = (
            f"{format_bytes(match.nbytes)} are tables with a value for each pair of positions, "
            "which a fused kernel never makes; not where the probabilities themselves are used."
        )
        asked = _asked_for(case) if match.is_switchable else None
        if match.by_processor:
            asked = _given_processor(case)
            why += (
                f" Its model has `{_OLD}`, the old way (`{_GIVING[0]}()` gives it that one, "
                f"too): with `{_FUSED}`, which a new model has by itself, a fused kernel does it."
            )
        elif match.is_switchable:
            why += (
                ' Its model makes them where `attn_implementation="eager"` or '
                "`output_attentions=True` asks for them."
            )
        if match.stays_unfused:
            why += " On a card: on a CPU torch makes them all the same where dropout is on."
        saving = NO_FIGURE if match.stays_unfused else None
        place, line = asked or (case.site, 0)
        typed = f"model.{_GIVING[1]}({_FUSED}())" if match.by_processor else ""
        yield Advice("fused_attention", why, place, line, saving=saving, typed=typed)


def _given_processor(case: Case) -> tuple[Place, int] | None:
    """Where the program gives a model the processor of old: its line."""
    for program in case.programs:
        for call in calls_in(program.tree, *_GIVING):
            given = [called_name(one) for one in arguments(call)]
            is_old = _OLD in given if given else called_name(call) == _GIVING[0]
            place = program.place(call) if is_old else None
            if place is not None:
                return place, call.lineno
    return None


def _asked_for(case: Case) -> tuple[Place, int] | None:
    """Where the program asks a library for the scores, or for the way that has them: its line."""
    for program in case.programs:
        for call in calls_in(program.tree):
            for name in ("attn_implementation", "output_attentions"):
                value = keyword(call, name)
                if not isinstance(value, ast.Constant) or value.value not in ("eager", True):
                    continue
                place = program.place(call)
                if place is not None:
                    return place, value.lineno
    return None


def _unread_weights(window: Window) -> Iterator[AttentionScores]:
    """What torch's module makes to return weights, where the program drops them."""
    lives, frames = window.lives, window.owners.sites.frames
    inside = {
        stack
        for stack in np.unique(lives.stack).tolist()
        if any(_MODULE in frame.name for frame in window.trace.stack(stack))
    }
    is_inside = np.isin(lives.stack, list(inside))
    made_here = [_drops_weights(place_of(frame)) for frame in frames]
    rows = np.flatnonzero(is_inside & window.at_peak & np.array(made_here)[window.site])
    softmaxes = [row for row in rows.tolist() if _is_softmax(window.stack(row))]
    if not softmaxes:
        return
    largest = max(softmaxes, key=lambda row: int(lives.requested[row]))
    is_table = is_inside | ((window.phase == Phase.BACKWARD) & ~window.has_owner)
    tables = np.flatnonzero(is_table & (lives.requested == lives.requested[largest]))
    there = tables[window.at_peak[tables]]
    nbytes = int(lives.size[there].sum())
    if window.share(nbytes) >= _LEAST_SHARE:
        saving = window.replayed(window.whole(tables))
        yield AttentionScores(largest, there, nbytes, saving, function=_MODULE, is_of_torch=True)


def _is_softmax(stack: tuple[Frame, ...]) -> bool:
    """Whether the function of torch that was called to make it computes probabilities."""
    names = [frame.name for frame in stack if frame_kind(frame.filename) is FrameKind.TORCH]
    return any(_NATIVE_SOFTMAX.search(name) for name in names[:_INNERMOST])


def _drops_weights(place: Place | None) -> bool:
    """Whether a statement takes the first result of a call only: ``out, _ = attention(…)``."""
    if place is None:
        return False
    statement = place.statement
    calls = [call for call in calls_in(statement) if keyword(call, "need_weights") is None]
    for node in ast.walk(statement):
        if isinstance(node, ast.Subscript) and node.value in calls:
            return isinstance(node.slice, ast.Constant) and node.slice.value == 0
    if not isinstance(statement, ast.Assign) or statement.value not in calls:
        return False
    target = statement.targets[0]
    if not isinstance(target, ast.Tuple) or len(target.elts) != _RESULTS:
        return False
    weights = target.elts[1]
    return isinstance(weights, ast.Name) and not any(
        isinstance(node, ast.Name) and node.id == weights.id and isinstance(node.ctx, ast.Load)
        for node in ast.walk(place.scope)
    )


def _attentions(window: Window) -> Iterator[tuple[Frame, int]]:
    """Functions that do it, and the bytes of the scores at their product; the largest first."""
    lives = window.lives
    does = {s: _does(window.trace.stack(s)) for s in np.unique(lives.stack).tolist()}
    of_row = np.array([does[int(stack)].value for stack in lives.stack], dtype=np.int64)
    forward = ~np.isin(window.phase, (Phase.BACKWARD, Phase.OPTIMIZER)) & (lives.alloc >= 0)
    products = np.flatnonzero(forward & ((of_row & _Does.PRODUCT.value) > 0))
    softmaxes = np.flatnonzero(forward & ((of_row & _Does.SOFTMAX.value) > 0))
    by_function: dict[tuple[str, str], tuple[Frame, int]] = {}
    requested = lives.requested
    for row in products[np.argsort(-requested[products], kind="stable")][:_MOST_PRODUCTS].tolist():
        size, start = int(requested[row]), int(lives.alloc[row])
        sizes = {size * one // width for one in _WIDTHS for width in _WIDTHS}
        later = products[lives.alloc[products] > start][:_NEAR]
        for last in later[_LEAST_RATIO * requested[later] <= size].tolist():
            at, line = _parting(_of_its_call(window.stack(row)), _of_its_call(window.stack(last)))
            if at is None or _function_of(at[-1]) in by_function or line < at[-1].line:
                continue  # further up it is the next round of a loop
            to = int(lives.alloc[last])
            between = softmaxes[(lives.alloc[softmaxes] >= start) & (lives.alloc[softmaxes] < to)]
            alike = (one for one in between.tolist() if int(requested[one]) in sizes)
            if any(_is_between(at, line, _own(window.stack(one))) for one in alike):
                by_function[_function_of(at[-1])] = at[-1], size
                break
    yield from sorted(by_function.values(), key=lambda one: -one[1])


def _parting(first: list[Frame], last: list[Frame]) -> tuple[list[Frame] | None, int]:
    """The frames of ``first`` down to where both part, outermost first, and the line of ``last``.

    They part in one function, at two of its lines or in calls of one line. None where they are of
    no call in common.
    """
    ours, theirs = first[::-1], last[::-1]
    pairs = zip(ours, theirs, strict=False)
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    inside = shared < min(len(ours), len(theirs))
    if inside and _function_of(ours[shared]) == _function_of(theirs[shared]):
        return ours[: shared + 1], theirs[shared].line
    return (ours[:shared], ours[shared - 1].line) if shared else (None, -1)


def _is_between(at: list[Frame], line: int, frames: list[Frame]) -> bool:
    """Whether frames go through the same call, at a line from that of ``at`` on to ``line``.

    Its softmax may be a module: then there are frames outside of those of ``at`` as well.
    """
    theirs = frames[::-1]
    begins = [n for n, one in enumerate(theirs) if _function_of(one) == _function_of(at[0])]
    own = theirs[begins[-1] :][: len(at)] if begins else []
    if len(own) < len(at) or own[:-1] != at[:-1]:
        return False
    return _function_of(own[-1]) == _function_of(at[-1]) and at[-1].line <= own[-1].line <= line


def _of_its_call(stack: tuple[Frame, ...]) -> list[Frame]:
    """Frames of the functions that work on the tensor themselves: up to the call of a module.

    A training loop runs products and a softmax too, but in modules that it calls.
    """
    return _own(tuple(takewhile(lambda frame: "_call_impl" not in frame.name, stack)))


def _tables(window: Window, frame: Frame, size: int) -> Ints:
    """All that the function made, or a backward pass of it, with as many values as the scores."""
    sizes = [size * one // width for one in _WIDTHS for width in _WIDTHS if size * one % width == 0]
    inside = {
        stack
        for stack in np.unique(window.lives.stack).tolist()
        if any(_function_of(f) == _function_of(frame) for f in _own(window.trace.stack(stack)))
    }
    is_table = np.isin(window.lives.stack, list(inside))
    # autograd's own threads have no line of the program: what is as large is of the same tables
    is_table |= (window.phase == Phase.BACKWARD) & ~window.has_owner
    return np.flatnonzero(is_table & np.isin(window.lives.requested, sizes))


def _are_kept(window: Window, there: Bools) -> bool:
    """Whether most of some tables outlive the modules that made them, and no graph has them.

    Then the program reads the probabilities: a hook collects them, say.
    """
    kept = there & (window.phase == Phase.FORWARD) & (window.freed_by == Phase.OTHER)
    return 2 * window.bytes_of(kept) > window.bytes_of(there)


def _changes_scores(window: Window, tables: Ints, frame: Frame) -> bool:
    """Whether the function computes some of the tables with what no fused kernel does."""
    for stack in np.unique(window.lives.stack[tables]).tolist():
        frames = window.trace.stack(stack)
        own = _own(frames)
        if not own or _function_of(own[0]) != _function_of(frame):
            continue
        names = {one.name.rpartition(".")[2] for one in frames[: frames.index(own[0])]}
        place = place_of(own[0])
        if place is not None and not names:  # an operator that torch has no function in Python for
            names = {called_name(call) for call in own_calls(place.statement)}
        if names & _CHANGES:
            return True
    return False


def _drops_out(window: Window, tables: Ints) -> bool:
    """Whether dropout made some of the tables: a mask, or what is left of the probabilities."""
    stacks = np.unique(window.lives.stack[tables]).tolist()
    return any(_is_dropout(window.trace.stack(stack)) for stack in stacks)


def _is_dropout(stack: tuple[Frame, ...]) -> bool:
    for frame in stack:
        if frame_kind(frame.filename) in _BY_HAND:
            place = place_of(frame)
            return place is not None and bool(calls_in(place.statement, "dropout"))
        if "dropout" in frame.name.lower():
            return True
    return False


def _row_of(window: Window, rows: Ints, frame: Frame) -> int:
    """The largest table that a line of the function itself made, and no function that it calls."""
    sites = window.owners.sites.frames
    function = _function_of(frame)
    own = [r for r in rows.tolist() if _function_of(sites[int(window.site[r])]) == function]
    largest: int = max(own or rows.tolist(), key=lambda row: int(window.lives.size[row]))
    return largest


def _function_of(frame: Frame) -> tuple[str, str]:
    return frame.filename, frame.name


def _own(stack: tuple[Frame, ...]) -> list[Frame]:
    """Frames of code that is neither torch's nor Python's, innermost first."""
    return [frame for frame in stack if frame_kind(frame.filename) in _BY_HAND]


def _does(stack: tuple[Frame, ...]) -> _Does:
    """What the operator of a stack does, by its native and torch's frames, else by its line."""
    names: list[str] = []
    for frame in stack:
        kind = frame_kind(frame.filename)
        if kind in _BY_HAND:
            return _by_names(names) or _by_line(frame)
        names.append(frame.name)
    return _Does.NOTHING


def _by_names(names: list[str]) -> _Does:
    does = _Does.NOTHING
    for name in names:
        if _NATIVE_SOFTMAX.search(name):
            does |= _Does.SOFTMAX
        elif _NATIVE_PRODUCT.search(name):
            does |= _Does.PRODUCT
    return does


def _has_switch(filename: str) -> bool:
    """Whether a file of a library's has models that can be told to use a fused kernel."""
    if _is_processor(filename):
        return True
    if _HAS_SWITCH not in filename.replace("\\", "/"):
        return False
    program = source_of(filename)
    return program is not None and any(
        isinstance(node.value, ast.Constant) and node.value.value is True
        for one in program.classes()
        for node in one.body
        if isinstance(node, ast.Assign) and _SWITCHABLE in map(ast.unparse, node.targets)
    )


def _is_processor(filename: str) -> bool:
    return filename.replace("\\", "/").endswith(_PROCESSORS)


def _reads_weights(window: Window) -> bool:
    """Whether the program reads what a model returns of its attention."""
    return any(
        (isinstance(node, ast.Attribute) and node.attr in _WEIGHTS)
        or (isinstance(node, ast.Constant) and node.value in _WEIGHTS)  # outputs["attentions"]
        for program in window.programs
        for node in program.nodes
    )


def _by_line(frame: Frame) -> _Does:
    place = place_of(frame)
    if place is None and _has_switch(frame.filename):
        program = source_of(frame.filename)
        place = program.at(frame.line) if program is not None else None
    if place is None:
        return _Does.NOTHING
    does = _Does.NOTHING
    multiplied = (
        isinstance(n, ast.BinOp) and isinstance(n.op, ast.MatMult)
        for n in ast.walk(place.statement)
    )
    if any(multiplied) or calls_in(place.statement, *_PRODUCTS):
        does |= _Does.PRODUCT
    if calls_in(place.statement, "softmax") or (
        calls_in(place.statement, "exp") and _divides_by_sum(place)
    ):
        does |= _Does.SOFTMAX
    return does


def _divides_by_sum(place: Place) -> bool:
    """Whether a function that takes exponentials makes shares of them: it sums, and divides.

    With a running maximum it is one part of a softmax: such a function works in parts as it is.
    """
    divides = any(
        isinstance(node, (ast.BinOp, ast.AugAssign)) and isinstance(node.op, ast.Div)
        for node in ast.walk(place.scope)
    )
    in_parts = bool(calls_in(place.scope, "maximum"))
    return not in_parts and bool(calls_in(place.scope, "sum")) and divides


def _is_of_library(frame: Frame) -> bool:
    """Whether the attention is a library's: then no line of the program can be written anew."""
    switchable = _has_switch(frame.filename)
    return not switchable and frame_kind(frame.filename) is FrameKind.LIBRARY


RULE = UnfusedAttention()
