"""Lines that bind tensors whose allocation no window recorded, as a search for holders told them.

A loop that makes the data may end the first window, and the data is joined after it.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from memprof.records import Holder
from memprof.reference_chain import LinkKind
from memprof.run import Run
from memprof.source_code.program import Place, program_of
from memprof.trace import EMPTY, Frame

__all__ = ["bound_lines"]

_BOUND = (LinkKind.ATTRIBUTE, LinkKind.MODULE_ATTRIBUTE)
"""What a line binds by its name; of a variable the search tells where its function is."""


def bound_lines(run: Run, device: str) -> Mapping[int, Frame]:
    """By the bytes of a tensor without a stack, the line that calls something and binds it."""
    lines: dict[int, Frame] = {}
    for one in run.findings:
        is_meant = one.finding == "holders" and one.device == device and one.count == 1
        if is_meant and one.stack == EMPTY and one.holders:
            place = _place_of(run, one.holders[0])
            if place is not None:
                names = [one.name for one in (place.class_, place.function) if one is not None]
                filename = one.holders[0].filename
                lines[one.bytes] = Frame(".".join(names), filename, one.holders[0].line)
    return lines


def _place_of(run: Run, holder: Holder) -> Place | None:
    """The assignment of a call's result at a holder's line; None where the file is another now."""
    program = program_of(holder.filename) if holder.kind in _BOUND and holder.line else None
    if program is None or program.code(holder.line).strip() != holder.code.strip():
        return None
    if run.digests.get(program.filename, program.digest) != program.digest:
        return None
    place = program.at(holder.line)
    if place is None or not isinstance(place.statement, (ast.Assign, ast.AnnAssign)):
        return None
    return place if isinstance(place.statement.value, ast.Call) else None
