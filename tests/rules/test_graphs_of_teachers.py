"""A teacher's graphs in programs of their own: loops that are still running keep its results."""

from __future__ import annotations

import runpy

import memprof
from memprof.rules.ranked_findings import findings

ROWS, WIDTH, BATCHES = 512, 64, 8
HIDDEN = ROWS * WIDTH * 4
"""Bytes of what a layer makes."""
HEAD = """
import torch
from torch import nn
import memprof

def layers(number):
    return nn.Sequential(*(m for _ in range(number) for m in (nn.Linear(64, 64), nn.Tanh())))
"""
IN_EACH_STEP = """
def train(teacher, student):
    for _ in range(16):
        x = torch.randn(512, 64)
        wanted = teacher(x)
        loss = (student(x) - wanted.detach()).square().mean()
        loss.backward()
        student.zero_grad()
        memprof.step()

train(layers(6), layers(2))
"""
BEFORE_THE_STEPS = """
def train(teacher, student):
    pairs = [(x, teacher(x)) for x in torch.randn(8, 512, 64)]
    for number in range(16):
        x, target = pairs[number % 8]
        (student(x) - target.detach()).square().mean().backward()
        student.zero_grad()
        memprof.step()

train(layers(4), layers(1))
"""


def found_in(text, folder):
    program = folder / "taught.py"
    program.write_text(HEAD + text)
    with memprof.track(folder / "r.json", sources=["cpu"], allowance_s=60):
        runpy.run_path(str(program), run_name="__main__")
    return findings(memprof.load(folder / "r.json"))


def test_what_outlives_a_backward_pass_that_never_went_there_is_no_retained_graph(tmp_path):
    found, *others = found_in(IN_EACH_STEP, tmp_path)  # beside that of the last turn
    first = found.remedies[0]
    assert (found.rule, found.minor, found.bytes) == ("unvisited-graph", False, 2 * 6 * HIDDEN)
    assert (first.fix, first.code) == ("no_grad", "wanted = teacher(x)")
    assert "retained-graph" not in [one.rule for one in others]


def test_of_passes_that_follow_one_another_each_is_over_when_the_next_begins(tmp_path):
    (graphs,) = [one for one in found_in(BEFORE_THE_STEPS, tmp_path) if one.rule == "old-graphs"]
    first = graphs.remedies[0]
    assert (graphs.minor, graphs.bytes) == (False, 4 * BATCHES * HIDDEN)
    assert (first.fix, first.code) == (
        "no_grad",
        "pairs = [(x, teacher(x)) for x in torch.randn(8, 512, 64)]",
    )
    assert first.saves_bytes >= (BATCHES - 2) * 4 * HIDDEN
