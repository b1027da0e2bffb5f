"""What `copy.deepcopy` has made, and of what."""

from __future__ import annotations

import ast

import numpy as np

from memprof.source_code.frame_kind import is_copy_module
from memprof.source_code.program import Place, calls_in
from memprof.trace import Category
from memprof.views.window import Bools, Window

__all__ = ["copied_source", "made_by_copying", "sized_as_models"]

_COPY = "deepcopy"
_OF_MODELS = (Category.PARAMETER, Category.BUFFER, Category.GRADIENT, Category.OPTIMIZER_STATE)


def made_by_copying(window: Window) -> Bools:
    """Per lifetime: whether Python's module for copies made it."""
    stacks = map(window.trace.stack, range(len(window.trace.tables.stacks)))
    by_copy = [any(is_copy_module(frame.filename) for frame in stack) for stack in stacks]
    of_copies: Bools = np.array(by_copy, dtype=bool)[window.lives.stack]
    return of_copies


def sized_as_models(window: Window) -> Bools:
    """Per lifetime: whether something of a model, or of its training, has its size."""
    requested = window.lives.requested
    of_models = np.isin(window.category, _OF_MODELS)
    alike: Bools = np.isin(requested, np.unique(requested[of_models]))
    return alike


def copied_source(place: Place) -> str:
    """The name whose object a statement copies; empty where there is none."""
    calls = [call for call in calls_in(place.statement, _COPY) if call.args]
    value = calls[0].args[0] if len(calls) == 1 else None
    return ast.unparse(value) if isinstance(value, (ast.Name, ast.Attribute)) else ""
