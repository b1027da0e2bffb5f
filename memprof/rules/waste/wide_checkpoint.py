"""wide-checkpoint: one checkpoint spans many blocks, which are all computed again at once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from memprof.rules.case import Case
from memprof.rules.rule import Advice, WasteRule
from memprof.rules.waste.activations import ActivationsOfLine, activations_of_blocks
from memprof.trace import Frame, Phase
from memprof.units import format_bytes
from memprof.views.stacks import made_through
from memprof.views.window import Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.2
"""Of the peak, that checkpoints of each block would take off it."""
_MOSTLY = 0.5
"""Of the activations, that a backward pass has made again."""
_CHECKPOINT = "/torch/utils/checkpoint.py"


class WideCheckpointRule(WasteRule[ActivationsOfLine]):
    """`checkpoint(self.encoder, x)`: the backward pass makes all of the encoder's activations."""

    name = "wide-checkpoint"
    summary = "one checkpoint spans many blocks, which are all computed again at once"
    fixes = ("checkpoint",)

    def matches(self, window: Window) -> Iterator[ActivationsOfLine]:
        """Activations of many blocks at the peak, which one checkpoint makes in a backward pass."""
        for match in activations_of_blocks(window):
            again = made_through(window, _is_checkpoint)[match.rows]
            again &= window.phase_of_event[window.lives.alloc[match.rows]] == Phase.BACKWARD
            nbytes = int(window.lives.size[match.rows[again]].sum())
            saving = match.saving
            if nbytes < _MOSTLY * match.nbytes or saving is None:
                continue
            if window.share(saving.bytes) >= _LEAST_SHARE:
                yield ActivationsOfLine(
                    row=match.row,
                    rows=match.rows,
                    nbytes=match.nbytes,
                    saving=saving,
                    blocks=match.blocks,
                    look_at=_calling_frame(window),
                )

    def title(self, match: ActivationsOfLine) -> str:
        """Say how many blocks they are of."""
        return f"are activations of {match.parts} that one checkpoint computes again at once"

    def advice(self, match: ActivationsOfLine, case: Case) -> Iterator[Advice]:
        """Checkpoint each block."""
        why = (
            f"A checkpoint around {match.parts} keeps nothing in the forward pass, and makes "
            f"{format_bytes(match.nbytes)} of their activations at once in the backward pass: call "
            "`checkpoint` for each block, in the loop that goes through them."
        )
        yield Advice("checkpoint", why, case.site)


def _is_checkpoint(frame: Frame) -> bool:
    return frame.filename.replace("\\", "/").endswith(_CHECKPOINT)


def _calling_frame(window: Window) -> Frame | None:
    """The program's line from which most was made within checkpoints in forward passes."""
    lives, best, most = window.lives, None, 0
    in_forward = (window.phase == Phase.FORWARD) & made_through(window, _is_checkpoint)
    for stack in np.unique(lives.stack[in_forward]).tolist():
        frames = window.trace.stack(stack)
        outer = max(at for at, frame in enumerate(frames) if _is_checkpoint(frame))
        own = window.user_frames(frames[outer + 1 :])
        nbytes = int(lives.size[in_forward & (lives.stack == stack)].sum())
        if own and nbytes > most:
            best, most = own[0], nbytes
    return best


RULE = WideCheckpointRule()
