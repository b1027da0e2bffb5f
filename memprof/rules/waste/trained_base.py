"""trained-base: weights below adapters are trained as well, though PEFT freezes them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TypeGuard

import numpy as np

from memprof.rules.case import Case
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.program import Place, Program, called_name
from memprof.trace import Category
from memprof.units import format_bytes
from memprof.views.window import Window

__all__ = ["RULE"]

_BASE_LAYER = ".base_layer"
"""What PEFT calls the layer of the model inside the one with adapters that stands in its place."""
_ADAPTERS = ".lora_"
_ON_PURPOSE = ".modules_to_save"
"""Where PEFT keeps layers that it was told to train whole."""
_CHECKPOINTING = "gradient_checkpointing_enable"
_INPUTS = "model.enable_input_require_grads()"
"""What models have against the error that checkpointing raises where no input needs a gradient."""


class TrainedBase(WasteRule[Match]):
    """`model.requires_grad_(True)` after `get_peft_model`, against an error of checkpointing."""

    name = "trained-base"
    summary = "weights below adapters are trained as well"
    fixes = ("freeze_params",)

    def matches(self, window: Window) -> Iterator[Match]:
        """Gradients and optimizer states of a model's own weights, beside those of its adapters."""
        names = window.owners.module.names
        of_training = np.isin(window.category, (Category.GRADIENT, Category.OPTIMIZER_STATE))
        trained = {names[module] for module in np.unique(window.module[of_training]).tolist()}
        models = {name.partition(".")[0] for name in trained if name.endswith(_BASE_LAYER)} & {
            name.partition(".")[0] for name in trained if _ADAPTERS in name
        }
        is_base = np.array(
            [
                name.partition(".")[0] in models
                and _ADAPTERS not in name
                and _ON_PURPOSE not in name
                for name in names
            ],
            dtype=np.bool_,
        )
        rows = np.flatnonzero(of_training & is_base[window.module])
        if not len(rows):
            return
        yield Match(
            row=int(rows[np.argmax(window.lives.size[rows])]),
            rows=rows,
            nbytes=int(window.lives.size[rows[window.at_peak[rows]]].sum()),
            saving=window.replayed(window.whole(rows)),
        )

    def title(self, match: Match) -> str:  # noqa: ARG002 - every match reads the same
        """Say whose they are."""
        return "are gradients and optimizer state of the weights below the adapters"

    def advice(self, match: Match, case: Case) -> Iterator[Advice]:
        """Leave the weights frozen."""
        programs = case.programs
        places = [place for program in programs for place in _unfreezing(program)]
        place = places[0] if len(places) == 1 else None
        by = f"`{ast.unparse(place.statement)}`" if place is not None else "something"
        nbytes = format_bytes(match.nbytes)
        why = (
            f"PEFT has frozen the weights below the adapters, and {by} has unfrozen them: {nbytes} "
            "are for their training."
        )
        typed = ""
        if any(map(_is_checkpointed, programs)):
            why += " Checkpointing needs gradients of a model's inputs only."
            typed = _INPUTS
        yield Advice("freeze_params", why, place or case.site, typed=typed)


def _unfreezing(program: Program) -> Iterator[Place]:
    """The statements that have gradients made of what had none."""
    for node in ast.walk(program.tree):
        if isinstance(node, (ast.Assign, ast.Expr)) and _unfreezes(node):
            place = program.place(node)
            if place is not None:
                yield place


def _unfreezes(statement: ast.Assign | ast.Expr) -> bool:
    """``model.requires_grad_(True)``, or ``parameter.requires_grad = True``."""
    value = statement.value
    if isinstance(statement, ast.Expr):
        given = [*value.args, *(one.value for one in value.keywords)] if _switches(value) else None
        return given == [] or (given is not None and all(map(_is_true, given)))
    names = [one.attr for one in statement.targets if isinstance(one, ast.Attribute)]
    return "requires_grad" in names and _is_true(value)


def _switches(value: ast.expr) -> TypeGuard[ast.Call]:
    return isinstance(value, ast.Call) and called_name(value) == "requires_grad_"


def _is_true(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is True


def _is_checkpointed(program: Program) -> bool:
    """Whether a program asks a model to keep no activations: transformers' switch."""
    return any(
        called_name(node) == _CHECKPOINTING
        or (isinstance(node, ast.keyword) and node.arg == "gradient_checkpointing")
        for node in ast.walk(program.tree)
    )


RULE = TrainedBase()
