"""Models or parts that a container keeps and the program calls, every one: it needs them."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np

from memprof.rules.case import Case
from memprof.rules.containers import filled_container
from memprof.rules.finding import RuleFinding
from memprof.rules.made_of_bounded import container_name
from memprof.source_code.uses_of_items import calling_lines
from memprof.views.examination import Examination
from memprof.views.stacks import made_by_lines
from memprof.views.window import Window

__all__ = ["are_called", "are_parts_called"]

_NEARLY_ALL = 0.9
"""Of the bytes, that are parameters and buffers: states of an optimizer nobody needs any more. And
of parts, that are called."""
_LEAST_STEPS = 2
"""Steps between two parts: what a forward pass adds each time it was not to add."""


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


def are_parts_called(finding: RuleFinding, examination: Examination) -> bool:
    """Whether growth is of parts of one model, added now and then, of which each is called still.

    As the columns of a network that gets one more for each task, and asks all that it has.
    """
    device = next((one for one in examination.devices if one.name == finding.device), None)
    number, holders = finding.evidence.window, finding.holders
    if device is None or number < 0 or not holders or finding.growth.model_share < _NEARLY_ALL:
        return False
    if _LEAST_STEPS * finding.growth.times > finding.last_step - finding.first_step:
        return False
    name, window = container_name(holders[0]), device.windows[number]
    part = re.compile(rf"(?:.*\.)?{re.escape(name)}\.\d+(?=\.|$)")
    rows = np.isin(window.lives.alloc, finding.evidence.allocs)
    added = _parts(part, [window.module_name(int(row)) for row in np.flatnonzero(rows)])
    called = _parts(part, _modules_since(window, finding.last_step))
    return bool(name and added) and len(added & called) >= _NEARLY_ALL * len(added)


def _parts(part: re.Pattern[str], modules: Iterable[str]) -> set[str]:
    """The items of one container that modules are, or are in."""
    matches = (part.match(one) for one in set(modules))
    return {match.group() for match in matches if match is not None}


def _modules_since(window: Window, step: int) -> list[str]:
    """Those in which anything was allocated or freed from a step's beginning on."""
    labels = window.trace.events.label[window.first_event.get(step, window.events) :]
    return [window.trace.label(int(label)).module for label in np.unique(labels)]
