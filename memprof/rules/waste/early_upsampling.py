"""early-upsampling: features are made larger before the layer that makes them narrow."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.frame_kind import FrameKind, frame_kind
from memprof.source_code.idioms import keyword
from memprof.source_code.program import (
    Place,
    Program,
    arguments,
    assigned,
    bound_names,
    called_name,
    calls_in,
    place_of,
    root_name,
)
from memprof.source_code.scopes import reads_of
from memprof.source_code.values import returned_by
from memprof.trace import Frame, Phase
from memprof.units import format_percent
from memprof.views.stacks import made_through
from memprof.views.window import Ints, Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.1
"""Of the peak."""
_MOST_LEFT = 0.5
"""Of the features, that the layer returns."""
_ENLARGING = frozenset(("interpolate", "upsample"))
_CONVOLUTION = "_conv_forward"
_CONVOLUTIONS = ("Conv1d", "Conv2d", "Conv3d")
_LINEAR = "/torch/nn/modules/linear.py"
_ORDERING = frozenset(
    ("contiguous", "flatten", "movedim", "permute", "reshape", "transpose", "view")
)
"""Methods that leave each place's features together, or set them side by side."""
_KERNEL = 2
"""The place of its size among the arguments of such a layer."""


@dataclass(frozen=True, slots=True, eq=False)
class EnlargedFirst(Match):
    """The layer's path, and the share of the features that it returns."""

    layer: str = ""
    share: float = 1.0


class EarlyUpsampling(WasteRule[EnlargedFirst]):
    """`self.classifier(F.interpolate(features, size))`, with a layer of one place each."""

    name = "early-upsampling"
    summary = "features are made larger before the layer that makes them narrow"
    fixes = ("upsample_last",)
    other_operators = True

    def matches(self, window: Window) -> Iterator[EnlargedFirst]:
        """What is enlarged and then given to a convolution that looks at one place at a time."""
        if window.peak.event < 0:
            return
        lives = window.lives
        forward = (window.phase != Phase.BACKWARD) & ~window.has_owner & (lives.alloc >= 0)
        enlarged = forward & made_through(window, lambda frame: _name_of(frame) in _ENLARGING)
        convolved = forward & made_through(window, _is_of_layer)
        convolution = made_through(window, lambda frame: _name_of(frame) == _CONVOLUTION)
        for site in np.unique(window.site[enlarged]).tolist():
            rows = np.flatnonzero(enlarged & (window.site == site))
            rows = rows[lives.requested[rows] * 2 >= lives.requested[rows].max()]
            place = place_of(window.owners.sites.frames[site])
            following = _next_made(window, rows[-1:])
            if place is None or not len(following) or not convolved[following[0]]:
                continue
            if lives.requested[following[0]] == lives.requested[rows[-1]]:
                following = _next_made(window, following)  # the layer's own copy, in another order
            if not len(following) or not convolved[following[0]]:
                continue
            layer = window.module_name(int(following[0]))
            share = float(lives.requested[following[0]] / lives.requested[rows[-1]])
            if share > _MOST_LEFT or not _is_pointwise(window.programs, layer):
                continue
            if not _goes_there_alone(place):
                continue
            is_linear = not convolution[following[0]]
            if is_linear and not calls_in(place.scope, *_ORDERING):
                continue  # it is along the last dimension, which is of places
            of_size = np.isin(lives.requested, np.unique(lives.requested[rows]))
            of_size &= ~window.has_owner & (lives.alloc >= 0)
            modules = window.module[[following[0], *([rows[-1]] if is_linear else [])]]
            # The layer's own copies, and their gradients.
            alike = of_size & np.isin(window.module, modules)
            alike &= (window.phase == Phase.BACKWARD) | convolved
            every = np.union1d(rows, np.flatnonzero(alike))
            there = every[window.at_peak[every]]
            nbytes = int(lives.size[there].sum())
            if window.share(nbytes) >= _LEAST_SHARE:
                yield EnlargedFirst(
                    row=int(rows[-1]),
                    rows=there,
                    nbytes=nbytes,
                    saving=window.replayed(window.whole(every)),
                    layer=layer,
                    share=share,
                )
                return

    def title(self, match: EnlargedFirst) -> str:
        """Say what comes after."""
        return f"are features that are enlarged before `{match.layer}` makes them narrow"

    def advice(self, match: EnlargedFirst, case: Case) -> Iterator[Advice]:
        """Enlarge what the layer returns."""
        name = match.layer.rpartition(".")[2]
        why = (
            f"`{name}` computes each place by itself, and enlarging computes each channel by "
            f"itself: call `{name}` first, and enlarge what it returns, "
            f"{format_percent(match.share, 1.0)} of the channels. That computes the same."
        )
        yield Advice("upsample_last", why, case.site)


