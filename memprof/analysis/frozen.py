"""Modules that take no gradient and keep activations all the same: their input takes one."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import numpy as np

from memprof.analysis.suspicion import Pattern, Suspicion
from memprof.source_code.program import Place, Program, called_name, loaded_names
from memprof.trace import Category, Phase
from memprof.views.window import Bools, Ints, Window

__all__ = ["frozen"]

_LEAST_SHARE = 0.1


def frozen(window: Window) -> Iterator[Suspicion]:
    """Activations of what runs before anything that is trained, kept for an input's gradient.

    Only where a statement of the program asks for such a gradient, and none reads it.
    """
    rows = _ahead_of_training(window)
    mask = np.zeros(len(window.lives), dtype=bool)
    mask[rows] = True
    at_peak = mask & window.at_peak
    if not len(rows) or window.share(window.bytes_of(at_peak)) < _LEAST_SHARE:
        return
    row = window.main_site(at_peak)
    asked = next((p for program in window.programs for p in _asked_in_vain(program)), None)
    if asked is None:
        return
    after = np.append(window.lives.alloc[rows[1:]], window.lives.alloc[rows[-1:]])
    yield Suspicion(
        Pattern.FROZEN_GRAPH,
        row,
        rows,
        0.75,
        "are activations of modules that take no gradient, kept for that of their input",
        window.bytes_of(at_peak),
        window.replayed(window.ended(rows, after)),
        {"asked_file": asked.program.filename, "asked_line": asked.line},
    )


def _ahead_of_training(window: Window) -> Ints:
    """Activations of each step's forward passes up to the first module that has a gradient."""
    has_gradient = (window.category == Category.GRADIENT) & (window.module > 0)
    trained = np.unique(window.module[has_gradient | _states(window)])
    parameters = window.category == Category.PARAMETER
    untrained = np.setdiff1d(window.module[parameters], np.append(trained, 0))
    if not len(trained) or not len(untrained):
        return np.zeros(0, dtype=np.int64)
    module_of_label = _module_of_label(window)
    events = np.flatnonzero(np.isin(module_of_label[window.trace.events.label], trained))
    first: dict[int, int] = {}
    for event in events[window.phase_of_event[events] == Phase.FORWARD].tolist():
        first.setdefault(int(window.step_of_event[event]), event)
    made = window.category == Category.ACTIVATION
    made &= (window.phase == Phase.FORWARD) & (window.module > 0)
    rows = np.flatnonzero(made)
    begins = np.array([first.get(int(step), -1) for step in window.made_in[rows]], dtype=np.int64)
    return rows[window.lives.alloc[rows] < begins]


def _states(window: Window) -> Bools:
    states: Bools = (window.category == Category.OPTIMIZER_STATE) & (window.module > 0)
    return states


def _module_of_label(window: Window) -> Ints:
    at = {name: number for number, name in enumerate(window.owners.module.names)}
    labels = window.trace.tables.labels
    return np.array([at.get(label.module, 0) for label in labels], dtype=np.int64)


def _asked_in_vain(program: Program) -> Iterator[Place]:
    """``images.requires_grad_(True)``, ``x.requires_grad = True``, with no ``.grad`` of it read."""
    reads = {
        ast.unparse(n.value)
        for n in ast.walk(program.tree)
        if isinstance(n, ast.Attribute) and n.attr == "grad" and isinstance(n.ctx, ast.Load)
    }
    for node in ast.walk(program.tree):
        name = _asked_of(node)
        if name and name not in reads and not _is_used_for_it(program, name):
            place = program.place(node) if isinstance(node, ast.stmt) else None
            if place is not None:
                yield place


def _asked_of(node: ast.AST) -> str:
    """The name whose gradient a statement asks for; empty where it asks for none."""
    if isinstance(node, ast.Expr) and called_name(node.value) == "requires_grad_":
        call = node.value
        assert isinstance(call, ast.Call)
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        off = any(isinstance(value, ast.Constant) and value.value is False for value in given)
        asked = call.func.value if isinstance(call.func, ast.Attribute) and not off else None
        return asked.id if isinstance(asked, ast.Name) else ""
    if not isinstance(node, ast.Assign) or len(node.targets) != 1:
        return ""
    target, value = node.targets[0], node.value
    if isinstance(target, ast.Attribute) and target.attr == "requires_grad":
        on = isinstance(value, ast.Constant) and value.value is True
        return target.value.id if on and isinstance(target.value, ast.Name) else ""
    if isinstance(target, ast.Name) and isinstance(value, ast.Call):
        named = [k.value for k in value.keywords if k.arg == "requires_grad"]
        on = any(isinstance(one, ast.Constant) and one.value is True for one in named)
        return target.id if on or called_name(value) == "requires_grad_" else ""
    return ""


def _is_used_for_it(program: Program, name: str) -> bool:
    """Whether a name is given to ``autograd.grad`` or an optimizer, or stands for a parameter.

    What is thawed is a loop's variable over parameters, or is never handed to anything.
    """
    handed = False
    for node in ast.walk(program.tree):
        if isinstance(node, (ast.For, ast.comprehension)) and ast.unparse(node.target) == name:
            if "param" in ast.unparse(node.iter):
                return True
        elif isinstance(node, ast.Call) and name in _argument_names(node):
            handed = True
            last = called_name(node)
            if last in ("grad", "backward", "Parameter") or last[:1].isupper():
                return True
    return not handed


def _argument_names(call: ast.Call) -> set[str]:
    arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
    return set().union(*map(loaded_names, arguments))
