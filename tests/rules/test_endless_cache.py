"""endless-cache: a cache that outlives its calls is filled up to the end of a run without steps."""

from __future__ import annotations

from functools import lru_cache

import pytest
import torch

import memprof
from memprof.loading import load
from memprof.records import Finding, Holder
from memprof.reference_chain import Link, LinkKind
from memprof.rules.ranked_findings import findings
from memprof.testing import TraceBuilder
from memprof.trace import Frame, Phase
from tests.rules.recorded import Recording, findings_of

ENTRIES, NBYTES = 64, 1 << 20
CALL = Frame("_call_impl", "/usr/lib/python3/site-packages/torch/nn/modules/module.py", 1773)
"""Of the one module of the program, in whose call everything happens: no loop of it is a step's."""
STACK = (
    Frame("kinetic", "/home/user/solver.py", 52),
    CALL,
    Frame("main", "/home/user/solver.py", 90),
)
CACHE = Link(LinkKind.LRU_CACHE, "kinetic", "kinetic", "/home/user/solver.py", 49, length=ENTRIES)


def cached(*links, filled_in: int = ENTRIES) -> Recording:
    """A loop of as many turns as there are entries; the first ``filled_in`` of them make them all.

    No step of it is known, and a search at the end comes upon their holder.
    """
    trace = TraceBuilder(device="cpu").label(step=0, phase=Phase.OTHER)
    for turn in range(ENTRIES):
        for number in range(ENTRIES // filled_in if turn < filled_in else 0):
            trace.alloc(NBYTES, f"{turn} {number}", stack=STACK)
        for number in range(4):
            trace.alloc(NBYTES, f"work {turn} {number}").free(f"work {turn} {number}")
    holder = Holder(links[-1].kind, "/home/user/solver.py", 49, "@lru_cache", list(links))
    search = Finding(
        "holders",
        device="cpu",
        step=-1,
        stack=1,
        bytes=ENTRIES * NBYTES,
        count=ENTRIES,
        holders=[holder],
        details={"reason": "resident"},
    )
    return Recording((trace,), None, (search,))


OWNER = Link(LinkKind.CLASS_ATTRIBUTE, "kinetic", "Operator")


def fires():
    return cached(Link(LinkKind.GLOBAL, "Operator", "__main__"), OWNER, CACHE)


def looks_alike():
    """A table for all sizes that there are, which is full after a quarter of the run."""
    return cached(Link(LinkKind.GLOBAL, "Operator", "__main__"), OWNER, CACHE, filled_in=16)


def results_in_a_list():
    """A trajectory in a variable may be what the program is there for."""
    states = Link(LinkKind.LOCAL, "states", "main", "/home/user/solver.py", 80)
    return cached(states, Link(LinkKind.ITEM, "0", "list", length=ENTRIES))


def test_the_line_is_told_with_what_each_run_of_it_adds(tmp_path):
    (found, *_) = findings_of(fires, tmp_path / "run.json")
    assert (found.rule, found.kind.value, found.bytes) == (
        "endless-cache",
        "leak",
        ENTRIES * NBYTES,
    )
    assert found.title.startswith(
        "grows by 1 MiB each time user/solver.py:52 runs (64 times): lru_cache of kinetic()"
    )
    assert (found.site.line, found.remedies[0].fix) == (52, "bound_cache")


@pytest.mark.parametrize("program", [looks_alike, results_in_a_list])
def test_what_is_full_or_may_be_meant_is_no_endless_cache(program, tmp_path):
    rules = {one.rule for one in findings_of(program, tmp_path / "run.json")}
    assert "endless-cache" not in rules


@pytest.mark.parametrize("size", [None, 4])
def test_an_integrator_that_calls_no_module_is_told_of_its_cache(size, tmp_path):
    @lru_cache(maxsize=size)
    def kinetic(width: float) -> torch.Tensor:
        return torch.full((256, 256), width) @ torch.ones(256, 256)

    state = torch.ones(256, 4)
    with memprof.track(tmp_path / "run.json", sources=("cpu",), allowance_s=600):
        for turn in range(ENTRIES):
            state = kinetic(1 / (turn + 1)) @ state
    rules = [one.rule for one in findings(load(tmp_path / "run.json"))]
    assert ("functools-cache" in rules) is (size is None)
    assert kinetic.cache_info().currsize == (size or ENTRIES)
