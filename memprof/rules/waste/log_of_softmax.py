"""log-of-softmax: a loss is computed by hand from probabilities, and each step of it is kept."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile

import numpy as np

from memprof.rules.case import Case
from memprof.rules.large_tensor import LargeTensor, large_tensor
from memprof.rules.made_in_calls import spared_by_one_function
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.frame_kind import FrameKind, frame_kind
from memprof.source_code.program import (
    Place,
    bound_names,
    called_name,
    calls_in,
    loaded_names,
    place_of,
)
from memprof.source_code.values import values_of
from memprof.trace import Frame, Phase
from memprof.units import format_bytes
from memprof.views.window import Window

__all__ = ["RULE"]

_FUSED = {"sigmoid": "logsigmoid", "softmax": "log_softmax"}
"""What computes the logarithm of the probabilities that a function returns."""
_BOUNDS = ("clamp", "clamp_min", "clip")
_CHOOSING = ("argmax", "detach", "gather", "index_select", "size", "take_along_dim", "topk")
"""Methods that read a few values, or keep none for the backward pass."""
_MOST_NAMES = 4
"""That are followed, one bound to what is made of the next."""
_SIMPLE = (ast.AnnAssign, ast.Assign, ast.AugAssign, ast.Expr, ast.Return)


_LAYERS = "/torch/nn/modules/activation.py"
_OF_TORCH = frozenset(("F", "functional", "math", "nn", "np", "numpy", "torch"))
"""Names of modules whose functions a value may be computed by."""


@dataclass(frozen=True, slots=True, eq=False)
class LogOfProbabilities(Match):
    """What is computed by hand."""

    function: str = ""
    """What made the probabilities."""
    made_in: str = ""
    """The function of the program that did, where that is another one."""


class LogOfSoftmax(WasteRule[LogOfProbabilities]):
    """`torch.log(logits.softmax(-1) + 1e-9)`: three tables are kept where one is needed."""

    name = "log-of-softmax"
    summary = "a logarithm is taken of probabilities, and both are kept for the backward pass"
    fixes = ("fused_loss",)

    def matches(self, window: Window) -> Iterator[LogOfProbabilities]:
        """Of the tensors as large as the largest those that a line with such a logarithm made."""
        large = large_tensor(window)
        if large is None or not window.learns_after(int(window.lives.alloc[large.row])):
            return
        sites = window.owners.sites.frames
        # At a peak in the backward pass some of what the loss made is gone again.
        of_step = large.alike & (window.made_in == window.made_in[large.row])
        for site in np.unique(window.site[of_step]).tolist():
            place = place_of(sites[site])
            if place is None:
                continue
            function, maker = _probabilities(place), None
            if not function:
                function, maker = _from_elsewhere(window, large, site, place)
            if not function:
                continue
            made = np.flatnonzero(of_step & (window.site == site))
            there = made[window.at_peak[made]]
            row = int(there[-1] if len(there) else made[-1])
            names = _names_of(place)
            is_read = _is_read_besides(place, names)
            given = names if maker is not None else set()
            own = frozenset(place.lines) if is_read else _lines_of_loss(place, given)
            lines = {place.program.filename: own}
            if maker is not None and not is_read:
                lines[maker.filename] = lines.get(maker.filename, frozenset()) | {maker.line}
            spared = spared_by_one_function(window, lines, is_loss=True)
            there = spared[window.at_peak[spared]]
            if not len(there):
                continue
            yield LogOfProbabilities(
                row=row,
                rows=there,
                nbytes=int(window.lives.size[there].sum()),
                saving=window.replayed(window.whole(spared)),
                function=function,
                made_in=maker.name if maker is not None else "",
            )
            return

    def title(self, match: LogOfProbabilities) -> str:  # noqa: ARG002 - every match reads the same
        """Say what they are."""
        return "are the logarithm of probabilities, kept beside them for the backward pass"

    def advice(self, match: LogOfProbabilities, case: Case) -> Iterator[Advice]:
        """Compute it from the logits in one go."""
        if case.site is None:
            return
        nbytes = format_bytes(match.nbytes)
        if match.function == "sigmoid":
            instead = "`F.binary_cross_entropy_with_logits` takes the logits, and keeps those alone"
        else:
            instead = "`F.cross_entropy` takes the logits and keeps one table"
        why = (
            f"{nbytes} are made of probabilities: {instead} (and so does "
            f"`F.{_FUSED[match.function]}`)."
        )
        if match.made_in:
            why += f" Have `{match.made_in}` return the logits."
        yield Advice("fused_loss", why, case.site)


def _operands(place: Place) -> Iterator[ast.expr]:
    """What a statement takes logarithms of."""
    for call in calls_in(place.statement, "log"):
        assert isinstance(call.func, ast.Attribute | ast.Name)
        is_method = isinstance(call.func, ast.Attribute) and not _is_torch(call.func.value)
        value = call.func.value if is_method and isinstance(call.func, ast.Attribute) else None
        operand = value or (call.args[0] if call.args else None)
        if operand is not None:
            yield operand


def _probabilities(place: Place) -> str:
    """The function whose result a statement takes the logarithm of; empty for none."""
    ends = (end for operand in _operands(place) for end in _ends(place, operand))
    names = (called_name(end) for end in ends if end is not None)
    return next((name for name in names if name in _FUSED), "")


def _names_of(place: Place) -> set[str]:
    """The names in what it takes the logarithm of."""
    return {name for operand in _operands(place) for name in loaded_names(operand)}


def _from_elsewhere(
    window: Window, large: LargeTensor, site: int, place: Place
) -> tuple[str, Frame | None]:
    """The same of probabilities that another function returned, or the caller has; and its line.

    A table of that size that `softmax` made, and which was there when the logarithm was taken.
    """
    ends = [end for operand in _operands(place) for end in _ends(place, operand)]
    calls = [end for end in ends if end is not None and _is_of_program(end)]
    if not calls and None not in ends:
        return "", None
    lives = window.lives
    made = large.alike & (window.made_in == window.made_in[large.row])
    made &= (window.site == site) & (window.phase != Phase.BACKWARD)
    if not made.any():
        return "", None
    made = np.flatnonzero(made)
    before = large.alike & (lives.alloc < lives.alloc[made[-1]])
    before &= (lives.free > lives.alloc[made[-1]]) & (window.phase != Phase.BACKWARD)
    filename = place.program.filename
    lines = {line for call in calls for line in range(call.lineno, (call.end_lineno or 0) + 1)}
    for row in np.flatnonzero(before)[::-1].tolist():
        stack = window.stack(row)
        is_given = None in ends or any(
            frame.filename == filename and frame.line in lines for frame in stack
        )
        function = _function_that_made(stack) if is_given else ""
        frame = window.frame_of(row)
        if function and frame != window.owners.sites.frames[site]:
            return function, frame
    return "", None


def _is_of_program(value: ast.expr) -> bool:
    """Whether a value is what a function of the program, or a model, returns."""
    if not isinstance(value, ast.Call):
        return False
    root = value.func
    while isinstance(root, ast.Attribute):
        root = root.value
    return not (isinstance(root, ast.Name) and root.id in _OF_TORCH)


def _function_that_made(stack: tuple[Frame, ...]) -> str:
    """``softmax`` or ``sigmoid``, where a layer, a function of torch or the line itself is that."""
    inside = list(takewhile(lambda frame: frame_kind(frame.filename) is FrameKind.TORCH, stack))
    for frame in inside:
        if frame.name in _FUSED:
            return frame.name
        if frame.filename.replace("\\", "/").endswith(_LAYERS):
            return _called_at(frame)
    return _called_at(stack[0]) if stack and not inside else ""


def _called_at(frame: Frame) -> str:
    place = place_of(frame)
    calls = calls_in(place.statement, *_FUSED) if place is not None else ()
    return next(map(called_name, calls), "")


def _lines_of_loss(place: Place, given: set[str]) -> frozenset[int]:
    """The lines that make the probabilities, and those that compute with them in the function.

    ``given`` are names of probabilities that another function made.
    """
    statements: list[ast.stmt] = [place.statement]
    names = set(given)
    for node in ast.walk(place.scope):
        if isinstance(node, ast.Assign) and calls_in(node.value, *_FUSED):
            names |= {one.id for one in bound_names(node) if isinstance(one, ast.Name)}
            statements.append(node)
    in_order = [node for node in ast.walk(place.scope) if isinstance(node, _SIMPLE)]
    for node in sorted(in_order, key=lambda one: one.lineno):
        if names & loaded_names(node) or node is place.statement:
            statements.append(node)
            names |= {one.id for one in bound_names(node) if isinstance(one, ast.Name)}
    return frozenset(
        line for one in statements for line in range(one.lineno, (one.end_lineno or one.lineno) + 1)
    )


def _is_read_besides(place: Place, names: set[str]) -> bool:
    """Whether probabilities are read by more than logarithms, an entropy say: they are needed.

    Some of their values may be chosen, as the one of each label.
    """
    spared: set[ast.AST] = set()
    for call in calls_in(place.scope, "log", *_CHOOSING):
        spared |= {*ast.walk(call.func), *(one for given in call.args for one in ast.walk(given))}
    spared |= {node.value for node in ast.walk(place.scope) if isinstance(node, ast.Subscript)}
    read = (node for node in ast.walk(place.scope) if isinstance(node, ast.Name))
    return any(
        node.id in names and isinstance(node.ctx, ast.Load) and node not in spared for node in read
    )


def _is_torch(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("torch", "np", "numpy", "math")


def _ends(place: Place, value: ast.expr | None, depth: int = 0) -> Iterator[ast.expr | None]:
    """What a value is but for a small number that is added, and for bounds; None: a parameter."""
    if isinstance(value, ast.BinOp):  # `1 - p + eps`
        yield from _ends(place, value.left, depth)
        yield from _ends(place, value.right, depth)
    elif called_name(value) in _BOUNDS if value is not None else False:
        assert isinstance(value, ast.Call)
        is_method = isinstance(value.func, ast.Attribute) and not _is_torch(value.func.value)
        given = value.func.value if is_method and isinstance(value.func, ast.Attribute) else None
        yield from _ends(place, given or next(iter(value.args), None), depth)
    elif isinstance(value, ast.Name):
        bound = list(values_of(place, value.id, place.statement))
        if len(bound) == 1 and bound[0] is None:
            yield None
        elif len(bound) == 1 and depth < _MOST_NAMES:
            yield from _ends(place, bound[0], depth + 1)
    elif value is not None and not isinstance(value, ast.Constant):
        yield value


RULE = LogOfSoftmax()
