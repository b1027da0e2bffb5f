"""Of two findings about the same memory one is reported: which one is what their rules declare."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="one of the programs runs a model")

import torch
from torch import nn

from memprof.loading import load
from memprof.records import Holder, Site
from memprof.reference_chain import Link, LinkKind
from memprof.rules.finding import Kind, RuleFinding
from memprof.rules.ranked_findings import findings, without_repeats
from memprof.testing import TraceBuilder, step_columns, write_run
from memprof.trace import Frame, Phase
from tests.rules.recorded import findings_of

LOADING = Site("/home/me/train.py", 7)
TRAINING = Site("/home/me/train.py", 12)


def held_by(name):
    link = Link(LinkKind.GLOBAL, name, "train")
    return (Holder(link.kind, "/home/me/train.py", 3, "", [link]),)


def found(rule="", kind=Kind.WASTE, device="cuda:0", site=None, holders=()):
    return RuleFinding(kind, device, site or Site(), rule or kind.value, rule=rule, holders=holders)


LEAK = found(kind=Kind.LEAK, site=TRAINING, holders=held_by("losses"))
LEAK_ON_HOST = found(kind=Kind.LEAK, device="cpu", site=LOADING)
WASTE = found("lingering", site=LOADING)
HOLES = found("fragmentation", Kind.FRAGMENTATION, site=TRAINING)
GROWING_HOLES = found("growing-fragmentation", Kind.FRAGMENTATION)
OOM_HOLES = found("oom-fragmentation", Kind.FRAGMENTATION)
GRAPH = found("growing-graph", Kind.HOST_GROWTH, "host", holders=held_by("losses"))
OTHER_GRAPH = found("growing-graph", Kind.HOST_GROWTH, "host", holders=held_by("total"))
HOST = found("host-memory-growth", Kind.HOST_GROWTH, "host")
IDLE = found("idle-holder", site=LOADING)
OUTSIDE = found("growth-outside-torch", Kind.NON_TORCH)


@pytest.mark.parametrize(
    ("weaker", "stronger"),
    [
        (GRAPH, LEAK),  # the same thing holds both
        (HOST, OTHER_GRAPH),  # the graph is what grows on the host
        (HOST, LEAK_ON_HOST),  # and so are tensors
        (HOLES, GROWING_HOLES),
        (HOLES, OOM_HOLES),
        (OOM_HOLES, GROWING_HOLES),
        (IDLE, WASTE),  # the same line
        (found("lingering", site=TRAINING), LEAK),
        (found("idle-holder", site=TRAINING), LEAK),
    ],
)
def test_of_the_same_memory_the_stronger_one_is_reported(weaker, stronger):
    assert without_repeats([stronger, weaker]) == without_repeats([weaker, stronger]) == [stronger]


@pytest.mark.parametrize(
    "both",
    [
        (LEAK, OTHER_GRAPH),  # held by something else
        (LEAK, HOST),  # on another device
        (LEAK, WASTE),  # at another line
        (LEAK, HOLES),  # no tensor is in the holes that its line leaves
        (HOLES, found("growing-fragmentation", Kind.FRAGMENTATION, "cuda:1")),
        (WASTE, found("idle-holder", site=TRAINING)),
        (LEAK, OUTSIDE),
    ],
)
def test_of_other_memory_both_are(both):
    assert without_repeats(both) == list(both)


def test_a_finding_yields_only_to_one_that_is_reported():
    """The graph is part of the leak, so that the host's growth is not the graph's."""
    assert without_repeats([LEAK, GRAPH, HOST]) == [LEAK, HOST]


def convolves(folder, scratch_mib):
    """A convolution's scratch memory makes part of 10 MiB; ever more is reserved and not used."""
    mib, steps = 1 << 20, 30
    trace = TraceBuilder(device="cuda:0")
    line = Frame("forward", "/home/user/net.py", 12)
    maker = Frame("at::native::raw_cudnn_convolution_forward_out", "Conv_v8.cpp", 700)
    for step in range(steps):
        trace.label(step=step, phase=Phase.FORWARD)
        trace.alloc((10 - scratch_mib) * mib, f"y{step}", stack=(line,))
        trace.alloc(scratch_mib * mib, f"w{step}", stack=(maker, line))
        trace.free(f"w{step}").free(f"y{step}")
    columns = step_columns(
        reserved=[(20 + 10 * step) * mib for step in range(steps)],
        allocated=[10 * mib] * steps,
        ooms=[0] * steps,
    )
    return findings(load(write_run(folder / "run.json", trace.build(), steps=columns)))


@pytest.mark.parametrize(
    ("scratch_mib", "order"),
    [(8, ["workspace", "growing-fragmentation"]), (2, ["growing-fragmentation", "workspace"])],
)
def test_waste_that_is_half_of_what_there_is_comes_before_room_that_is_not_used(
    scratch_mib, order, tmp_path
):
    named = [one for one in convolves(tmp_path, scratch_mib) if not one.minor]
    assert [one.rule for one in named] == order
    holes = next(one for one in named if one.rule == "growing-fragmentation")
    assert not any(one.saves_per_step for one in holes.remedies)


def embeds():
    """What waits for no backward pass is 24 MiB; a list of 22 KiB more each time beside it."""
    layers = [m for _ in range(4) for m in (nn.Linear(256, 256), nn.Tanh())]
    model, parts = nn.Sequential(*layers).eval(), []

    def step(number):
        out = model(torch.randn(8192, 256)).detach()
        parts.append(out[:22].clone())

    return step


def test_what_little_grows_comes_after_what_a_change_takes_off_the_peak_at_once(tmp_path):
    ranked = findings_of(embeds, tmp_path / "run.json", 24)
    first, *others = (one for one in ranked if not one.minor)
    assert (first.rule, first.remedies[0].fix) == ("evaluation-graph", "no_grad")
    growth = next(one for one in others if one.kind is Kind.LEAK)
    assert growth.bytes_per_step == 22 * 256 * 4
