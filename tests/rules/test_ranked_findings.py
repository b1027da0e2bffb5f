"""Of two findings about the same memory one is reported: which one is what their rules declare."""

from __future__ import annotations

import pytest

from memprof.records import Holder, Site
from memprof.reference_chain import Link, LinkKind
from memprof.rules.finding import Kind, RuleFinding
from memprof.rules.ranked_findings import without_repeats

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
