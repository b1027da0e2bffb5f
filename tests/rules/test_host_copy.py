"""host-copy: large tensors that stay on the device have twins of the same sizes on the host."""

from __future__ import annotations

from memprof.testing import TraceBuilder
from memprof.trace import Phase

MIB = 1 << 20


def tables(device: str, *sizes: int) -> TraceBuilder:
    """Twelve steps beside tables of those sizes, which stay."""
    trace = TraceBuilder(device=device).label(step=0, phase=Phase.OTHER)
    for size in sizes:
        trace.alloc(size, f"table{size}")
    for step in range(12):
        trace.label(step=step, phase=Phase.FORWARD).alloc(MIB, f"x{step}").free(f"x{step}")
    return trace


def fires():
    return tables("cuda:0", 4 * MIB, 6 * MIB), tables("cpu", 4 * MIB, 6 * MIB)


def looks_alike():
    return tables("cuda:0", 4 * MIB, 6 * MIB), tables("cpu", 3 * MIB, 5 * MIB)
