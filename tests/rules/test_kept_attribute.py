"""kept-attribute: an attribute or a variable holds the tensors beyond their step."""

from __future__ import annotations

import os
from types import SimpleNamespace

import torch

from memprof.loading import load
from memprof.rules.ranked_findings import findings
from memprof.testing import TraceBuilder, save_snapshot, snapshot
from memprof.trace import Frame
from tests import forks
from tests.rules.recorded import findings_of

WIDTH, MIB = 64, 1 << 20


def fires():
    """Samples that stay get their features in the step that first needs them."""
    samples = [SimpleNamespace(features=None) for _ in range(64)]

    def step(number):
        sample = samples[number]
        sample.features = torch.zeros(WIDTH, WIDTH)

    return step


def looks_alike():
    """One sample gets new features in each step."""
    sample = SimpleNamespace(features=None)

    def step(number):
        sample.features = torch.zeros(WIDTH, WIDTH)

    return step


def test_the_attribute_is_to_be_let_go(tmp_path):
    (found,) = findings_of(fires, tmp_path / "run.json")
    first = found.remedies[0]
    assert found.rule == first.rule == "kept-attribute"
    assert found.bytes_per_step == WIDTH * WIDTH * 4
    assert first.fix == "del_ref"
    assert first.code == "sample.features = torch.zeros(WIDTH, WIDTH)"


def test_without_a_holder_the_container_is_told_that_the_line_itself_fills(tmp_path):
    """As in a snapshot that torch wrote: its stacks tell the loop, and nothing who holds."""
    path = tmp_path / "train.py"
    path.write_text("for number in range(20):\n    x = torch.ones(9)\n    kept.append(x + 1)\n")
    os.utime(path, (0, 0))  # it was there before the snapshot
    trace = TraceBuilder()
    for number in range(20):
        trace.alloc(WIDTH, f"x{number}", stack=[Frame("<module>", str(path), 2)])
        trace.alloc(MIB, f"kept{number}", stack=[Frame("<module>", str(path), 3)])
        trace.free(f"x{number}")
    save_snapshot(tmp_path / "snapshot.pickle", snapshot(trace.build()))
    (found,) = findings(load(tmp_path / "snapshot.pickle"))
    assert (found.rule, found.bytes_per_step, found.site.line) == ("kept-attribute", MIB, 3)
    first, second = found.remedies
    assert (first.fix, second.fix) == ("clear_container", "del_ref")
    assert first.why.startswith("`kept` takes what this line makes: empty it")


BY_PARAMETER = """
import sys
import memprof
import torch
from tests.unhurried import lift_limits

class Graph:
    pass

def train(graphs, tracker):
    for name, graph in graphs:
        vars(graph)[name] = torch.zeros(64, 64)
        tracker.step()

def main():
    lift_limits()
    with memprof.track(sys.argv[1], sources=["cpu"], allowance_s=600) as tracker:
        train([("table", Graph()) for _ in range(24)], tracker)

main()
"""


def test_of_a_parameter_the_function_is_named_and_not_the_line_that_it_was_at(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(BY_PARAMETER)
    done = forks.run_file(script, tmp_path / "run.json")
    assert done.returncode == 0, done.stderr
    (found,) = findings(load(tmp_path / "run.json"))
    (only,) = found.remedies
    assert (found.rule, found.bytes_per_step) == ("kept-attribute", WIDTH * WIDTH * 4)
    assert (only.fix, only.code) == ("del_ref", "def train(graphs, tracker):")
