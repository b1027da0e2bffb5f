"""buckets: every gradient is there twice, in ``.grad`` and in the buckets of DDP's reducer."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import numpy as np

from memprof.rules.case import Case
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.idioms import keyword
from memprof.source_code.patch import diff, with_keyword
from memprof.source_code.program import Place, Program, bound_names, calls_in
from memprof.trace import Category, Frame, Phase
from memprof.units import format_bytes
from memprof.views.stacks import made_through
from memprof.views.window import Window

__all__ = ["RULE"]

_WRAPPER = re.compile(r"/torch/nn/parallel/distributed\.py$")
"""The file whose constructor makes the reducer, and with it the buckets."""
_LEAST_STEPS = 2
"""Buckets stay; a wrapper that goes in the step after it was made is none that trains."""
_LEAST, _MOST = 0.9, 1.3
"""Of a step's gradients: buckets are as large as these, but for blocks' rounding on either side and
parameters whose gradients take part in the reduction without being needed."""
_CLASS = "DistributedDataParallel"
_VIEW = "gradient_as_bucket_view"
_MOST_POSITIONAL = 6
"""More positional arguments than anyone writes might reach the one that is meant."""


class Buckets(WasteRule[Match]):
    """`DistributedDataParallel` with its defaults: gradients are copied into buckets."""

    name = "buckets"
    summary = "gradients are there twice, in `.grad` and in the buckets of DDP"
    fixes = ("bucket_view",)

    def matches(self, window: Window) -> Iterator[Match]:
        """Buckets at the peak that are as large as the gradients of a step."""
        if window.peak.event < 0:
            return
        of_reducer = ~window.has_owner | (window.category == Category.GRADIENT_BUCKET)
        mask = window.at_peak & of_reducer & made_through(window, _is_wrapper)
        mask &= window.freed_in - window.made_in >= _LEAST_STEPS
        gradients = np.flatnonzero(window.category == Category.GRADIENT)
        whole = window.most_in_a_step(gradients, window.lives.size[gradients])
        if not whole or not _LEAST < window.bytes_of(mask) / whole < _MOST:
            return
        # As views of the buckets each is copied there, and is gone before the next is made.
        copied = (window.category == Category.GRADIENT) & (window.phase == Phase.BACKWARD)
        gradients = np.flatnonzero(copied)  # in the order in which they were made
        allocs = window.lives.alloc[gradients]
        yield Match(
            row=window.main_site(mask),
            rows=np.flatnonzero(mask),
            nbytes=window.bytes_of(mask),
            saving=window.replayed(window.ended_at(gradients, np.append(allocs[1:], allocs[-1:]))),
        )

    def title(self, match: Match) -> str:  # noqa: ARG002 - every match reads the same
        """Say what they are copies of."""
        return "are the reducer's buckets, a second copy of every gradient"

    def advice(self, match: Match, case: Case) -> Iterator[Advice]:
        """Make the gradients views of the buckets."""
        nbytes = format_bytes(match.nbytes)
        why = f"The reducer's buckets hold a second copy of every gradient, {nbytes}."
        calls = _calls_without_view(case)
        place = calls[0][0] if calls else case.site
        patch = _view_text(*calls[0]) if len(calls) == 1 else ""  # of several: nobody knows whose
        yield Advice("bucket_view", why, place, patch=patch)


def _is_wrapper(frame: Frame) -> bool:
    return _WRAPPER.search(frame.filename.replace("\\", "/")) is not None


def _calls_without_view(case: Case) -> list[tuple[Place, ast.Call]]:
    """The calls that make a wrapper whose gradients are no views of its buckets.

    Only those on the stack that made the buckets, where one is.
    """
    calls = [
        (place, call)
        for program in case.programs
        for call in _wrappings(program)
        if _has_copies(call) and (place := program.place(call)) is not None
    ]
    near = {id(place.statement) for _, place in case.frames}
    return [pair for pair in calls if id(pair[0].statement) in near] or calls


def _view_text(place: Place, call: ast.Call) -> str:
    """The patch that makes them views; empty where the call's arguments are not all in sight."""
    has_starred = any(isinstance(argument, ast.Starred) for argument in call.args)
    view_argument = keyword(call, _VIEW)
    computed = view_argument is not None and not isinstance(view_argument, ast.Constant)
    if has_starred or computed or len(call.args) > _MOST_POSITIONAL:
        return ""
    return diff(place.program, with_keyword(call, _VIEW, "True"))


def _has_copies(call: ast.Call) -> bool:
    value = keyword(call, _VIEW)
    return not (isinstance(value, ast.Constant) and value.value)


def _wrappings(program: Program) -> list[ast.Call]:
    names = _names(program)
    return [call for call in calls_in(program.tree) if ast.unparse(call.func) in names]


def _names(program: Program) -> set[str]:
    """What torch's class is called in a file: an imported name, another one, or a dotted path."""
    names = {
        alias.asname or alias.name
        for node in program.nodes
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch"
        for alias in node.names
        if alias.name == _CLASS
    }
    names |= {
        text
        for node in program.nodes
        if isinstance(node, ast.Attribute)
        and (text := ast.unparse(node)).endswith(f"parallel.{_CLASS}")
    }
    for node in program.nodes:
        if isinstance(node, ast.Assign) and ast.unparse(node.value) in names:
            names |= {ast.unparse(target) for target in bound_names(node)}
    return names


RULE = Buckets()
