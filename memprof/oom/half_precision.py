"""Which activations bfloat16 would halve, and whether a job already computes in a short format.

A trace has no dtypes: the job's own record of a failure has, and stacks give autocast away. What
halving is worth is for a replay to say.
"""

from __future__ import annotations

import enum
import re
from typing import Any

import numpy as np
import numpy.typing as npt

from memprof.oom.failed_allocation import Failure
from memprof.oom.resize_batch import of_the_passes, share_of_request
from memprof.oom.stale_blocks import Moment
from memprof.trace import Category, Phase, Tables

__all__ = ["Precision", "computes_in", "halving", "weight_copies"]

_SHORT_FILES = re.compile(
    r"/(?:amp/\w+|fp16/\w+|bf16_optimizer|fp16_optimizer|float16_module)\.py$"
)
_SHORT_NAMES = frozenset({"decorate_autocast", "decorate_fwd", "convert_outputs_to_fp32"})
_SHORT_NATIVE = "at::autocast::"
_CASTS = frozenset({"half", "bfloat16"})
_MODULE_FILE = "/torch/nn/modules/module.py"

_KEPT_LONG = frozenset(
    [
        "binary_cross_entropy_with_logits",
        "cosine_embedding_loss",
        "cosine_similarity",
        "cross_entropy",
        "group_norm",
        "hinge_embedding_loss",
        "kl_div",
        "l1_loss",
        "layer_norm",
        "log_softmax",
        "mse_loss",
        "nll_loss",
        "normalize",
        "poisson_nll_loss",
        "smooth_l1_loss",
        "soft_margin_loss",
        "softmax",
        "softmin",
        "softplus",
        "triplet_margin_loss",
    ]
)
"""Functions of torch.nn.functional that autocast runs in float32 (docs: "CUDA Ops that can
autocast to float32")."""


class Precision(enum.Enum):
    """The format of most activations."""

    LONG = "float32"
    SHORT = "bfloat16 or float16"
    UNKNOWN = "not recorded"


def computes_in(failure: Failure) -> Precision:
    """What the job itself said when memory ran out, else what its stacks show."""
    details = failure.details or {}
    live = details.get("live")
    dtypes = live.get("dtype") if isinstance(live, dict) else None
    weights = dtypes.get("parameter") if isinstance(dtypes, dict) else None
    if details.get("autocast") or (isinstance(weights, dict) and _mostly_short(weights)):
        return Precision.SHORT
    if failure.window is not None and _casts(failure.window.trace.tables):
        return Precision.SHORT
    # Outside a forward pass autocast is off whether the job uses it or not.
    in_forward = failure.label.phase is Phase.FORWARD and details.get("autocast") == ""
    return Precision.LONG if weights and in_forward else Precision.UNKNOWN


def _mostly_short(sums: dict[str, Any]) -> bool:
    sums_of_floats = {name: size for name, size in sums.items() if isinstance(size, (int, float))}
    long = sum(size for name, size in sums_of_floats.items() if name in ("float32", "float64"))
    return long < sum(sums_of_floats.values()) / 2


def _casts(tables: Tables) -> bool:
    for frame in tables.frames:
        path = frame.filename.replace("\\", "/")
        if frame.name.startswith(_SHORT_NATIVE) or frame.name in _SHORT_NAMES:
            return True
        if _SHORT_FILES.search(path):
            return True
        if frame.name in _CASTS and path.endswith(_MODULE_FILE):
            return True
    return False


def halving(moment: Moment) -> npt.NDArray[np.bool_]:
    """For every event whether autocast would halve what it asks for, were all of it float32.

    Inputs stay as they are, and so does what autocast computes in float32.
    """
    lives, trace = moment.window.lives, moment.window.trace
    is_lasting = np.array([_kept_long(trace.tables, stack) for stack in trace.tables.stacks])
    rows = of_the_passes(moment) & ~is_lasting[lives.stack]
    events = np.zeros(len(trace.events), dtype=bool)
    events[lives.alloc[rows]] = True
    long = bool(is_lasting[trace.events.stack[moment.event]])
    events[moment.event] = not long and share_of_request(moment, rows.astype(np.float64)) > 0
    return events


def _kept_long(tables: Tables, stack: tuple[int, ...]) -> bool:
    return bool(stack) and tables.frames[stack[0]].name in _KEPT_LONG


def weight_copies(moment: Moment) -> int:
    """Bytes of the casts of all weights that autocast keeps to the end of a forward pass."""
    lives, owners = moment.window.lives, moment.window.owners
    weights = moment.alive & (owners.category.of == int(Category.PARAMETER))
    return int(lives.size[weights].sum()) // 2
