"""double-precision: a model was converted to float64, and with it all that is computed."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

import numpy as np

from memprof.rules.case import Case
from memprof.rules.rule import EVERY_OTHER, Advice, Match, WasteRule
from memprof.source_code.idioms import last_name
from memprof.source_code.program import (
    Place,
    Program,
    arguments,
    bound_names,
    called_name,
    calls_in,
    own_calls,
    place_of,
)
from memprof.source_code.settings import meanings
from memprof.trace import Category, Frame
from memprof.units import format_bytes
from memprof.views.peak_without import Saving
from memprof.views.stacks import made_through
from memprof.views.window import Bools, Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.9
"""Of the parameters' bytes that the conversion made: a model with one layer in double precision,
for a sum that needs it, is meant so."""
_LEAST_NOTED = 64 << 10
"""Bytes of a result whose precision is recorded."""
_LBFGS_FILE = "/torch/optim/lbfgs.py"
_DOUBLE = frozenset(("DoubleTensor", "double", "float64"))
"""How torch calls the type, or a tensor of it."""
_BY_TEXT = ("torch.DoubleTensor", "torch.cuda.DoubleTensor")
_BY_DEFAULT = ("set_default_dtype", "set_default_tensor_type")
_ASKING = ("double", "to", "type", *_BY_DEFAULT)
_CLOSE = 2.0**-23
"""The step between 1 and the next number in single precision (IEEE 754)."""
_MODULE_FILE = "/torch/nn/modules/module.py"


class DoublePrecision(WasteRule[Match]):
    """`model.double()`: what is computed with such weights is twice as wide as in float32."""

    name = "double-precision"
    summary = "a model and all it computes are in double precision"
    fixes = ("single_precision",)
    yields_to = EVERY_OTHER  # a simulation may need it

    def matches(self, window: Window) -> Iterator[Match]:
        """Parameters at the peak that ``Module.double`` made."""
        if window.peak.event < 0:
            return
        parameters = window.at_peak & (window.category == Category.PARAMETER)
        if made_through(window, _is_lbfgs).any():  # its line searches end early in float32
            return
        if any(map(_compares_closely, window.programs)):
            return
        double = parameters & made_through(window, _is_conversion)
        look_at = None
        if double.any():
            if window.bytes_of(double) < _LEAST_SHARE * window.bytes_of(parameters):
                return
        else:
            double = _computed_in_double(window)
            weights, look_at = _made_in_double(window, parameters)
            if not double.any():
                return
            if look_at is not None:
                double = weights
            else:
                look_at = _conversion_in(window.programs)
            if look_at is None:
                return
        peak = window.peak.bytes
        yield Match(
            row=window.main_site(double),
            rows=np.flatnonzero(window.at_peak),
            nbytes=peak,
            saving=Saving(peak, peak - peak // 2),
            look_at=look_at,
        )

    def title(self, match: Match) -> str:  # noqa: ARG002 - every match reads the same
        """Say how wide they are."""
        return "are in double precision"

    def advice(self, match: Match, case: Case) -> Iterator[Advice]:
        """Compute in float32: autocast leaves what is in double precision as it is."""
        nbytes = format_bytes(match.nbytes)
        why = (
            f"The model is in float64, and with it the {nbytes}: in float32 they are half. Leave "
            "out what asks for that (`double()`, `torch.float64`), and make the data `float()`."
        )
        yield Advice("single_precision", why, case.site)


def _computed_in_double(window: Window) -> Bools:
    """What modules made in double precision, where nearly all that they made is.

    Of what is there at the peak; or, where that lies beyond all passes, of what is there in these.
    """
    made = (window.module > 0) & (window.category == Category.ACTIVATION)
    made &= window.lives.requested >= _LEAST_NOTED
    if (made & window.at_peak).any():
        made &= window.at_peak
    return _where_nearly_all(window, made)


def _where_nearly_all(window: Window, made: Bools) -> Bools:
    """Which of some results are recorded as double; none where too few of them are."""
    double = np.zeros(len(window.lives), dtype=bool)
    for record in window.doubles:
        for stack, size in zip(record.stack, record.size, strict=True):
            double |= (window.lives.stack == stack) & (window.lives.requested == size)
    enough = window.bytes_of(made & double) >= _LEAST_SHARE * window.bytes_of(made) > 0
    return made & double if enough else np.zeros_like(double)


def _made_in_double(window: Window, parameters: Bools) -> tuple[Bools, Frame | None]:
    """Parameters that were made so, and the line on their stack that asks for it; else None.

    ``model.to(torch.float64)``, or ``Net(dtype=torch.float64)`` that hands it to its layers.
    """
    double = _where_nearly_all(window, parameters & (window.lives.requested >= _LEAST_NOTED))
    stack = window.stack(window.main_site(double)) if double.any() else ()
    for frame in window.user_frames(stack):
        place = place_of(frame)
        for call in own_calls(place.statement) if place is not None else ():
            if place is not None and _gives_double(place, call, window.programs):
                return double, frame
    return double, None


def _conversion_in(programs: Sequence[Program]) -> Frame | None:
    """The program's one statement that asks for double precision, or for the type of its data.

    Of several the first that converts what is called: the others convert its data.
    """
    calls = [
        (program, call)
        for program in programs
        for call in calls_in(program.tree, *_ASKING)
        if _asks_for_double(program, call, programs)
    ]
    if len(calls) > 1:
        calls = [
            (program, call)
            for program, call in calls
            if called_name(call) in _BY_DEFAULT or _is_of_called(program, call)
        ]
    place = calls[0][0].place(calls[0][1]) if calls else None
    if place is None:
        return None
    name = place.function.name if place.function is not None else "<module>"
    return Frame(name, place.program.filename, place.line)


def _asks_for_double(program: Program, call: ast.Call, programs: Sequence[Program]) -> bool:
    """``model.double()``, ``model.to(torch.float64)``, and ``model.to(x.dtype)`` of what is called.

    A mask takes the type of other values as well, and nobody calls it.
    """
    given = list(arguments(call))
    if called_name(call) == "double":
        return isinstance(call.func, ast.Attribute) and not given
    place = program.place(call)
    if place is None or (called_name(call) == "type" and not isinstance(call.func, ast.Attribute)):
        return False
    if _gives_double(place, call, programs):
        return True
    has_type = any(isinstance(one, ast.Attribute) and one.attr == "dtype" for one in given)
    return has_type and isinstance(call.func, ast.Attribute) and _is_of_called(program, call)


def _gives_double(place: Place, call: ast.Call, programs: Sequence[Program]) -> bool:
    """Whether a call is given the type, or a name that stands for it."""
    return any(
        (isinstance(meant, ast.Attribute) and meant.attr in _DOUBLE)
        or (isinstance(meant, ast.Constant) and meant.value in _BY_TEXT)
        for one in arguments(call)
        for _, meant in meanings(place, one, programs)
    )


def _is_of_called(program: Program, call: ast.Call) -> bool:
    """Whether the program calls what a method converts, or what its result is bound to."""
    place = program.place(call)
    if place is None or not isinstance(call.func, ast.Attribute):
        return False
    known_by = [
        last_name(ast.unparse(one)) for one in (call.func.value, *bound_names(place.statement))
    ]
    return bool(calls_in(program.tree, *known_by))


def _compares_closely(program: Program) -> bool:
    """Whether a file compares with less than float32 can tell from 0 beside 1: ``err < 1e-9``."""
    return any(
        isinstance(one, ast.Constant) and isinstance(one.value, float) and 0 < one.value < _CLOSE
        for node in program.nodes
        if isinstance(node, ast.Compare)
        for one in node.comparators
    )


def _is_conversion(frame: Frame) -> bool:
    """Whether it is a frame of ``Module.double``."""
    if frame.name.rpartition(".")[2] != "double":
        return False
    return frame.filename.replace("\\", "/").endswith(_MODULE_FILE)


def _is_lbfgs(frame: Frame) -> bool:
    return frame.filename.replace("\\", "/").endswith(_LBFGS_FILE)


RULE = DoublePrecision()
