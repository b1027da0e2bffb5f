"""What rules of waste ask of a window."""

from __future__ import annotations

from memprof.testing import TraceBuilder
from memprof.trace import Category, Frame, Phase
from memprof.views.window import Window


def test_a_share_is_of_the_peak_without_what_torch_keeps_for_its_libraries():
    builder = TraceBuilder().existing(1 << 16, "scratch", category=Category.LIBRARY_WORKSPACE)
    window = Window.of(builder.label(step=0).alloc(1 << 15, "batch").build())
    assert window.peak.bytes == 3 << 15
    assert window.share(1 << 14) == 0.5


def test_what_the_last_step_had_not_freed_was_to_be_freed_as_before():
    """A window may end in a backward pass, and just there the peak may be."""
    model, once = [Frame("forward", "model.py", 3)], [Frame("main", "train.py", 9)]
    builder = TraceBuilder()
    for step in range(3):
        builder.label(step=step, phase=Phase.FORWARD)
        builder.alloc(1024, f"saved{step}", stack=model)
        builder.alloc(512, f"plain{step}")  # by no stack that is known
        builder.label(step=step, phase=Phase.BACKWARD)
        if step < 2:
            builder.free(f"saved{step}").free(f"plain{step}")
    builder.label(step=2, phase=Phase.FORWARD).alloc(256, "new", stack=once)
    window = Window.of(builder.build())
    freed = [Phase.BACKWARD] * 5 + [Phase.UNKNOWN] * 2
    assert window.freed_by.tolist() == freed
