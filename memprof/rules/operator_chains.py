"""What operators make of a large tensor value by value, up to what is small."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from memprof.rules.results_read import handed_outside
from memprof.trace import Frame
from memprof.views.operator_graph import Made, Node, Read
from memprof.views.window import Ints, Window

__all__ = [
    "BROADCASTING",
    "COMPARING",
    "LOOKING_UP",
    "MULTIPLYING",
    "NORMS",
    "PICKING",
    "POWERS",
    "REDUCING",
    "SUBTRACTING",
    "SUMS",
    "TIMES",
    "Chain",
    "chain_of",
]

TIMES = 8
"""As many times as large as what is made of it at the end a tensor has to be."""
_QUARTER = 4
"""What is made value by value has this part of the bytes at least: it may be of another type."""
SUBTRACTING = frozenset(("sub", "rsub"))
COMPARING = frozenset(("eq", "ne", "lt", "le", "gt", "ge"))
_LOGICAL = frozenset(
    f"{kind}_{name}" for kind in ("logical", "bitwise") for name in ("and", "or", "xor", "not")
)
BROADCASTING = SUBTRACTING | COMPARING | _LOGICAL
BROADCASTING |= frozenset(("add", "atan2", "div", "floor_divide", "fmax", "fmin", "fmod"))
BROADCASTING |= frozenset(("hypot", "maximum", "minimum", "mul", "pow", "remainder", "where"))
"""Operators that make a table of two small tensors, value by value."""
POWERS = frozenset(("abs", "div", "mul", "neg", "pow", "sqrt", "square"))
"""What may be done with differences before they are summed to a distance."""
_VALUE_BY_VALUE = BROADCASTING | POWERS
_VALUE_BY_VALUE |= frozenset(("_to_copy", "clone", "copy", "lerp", "addcdiv", "addcmul"))
_VALUE_BY_VALUE |= frozenset(("exp", "exp2", "expm1", "log", "log10", "log1p", "log2", "xlogy"))
_VALUE_BY_VALUE |= frozenset(("acos", "asin", "atan", "cos", "cosh", "sin", "sinc", "sinh", "tan"))
_VALUE_BY_VALUE |= frozenset(("elu", "erf", "erfc", "gelu", "hardtanh", "leaky_relu", "relu"))
_VALUE_BY_VALUE |= frozenset(("log_sigmoid_forward", "sigmoid", "silu", "softplus", "tanh"))
_VALUE_BY_VALUE |= frozenset(("ceil", "clamp", "clamp_max", "clamp_min", "floor", "frac", "round"))
_VALUE_BY_VALUE |= frozenset(("isfinite", "isinf", "isnan", "masked_fill", "nan_to_num", "sgn"))
_VALUE_BY_VALUE |= frozenset(("reciprocal", "rsqrt", "sign", "threshold", "trunc"))
SUMS = frozenset(("sum", "mean"))
NORMS = SUMS | frozenset(("norm", "linalg_vector_norm"))
REDUCING = NORMS | frozenset(("all", "amax", "amin", "aminmax", "any", "argmax", "argmin"))
REDUCING |= frozenset(("count_nonzero", "logsumexp", "max", "median", "min", "nansum", "nonzero"))
REDUCING |= frozenset(("prod", "std", "std_mean", "topk", "var", "var_mean"))
REDUCING |= frozenset(f"{name}_loss" for name in ("huber", "l1", "mse", "smooth_l1"))
REDUCING |= frozenset(("binary_cross_entropy", "binary_cross_entropy_with_logits"))
PICKING = frozenset(("index", "index_select", "gather", "masked_select", "take"))
LOOKING_UP = frozenset(("embedding", "index", "index_select"))
"""Operators that copy rows, and matrices, as often as they are asked for."""
MULTIPLYING = frozenset(("bmm", "baddbmm"))
"""Products of a matrix for each row: with one for all rows it is `mm`."""


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """A large tensor and all that is made of it value by value."""

    nodes: dict[Node, Made]
    ends: tuple[Read, ...]
    """What is made of these that is small."""

    @property
    def operators(self) -> frozenset[str]:
        """Those that make something small of it."""
        return frozenset(read.operator for read in self.ends)

    def reader(self, window: Window) -> Frame | None:
        """The program's line that makes something small of it."""
        frames = window.user_frames(window.trace.stack(self.ends[0].made[0]))
        return frames[0] if frames else None

    def may_be_read_unseen(self, window: Window) -> bool:
        """Whether a function that has the tensor, up to the one that reduces it, uses NumPy."""
        made_by = window.trace.stack(next(iter(self.nodes))[0])
        read_by = window.trace.stack(self.ends[0].made[0])
        pairs = zip(reversed(made_by), reversed(read_by), strict=False)
        differing = (at for at, (one, other) in enumerate(pairs) if one != other)
        common = next(differing, max(0, min(len(made_by), len(read_by)) - 1))
        # The function in which both lines are, or that calls both, is one of them.
        return handed_outside(window.user_frames(made_by[: len(made_by) - common]), None)

    def is_done(self, window: Window) -> bool:
        """Whether its tensors go while a window records, but those of its last step.

        What reads them later, between windows perhaps, is not known.
        """
        stacks = [stack for stack, _ in self.nodes]
        made = (window.lives.alloc >= 0) & np.isin(window.lives.stack, stacks)
        least = min(one.size for one in self.nodes.values())
        made &= ~window.has_owner & (window.lives.requested >= least)
        stays = made & (window.lives.free >= window.events)
        last = int(window.step_of_event[window.events - 1]) if window.events else 0
        return bool((made & ~stays).any()) and bool((window.made_in[stays] >= last).all())

    def rows(self, window: Window) -> Ints:
        """The lifetimes of its tensors, and of gradients that are as large."""
        lives = window.lives
        stacks = np.array([stack for stack, _ in self.nodes])
        reading = np.array([read.made[0] for read in self.ends if read.made[0]], stacks.dtype)
        origins = window.trace.events.origin[np.maximum(lives.alloc, 0)]
        large = (lives.alloc >= 0) & ~window.has_owner
        least = min(one.size for one in self.nodes.values())
        large &= _QUARTER * lives.requested >= least
        of_gradients = np.isin(origins, np.append(stacks, reading))
        return np.flatnonzero(large & (np.isin(lives.stack, stacks) | of_gradients))


def chain_of(
    made: Mapping[Node, Made], first: Made, ends: frozenset[str], *, parts: bool = True
) -> Chain | None:
    """What is made of a tensor; None where an operator needs it in another way, or none reads it.

    Args:
        made: what is known of all operators.
        first: the tensor.
        ends: operators that may read it, if they make an eighth of it or less.
        parts: whether any operator may read an eighth of it or less.
    """
    nodes, small, waiting = {first.node: first}, list[Read](), [first]
    while waiting:
        one = waiting.pop()
        if not one.reads:
            return None
        for read in one.reads:
            into = made.get(read.made)
            if read.made in nodes:
                continue
            if into is not None and read.operator in _VALUE_BY_VALUE and _is_as_large(into, first):
                nodes[read.made] = into
                waiting.append(into)
            elif (parts and TIMES * read.read <= first.size) or (
                read.operator in ends and TIMES * read.size <= first.size
            ):
                small.append(read)
            else:
                return None
    return Chain(nodes, tuple(small)) if small else None


def _is_as_large(one: Made, first: Made) -> bool:
    return _QUARTER * one.size >= first.size
