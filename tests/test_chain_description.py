"""Descriptions of chains, and that nothing but a person reads them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import count, repeat, takewhile
from typing import Any

import msgspec
import pytest
import torch

from memprof import chain_description
from memprof.chain_description import (
    Clause,
    clauses,
    describe,
    keeper,
    label,
    names_line,
    shortened,
)
from memprof.reference_chain import Link, LinkKind, Unowned, way
from memprof.referrers.find_holders import find_holders
from memprof.rules.ranked_findings import findings
from memprof_cli import report
from tests.golden.outputs import HERE, command, recordings

KEPT: dict[str, Any] = {}
REWORDED = (
    "break_cycle-checkpoint",
    "clear_traceback-kept",
    "clone_view-view",
    "detach-history",
    "detach-kept_results-called",
    "forward_hook_appends",
    "item-running_sum",
    "long_deque_still_filling",
    "save_for_backward-ctx_attribute",
    "suspended_generators",
    "weakref-registry",
)
"""Recordings whose remedies follow from holders."""
WITH_OTHERS = (
    "long_deque_still_filling",
    "set_to_none-gradients",
    "stub-streams-torch2.15.0",
)
"""Recordings of which a report says more than its verdict."""
WORDS = frozenset({"description", "title", "why"})
"""Fields of the JSON that are for a person."""

LOG = [
    Link(LinkKind.LOCAL, "trainer", "main", "/job/train.py", 9),
    Link(LinkKind.ATTRIBUTE, "log", "Trainer"),
    Link(LinkKind.ITEM, "4", "list", length=7),
]
GRAPH = Link(LinkKind.AUTOGRAD_NODE, nodes=(("SumBackward0", 1), ("", 4), ("MulBackward0", 3)))
SAVED = Link(LinkKind.SAVED_TENSOR, "self", "MulBackward0")


def test_a_chain_is_described_from_the_tensor_up():
    log = "list `trainer.log` (7 items), local `trainer` of main() (train.py:9)"
    graph = "the autograd graph (SumBackward0 -> ... 4 more ... -> MulBackward0 x3)"
    saved = "saved tensor `self` of MulBackward0"
    assert describe(LOG) == log
    assert describe([*LOG, GRAPH, SAVED]) == f"{saved}, kept by {graph}, kept by {log}"
    assert shortened([*LOG, GRAPH, SAVED]) == f"{saved}, kept by …, kept by {log}"
    assert shortened(LOG) == log
    assert keeper([*LOG, GRAPH, SAVED], GRAPH.kind) == f"{log}, through the autograd graph"
    assert (
        keeper([GRAPH, SAVED], GRAPH.kind) == f"{saved}, kept by {graph}"
    )  # nothing above it is known
    assert keeper([*LOG, GRAPH], GRAPH.kind) == f"{graph}, kept by {log}"


@pytest.mark.parametrize(
    ("kind", "middle"),
    [
        (LinkKind.HOOK, "…, kept by forward hook of Linear, kept by …"),
        (LinkKind.CLOSURE, "variable `seen` in the closure of collect(), kept by …"),
        (LinkKind.ITEM, "…, kept by bound method trainer.step()"),
    ],
)
def test_of_a_long_chain_a_title_names_both_ends_and_what_tells_most(kind, middle):
    chain = [
        Link(LinkKind.GLOBAL, "trainer", "__main__"),
        Link(LinkKind.BOUND_METHOD, "__self__", "trainer.step"),
        Link(LinkKind.HOOK, "forward hook", "Linear"),
        Link(LinkKind.CLOSURE, "seen", "collect"),
        Link(LinkKind.ITEM, "4", "list", length=7),
    ]
    first, *_, last = describe(chain).split(", kept by ")
    assert keeper(chain, kind) == f"{first}, kept by {middle}, kept by {last}"
    assert keeper(chain[2:], kind) == describe(chain[2:])


def test_the_lines_that_a_description_names_are_known_without_reading_it():
    assert names_line(LOG, "/job/train.py", 9)
    assert not names_line(LOG, "/job/other.py", 9)
    hook = Link(LinkKind.HOOK, "forward hook", "Linear", "/job/train.py", 31)
    assert names_line([hook, *LOG], "/job/train.py", 31)
    assert describe([hook]) == "forward hook of Linear (train.py:31)"
    assert not names_line(
        [Link(LinkKind.ATTRIBUTE, "x", "T", "/job/train.py", 5)], "/job/train.py", 5
    )


def test_of_a_librarys_private_way_to_the_programs_own_nothing_is_said():
    inner = [Link(LinkKind.ATTRIBUTE, name, "Connector") for name in ("_zeta", "_eta")]
    own = [Link(LinkKind.ATTRIBUTE, "model", "Selector"), Link(LinkKind.ATTRIBUTE, "out", "Net")]
    root, item = (
        Link(LinkKind.LOCAL, "trainer", "main", "train.py", 9),
        Link(LinkKind.ITEM, "4", "list", length=7),
    )
    (clause,) = clauses([root, *inner, *own, item])
    assert (
        clause.text
        == "list `trainer.….model.out` (7 items), local `trainer` of main() (train.py:9)"
    )
    (one,) = clauses([root, inner[0], *own, item])  # a single one is soon typed
    assert one.text.startswith("list `trainer._zeta.model.out` (7 items)")
    (ending,) = clauses([root, *inner, item])  # what ends in one has no other name
    assert ending.text.startswith("list `trainer._zeta._eta` (7 items)")
    users = [msgspec.structs.replace(link, filename="/job/net.py") for link in inner]
    (mine,) = clauses([root, *users, *own, item])
    assert mine.text.startswith("list `trainer._zeta._eta.model.out` (7 items)")


def test_a_box_of_a_chain_has_a_label():
    assert label(GRAPH) == "SumBackward0 -> ... 4 more ... -> MulBackward0 x3"
    assert label(Link(LinkKind.BASE, shown_bytes=4, storage_bytes=64)) == "4 of 64 bytes"
    assert label(Link(LinkKind.BASE)) == ""
    assert label(Link(LinkKind.UNKNOWN, unowned=Unowned())) == "no Python owner found"
    assert label(LOG[2]) == "4"


def reworded(links):
    """The same number of clauses, all alike."""
    return [Clause("something") for _ in clauses(links)]


def essence(found):
    return [[(one.kind, one.line, one.code, way(one.links)) for one in each] for each in found]


def is_reworded(description):
    return set(description.replace(",", "").split()) <= {"something", "kept", "by"}


def of_json(printed):
    """The value that a command printed before its exit status."""
    return json.JSONDecoder().raw_decode(printed)[0]


def without_words(value):
    """JSON without what is for a person."""
    if isinstance(value, dict):
        return {key: without_words(one) for key, one in value.items() if key not in WORDS}
    return [without_words(one) for one in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", REWORDED)
def test_a_reworded_sentence_changes_no_finding_and_no_remedy(name, monkeypatch):
    path, source = recordings()[name], HERE / "recordings"
    words = ["leaks", "--json", str(path), "--source", str(source)]
    before = of_json(command(words))
    monkeypatch.setattr(chain_description, "clauses", reworded)
    after = of_json(command(words))
    said = [holder["description"] for one in after["findings"] for holder in one["holders"]]
    assert said
    assert all(map(is_reworded, said))
    assert without_words(after) == without_words(before)


def beside_the_verdict(screen):
    """The lines below "Also found" and, where nothing must change, "Also seen"."""
    lines = re.split(r"^Also (?:found|seen)", screen, maxsplit=1, flags=re.MULTILINE)[-1]
    below = takewhile(bool, map(str.strip, lines.splitlines()[1:]))
    return [line for line in below if line != "Also seen"]


@pytest.mark.parametrize("name", WITH_OTHERS)
def test_a_reworded_title_hides_no_finding_of_the_report(name, monkeypatch):
    """The first finding is the verdict; the rest are told beside it, whatever their titles say."""

    words = ["report", "--no-page", str(recordings()[name]), "--source", str(HERE / "recordings")]
    screens = []
    for titles in (count(), repeat("something")):

        def reworded_findings(run, examination, titles=titles):
            return tuple(
                replace(one, title=f"{next(titles)}") for one in findings(run, examination)
            )

        monkeypatch.setattr(report, "findings", reworded_findings)
        screens.append(beside_the_verdict(command(words)))
    numbered, alike = screens
    assert numbered
    assert alike == ["something"] * len(numbered)


def held_in_two_ways() -> list[int]:
    """The keys of a leaf and of a storage of which a part is kept; `KEPT` alone holds them."""
    leaf = torch.ones(8, 8, requires_grad=True)
    KEPT["log"] = [(leaf * 2).sum() for _ in range(3)]
    KEPT["latest"] = {"loss": KEPT["log"][0]}
    KEPT["part"] = whole = torch.ones(64)[:4]
    return [leaf.untyped_storage()._cdata, whole.untyped_storage()._cdata]


def test_a_reworded_sentence_changes_nothing_in_the_job(monkeypatch):
    keys = held_in_two_ways()
    before = find_holders(keys, graphs=True, budget_s=30)
    monkeypatch.setattr(chain_description, "clauses", reworded)
    after = find_holders(keys, graphs=True, budget_s=30)
    KEPT.clear()
    assert all(before)
    assert essence(after) == essence(before)
    assert all(is_reworded(holder.description) for found in after for holder in found)
