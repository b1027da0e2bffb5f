"""Models that a container keeps and the program calls, every one: an ensemble, which needs them."""

from __future__ import annotations

from memprof.rules.case import Case
from memprof.rules.containers import filled_container
from memprof.rules.finding import RuleFinding
from memprof.source_code.uses_of_items import calling_lines
from memprof.views.examination import Examination
from memprof.views.stacks import made_by_lines

__all__ = ["are_called"]

_NEARLY_ALL = 0.9
"""Of the bytes, that are parameters and buffers: states of an optimizer nobody needs any more."""


def are_called(finding: RuleFinding, examination: Examination) -> bool:
    """Whether growth is of models of which each was called since the last of them came."""
    device = next((one for one in examination.devices if one.name == finding.device), None)
    if device is None or finding.growth.model_share < _NEARLY_ALL:
        return False
    container = filled_container(Case(finding, examination))
    lines = calling_lines(container.place) if container is not None else frozenset()
    if container is None or not lines:
        return False
    filename, last = container.place.program.filename, finding.last_step
    return any(
        (made_by_lines(window, filename, lines) & (window.made_in >= last)).any()
        for window in device.windows
    )
