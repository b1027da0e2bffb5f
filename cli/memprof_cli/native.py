"""``memprof native``: builds the native part of the recorder for the torch of this Python."""

from __future__ import annotations

from importlib.util import find_spec

import click

from memprof import native
from memprof.errors import MissingError

__all__ = ["command"]


@click.command(name="native")
def command() -> int:
    """Build the native part for the torch of this Python, once; recordings use it from then on.

    With it recording costs a fraction, sees all CPU memory (compiled graphs, temporaries inside
    operators, other threads) and leaves autograd alone. It takes a C++ compiler, Python's headers
    and setuptools, and up to a minute. MEMPROF_NATIVE=0 leaves it unused.
    """
    if find_spec("torch") is None:
        raise MissingError("the native part is built for a torch, and there is none")
    was_there = native.available()
    place = native.build()
    parts = "CPU and CUDA" if native.has_cuda() else "CPU"
    click.echo(f"{'there already' if was_there else 'built'}: {parts}, in {place}")
    return 0
