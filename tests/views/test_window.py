"""What rules of waste ask of a window."""

from __future__ import annotations

from memprof.testing import TraceBuilder
from memprof.trace import Category
from memprof.views.window import Window


def test_a_share_is_of_the_peak_without_what_torch_keeps_for_its_libraries():
    builder = TraceBuilder().existing(1 << 16, "scratch", category=Category.LIBRARY_WORKSPACE)
    window = Window.of(builder.label(step=0).alloc(1 << 15, "batch").build())
    assert window.peak.bytes == 3 << 15
    assert window.share(1 << 14) == 0.5
