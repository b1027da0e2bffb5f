"""A program whose graph was looked at from Python lets go of it as well as one that nobody watches."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from memprof import native  # noqa: E402
from memprof.sources.graph_nodes import (  # noqa: E402
    is_node_type,
    keeps_node_objects,
    longest_walk,
    most_nodes,
    note_nodes,
)

_STACK_BYTES = 2 << 20
_NODES = 18_000
"""Twice as many as fill that stack when they are freed one within the other."""

_PROGRAM = f"""
import sys
import torch
import memprof

def longer(h, nodes):
    for _ in range(nodes):
        h = h * 1.0001
    return h

x = torch.zeros(300, requires_grad=True)
h = x
with memprof.track(sys.argv[1], allowance_s=60):
    if sys.argv[2] == "a chain through all steps":
        for _ in range({_NODES} // 500):
            h = longer(h, 500)
            memprof.step()
    elif sys.argv[2] == "a long backward pass":
        for _ in range(2):
            loss = longer(x, {_NODES}).sum()
            loss.backward()
            memprof.step()
    else:
        for _ in range(3):
            h = longer(h, {_NODES} // 3)
            assert memprof.holders(h)
h = loss = None
print("freed")
"""


@pytest.mark.parametrize("uses_native", [False, True])
@pytest.mark.parametrize(
    "program", ["a chain through all steps", "a long backward pass", "holders of a long chain"]
)
def test_a_long_graph_is_freed_without_leaving_the_stack(
    program: str, uses_native: bool, tmp_path: Path
) -> None:
    if uses_native and not native.available():
        pytest.skip("the native part is not built")
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(tmp_path / "run.json"), program],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "MEMPROF_NATIVE": str(int(uses_native))},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_STACK, (_STACK_BYTES, -1)),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("freed\n")


_MARKS = f"""
import torch
from memprof.sources.cuda.label_timeline import LabelRecorder
from memprof.sources.loop.loop_watch import LoopWatch
from memprof.sources.protocol import Interner

loop_watch = LoopWatch(Interner())
recorder = LabelRecorder(loop_watch)
loop_watch.open(on_step=lambda step: None)
recorder.start()
scale, h = torch.nn.Tanh(), torch.zeros(2, requires_grad=True)
for _ in range({_NODES}):
    h = scale(h)
recorder.stop()
loop_watch.close()
h = None
print("freed")
"""


def test_marks_on_what_modules_give_back_are_no_more_than_a_stack_allows() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _MARKS],
        check=False,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_STACK, (_STACK_BYTES, -1)),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "freed\n"


def test_a_walk_is_as_long_as_a_stack_allows_and_living_nodes_count() -> None:
    if not keeps_node_objects():
        assert most_nodes(10**9) == 10**9
        return
    longest = longest_walk()
    assert 0 < longest < 40_000
    assert most_nodes(7) == 7
    x = torch.zeros(1, requires_grad=True)
    h, nodes = x, []
    for _ in range(2 * longest):
        h = h * 1.5
        nodes.append(h.grad_fn)
    note_nodes(len(nodes))
    assert most_nodes(10**9) == 0  # so many live
    del h, nodes
    gone_s = time.monotonic()
    while not most_nodes(1):  # the next count comes after a second
        assert time.monotonic() - gone_s < 60
        time.sleep(0.05)


_WALKS = """
from memprof.sources.graph_nodes import longest_walk, most_nodes, note_nodes

longest = longest_walk()
most = []
for _ in range(3):
    most.append(most_nodes(10**9))
    note_nodes(longest // 3)
print(longest, *most)
"""


def test_a_walk_leaves_something_for_the_next_one() -> None:
    if not keeps_node_objects():
        return
    done = subprocess.run(
        [sys.executable, "-c", _WALKS], check=True, capture_output=True, text=True
    )
    longest, *most = map(int, done.stdout.split())
    left = [2 * longest - walk * (longest // 3) for walk in range(3)]
    assert most == [(one + 1) // 2 for one in left]


def test_nodes_are_told_from_other_objects() -> None:
    assert is_node_type(type((torch.zeros(1, requires_grad=True) * 2).grad_fn))
    assert not is_node_type(torch.Tensor)
    assert not is_node_type(dict)
