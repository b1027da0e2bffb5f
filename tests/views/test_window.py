"""What rules of waste ask of a window."""

from __future__ import annotations

import numpy as np
import pytest

from memprof.testing import TraceBuilder
from memprof.trace import EMPTY, Category, Frame, Phase
from memprof.views.window import Window

MODEL = [Frame("forward", "model.py", 3)]


def training(*, begins_in_step: bool, ends_in_step: bool) -> Window:
    """Twelve steps that save 1,024 bytes each for a backward pass, and the sixth 2,048."""
    builder = TraceBuilder().existing(512, "weight", category=Category.PARAMETER)
    if begins_in_step:
        builder.existing(2048, "saved before")
    for step in range(12):
        builder.label(step=step, phase=Phase.FORWARD)
        if not step and begins_in_step:
            builder.free("saved before")
            continue
        builder.alloc(2048 if step == 5 else 1024, f"saved{step}", stack=MODEL)
        builder.label(step=step, phase=Phase.BACKWARD)
        if step < 11 or not ends_in_step:
            builder.free(f"saved{step}")
    return Window.of(builder.build())


@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize("ends", [False, True])
def test_a_step_that_is_cut_off_says_nothing_of_what_a_change_saves(begins, ends):
    """What was there before it, or had not been freed, is not known to be of what is left out."""
    window = training(begins_in_step=begins, ends_in_step=ends)
    is_known = (window.lives.stack != EMPTY) & ((window.made_in < 11) | (not ends))
    saving = window.replayed(window.whole(np.flatnonzero(is_known)))
    assert (saving.overall.before, saving.overall.after) == (2560, 512)


def test_a_peak_in_a_step_that_is_cut_off_counts():
    window = training(begins_in_step=False, ends_in_step=True)
    saving = window.replayed(window.whole(np.flatnonzero(window.made_in == 5)))
    assert (saving.before, saving.after) == (2560, 1536)


def test_a_share_is_of_the_peak_without_what_torch_keeps_for_its_libraries():
    builder = TraceBuilder().existing(1 << 16, "scratch", category=Category.LIBRARY_WORKSPACE)
    window = Window.of(builder.label(step=0).alloc(1 << 15, "batch").build())
    assert window.peak.bytes == 3 << 15
    assert window.share(1 << 14) == 0.5


def test_what_the_last_step_had_not_freed_was_to_be_freed_as_before():
    """A window may end in a backward pass, and just there the peak may be."""
    once = [Frame("main", "train.py", 9)]
    builder = TraceBuilder()
    for step in range(3):
        builder.label(step=step, phase=Phase.FORWARD)
        builder.alloc(1024, f"saved{step}", stack=MODEL)
        builder.alloc(512, f"plain{step}")  # by no stack that is known
        builder.label(step=step, phase=Phase.BACKWARD)
        if step < 2:
            builder.free(f"saved{step}").free(f"plain{step}")
    builder.label(step=2, phase=Phase.FORWARD).alloc(256, "new", stack=once)
    window = Window.of(builder.build())
    freed = [Phase.BACKWARD] * 5 + [Phase.UNKNOWN] * 2
    assert window.freed_by.tolist() == freed


def test_what_ran_at_a_peak_without_a_stack_is_what_ran_before_it_in_its_step():
    """A counter of eight bytes may have none."""
    once = [Frame("main", "train.py", 9)]
    builder = TraceBuilder().label(step=0).alloc(1024, "hidden", stack=once).free("hidden")
    builder.label(step=1).alloc(1024, "state", stack=MODEL).alloc(512, "count")
    window = Window.of(builder.build())
    assert window.peak.bytes == 1536
    assert window.stack_at_peak == tuple(MODEL)


def test_what_ran_in_another_step_is_not_what_ran_at_the_peak():
    builder = TraceBuilder().label(step=0).alloc(1024, "state", stack=MODEL)
    window = Window.of(builder.label(step=1).alloc(512, "count").build())
    assert window.peak.bytes == 1536
    assert window.stack_at_peak == ()
