"""idle-checkpointing: activation checkpointing is turned on, and no block is computed again."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.rule import Advice, WasteRule
from memprof.rules.waste.activations import ActivationsOfLine, activations_of_blocks
from memprof.source_code.idioms import last_name
from memprof.source_code.program import Place, Program, called_name, calls_in
from memprof.units import format_bytes
from memprof.views.stacks import made_by_lines
from memprof.views.window import Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.2
"""Of the peak, that checkpointing would take off it."""
_ENABLING = (
    *("activation_checkpointing_enable", "enable_gradient_checkpointing"),
    "gradient_checkpointing_enable",
)
_DISABLING = (
    *("activation_checkpointing_disable", "disable_gradient_checkpointing"),
    "gradient_checkpointing_disable",
)
_CHECKPOINT = "/torch/utils/checkpoint.py"
"""What each call of a checkpointed block runs through."""


@dataclass(frozen=True, slots=True, eq=False)
class IdleCheckpointing(ActivationsOfLine):
    """Activations of blocks, and where checkpointing is turned on."""

    enabled_at: Place | None = None
    model: str = ""
    """What it is turned on for, as the program writes it."""
    is_set_to_train: bool = False
    """The program calls ``train()`` of something."""
    left: Place | None = None
    """The statement that puts the model in evaluation mode, where it ran and nothing ends that."""


class IdleCheckpointingRule(WasteRule[IdleCheckpointing]):
    """`model.gradient_checkpointing_enable()` of a model that is in evaluation mode."""

    name = "idle-checkpointing"
    summary = "activation checkpointing is turned on, and no block is computed again"
    fixes = ("checkpoint",)

    def matches(self, window: Window) -> Iterator[IdleCheckpointing]:
        """Activations of many blocks, where a call turned checkpointing on that nothing ran by."""
        place = _enabling(window.programs)
        if place is None or _runs_checkpoints(window):
            return
        call = calls_in(place.statement, *_ENABLING)[0]
        receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
        for match in activations_of_blocks(window):
            saving = match.saving
            if saving is None or window.share(saving.bytes) < _LEAST_SHARE:
                continue
            yield IdleCheckpointing(
                row=match.row,
                rows=match.rows,
                nbytes=match.nbytes,
                saving=saving,
                blocks=match.blocks,
                enabled_at=place,
                model=ast.unparse(receiver) if receiver is not None else "",
                is_set_to_train=any(
                    isinstance(call.func, ast.Attribute)
                    for one in window.programs
                    for call in calls_in(one.tree, "train")
                ),
                left=_left_in_evaluation(window, receiver),
            )

    def title(self, match: IdleCheckpointing) -> str:
        """Say what is not done."""
        return f"are activations of {match.parts}; checkpointing is turned on, and recomputes none"

    def advice(self, match: IdleCheckpointing, case: Case) -> Iterator[Advice]:
        """Put the model in training mode, in which alone it has an effect."""
        model = match.model or "model"
        line = match.enabled_at.line if match.enabled_at is not None else 0
        why = (
            f"Line {line} turns checkpointing on, and {format_bytes(match.nbytes)} of activations "
            "are kept all the same: models of transformers and diffusers look at it in training "
            "mode alone, and `from_pretrained` returns them in evaluation mode."
        )
        left = match.left
        if left is not None:
            why += f" Line {left.line} puts it in that, and its function does not put it back."
            if not match.is_set_to_train:
                why += f" Call `{model}.train()` there, and before the loop."
        elif match.is_set_to_train:
            why += f" See that `{model}` itself is in training mode when it is called."
        else:
            why += f" Call `{model}.train()` before the loop."
        place = left or match.enabled_at or case.site
        yield Advice("checkpoint", why, place, typed=f"{model}.train()")


def _left_in_evaluation(window: Window, model: ast.expr | None) -> Place | None:
    """The one ``model.eval()`` of a function without ``train()`` that ran before the peak.

    Of what has the name of the model that checkpointing is turned on for.
    """
    name = last_name(ast.unparse(model)) if model is not None else ""
    places = [
        place
        for program in window.programs
        for call in calls_in(program.tree, "eval")
        if isinstance(call.func, ast.Attribute)
        and not call.args
        and last_name(ast.unparse(call.func.value)) == name
        and (place := program.place(call)) is not None
        and not calls_in(place.scope, "train")
        and _ran_before_peak(window, place)
    ]
    return places[0] if len(places) == 1 else None


def _ran_before_peak(window: Window, place: Place) -> bool:
    """Whether something was made before the peak by the function around a statement."""
    function = place.function
    if function is None:
        return False
    lines = range(function.lineno, (function.end_lineno or function.lineno) + 1)
    made = made_by_lines(window, place.program.filename, frozenset(lines))
    return bool((made & (window.lives.alloc < window.peak.event)).any())


def _enabling(programs: Sequence[Program]) -> Place | None:
    """The one statement that turns checkpointing on, where none turns it off."""
    if any(calls_in(program.tree, *_DISABLING) for program in programs):
        return None
    calls = [(p, call) for p in programs for call in calls_in(p.tree, *_ENABLING)]
    if len(calls) != 1 or called_name(calls[0][1]) not in _ENABLING:
        return None
    program, call = calls[0]
    return program.place(call)


def _runs_checkpoints(window: Window) -> bool:
    """Whether anything was made within `torch.utils.checkpoint` in the step of the peak."""
    of_step = window.step_of_event[:-1] == window.step_of_event[window.peak.event]
    stacks = np.unique(window.trace.events.stack[of_step]).tolist()
    frames = (frame for stack in stacks for frame in window.trace.stack(stack))
    return any(frame.filename.replace("\\", "/").endswith(_CHECKPOINT) for frame in frames)


RULE = IdleCheckpointingRule()
