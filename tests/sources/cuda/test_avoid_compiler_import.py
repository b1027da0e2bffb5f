"""A look at torch's stacks does not bring its compiler into the job; a real torch, no GPU."""

from __future__ import annotations

import pytest

from tests import forks

pytest.importorskip("torch", reason="it is torch that imports its compiler")

NAMING = """
import sys, torch
from memprof.sources.cuda.avoid_compiler_import import compiler_left_out
stack = torch._C._profiler.gather_traceback(True, True, False)
with compiler_left_out(torch):
    named = torch._C._profiler.symbolize_tracebacks([stack])
assert named[0][0]["name"] == "<module>"
"""


def failure(code: str) -> str:
    """What a Python of its own says of the code if it fails, its assertions among it; else empty."""
    done = forks.run(code, only_torch=True)
    return done.stderr or "failed" if done.returncode else ""


def test_frames_are_named_without_importing_the_compiler():
    imported = "'torch._inductor' in sys.modules or '_inductor' in vars(torch)"
    assert failure(f"{NAMING}assert not ({imported})") == ""


def test_who_needs_the_compiler_in_the_meantime_gets_it():
    code = (
        NAMING
        + "with compiler_left_out(torch):\n"
        + "    assert torch._inductor.config.__name__ == 'torch._inductor.config'\n"
        + "assert torch._inductor is sys.modules['torch._inductor']\n"
        + "with compiler_left_out(torch):\n"
        + "    assert torch._inductor is sys.modules['torch._inductor']\n"
    )
    assert failure(code) == ""


def test_whoever_took_the_stand_in_for_the_compiler_has_the_compiler():
    code = (
        NAMING
        + "with compiler_left_out(torch):\n"
        + "    taken = vars(torch)['_inductor']\n"
        + "import torch._inductor.codecache as codecache\n"
        + "assert taken.codecache is codecache\n"
    )
    assert failure(code) == ""