def _is_of_layer(frame: Frame) -> bool:
    """Whether a frame is of a convolution's computation, or of a linear layer's."""
    name = _name_of(frame)
    is_linear = name == "forward" and frame.filename.replace("\\", "/").endswith(_LINEAR)
    return is_linear or name == _CONVOLUTION


def _name_of(frame: Frame) -> str:
    is_torch = frame_kind(frame.filename) is FrameKind.TORCH
    return frame.name.rpartition(".")[2] if is_torch else ""


def _next_made(window: Window, rows: Ints) -> Ints:
    """What is made after each of some rows."""
    alloc = window.lives.alloc
    order = np.argsort(alloc, kind="stable")
    at = np.searchsorted(alloc[order], alloc[rows], side="right")
    return order[at[at < len(order)]]


def _is_pointwise(programs: Sequence[Program], path: str) -> bool:
    """Whether the layer of a path is made with a kernel of one place, in the source."""
    *_, parent, name = ["", "", *path.split(".")]
    made: list[tuple[Program, ast.expr]] = []
    for program in programs:
        for node in program.nodes:
            for target, value in assigned(node) if isinstance(node, ast.Assign) else ():
                last = target.attr if isinstance(target, ast.Attribute) else ""
                if last == name and value is not None:
                    made.append((program, value))
                elif last == parent and isinstance(value, ast.Call):
                    made += [(program, one) for one in _members(value, name)]
    return bool(made) and all(_has_one_place(program, value) for program, value in made)


def _members(container: ast.Call, name: str) -> Iterator[ast.expr]:
    """The modules that a call puts under a number or a name into an ``nn.Sequential`` or the like.

    Of a comprehension each may be it.
    """
    for given in container.args[:1]:
        if isinstance(given, ast.Dict):
            for key, value in zip(given.keys, given.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == name:
                    yield value
            return
        if isinstance(given, (ast.GeneratorExp, ast.ListComp)):
            yield given.elt
            return
        if isinstance(given, ast.DictComp):
            yield given.value
            return
    items = container.args
    if len(items) == 1 and isinstance(items[0], (ast.List, ast.Tuple)):
        items = items[0].elts
    if name.isdigit():
        yield from items[int(name) : int(name) + 1]


def _has_one_place(program: Program, value: ast.expr) -> bool:
    """Whether a layer looks at one place at a time: also one that a function of the file makes."""
    if called_name(value) == "Linear":
        return True
    if not isinstance(value, ast.Call):
        return False
    if called_name(value) not in _CONVOLUTIONS:
        place = program.place(value)
        made = returned_by(place, value) if place is not None else []
        layers = [one for _, one in made if called_name(one) in _CONVOLUTIONS]
        return 0 < len(layers) == len(made) and all(_has_one_place(program, one) for one in layers)
    size = keyword(value, "kernel_size") or next(iter(value.args[_KERNEL : _KERNEL + 1]), None)
    groups = keyword(value, "groups")
    stride = keyword(value, "stride")
    return all(
        isinstance(one, ast.Constant) and one.value == 1
        for given in (size, *(other for other in (groups, stride) if other is not None))
        for one in (given.elts if isinstance(given, (ast.List, ast.Tuple)) else [given])
    )


def _goes_there_alone(place: Place) -> bool:
    """Whether what a statement enlarges is handed to one call and read nowhere else."""
    statement = place.statement
    targets = bound_names(statement) if isinstance(statement, ast.Assign) else []
    names = [one.id for one in targets if isinstance(one, ast.Name)]
    enlarging = [
        node
        for node in ast.walk(statement)
        if isinstance(node, ast.Call) and called_name(node) in _ENLARGING
    ]
    if not names or not enlarging or statement.value is not enlarging[0]:  # type: ignore[attr-defined]
        return True  # within one expression, or a layer's own forward
    reads = [around for load, around in reads_of(place.scope, names[0]) if load.lineno > place.line]
    return len(reads) == 1 and _is_argument(names[0], reads[0])


def _is_argument(name: str, around: Sequence[ast.AST]) -> bool:
    """Whether a read of a variable is an argument of a call, in whatever order of dimensions."""
    for call in (node for node in reversed(around) if isinstance(node, ast.Call)):
        if isinstance(call.func, ast.Attribute) and root_name(call.func) == name:
            if call.func.attr not in (*_ORDERING, "contiguous"):
                return False
            continue
        return any(root_name(one) == name for one in arguments(call))
    return False


RULE = EarlyUpsampling()
