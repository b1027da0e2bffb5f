"""Holders of older run files hold what those of the present schema do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memprof.loading import load
from memprof.records import SCHEMA_VERSION, Finding, Holder
from memprof.reference_chain import Link, LinkKind, Unowned
from memprof.rules.growth_findings import leaks
from memprof.runfile.older_schema import upgraded
from memprof.testing import TraceBuilder, write_run
from memprof.views.examination import examine

DATA = Path(__file__).parents[1] / "data"
WORKSPACE = "it has the size of a cuBLAS workspace, which torch keeps for every stream"
GRAPHS = "it lies in the private pool of a CUDA graph (2, 0)"
STREAM = "it was allocated on a side stream, as a library such as NCCL does"


def link_of_1_2(kind: LinkKind, name: str, type_name: str = "") -> Link:
    """The link as a reader of 1.2 has it after the upgrade."""
    finding = Finding("holders", holders=[Holder(links=[Link(kind, name, type_name)])])
    return upgraded(finding, (1, 2)).holders[0].links[0]


@pytest.mark.parametrize(
    ("name", "nodes"),
    [
        ("MulBackward0", (("MulBackward0", 1),)),
        ("SumBackward0 -> MulBackward0 x12", (("SumBackward0", 1), ("MulBackward0", 12))),
        ("A -> B -> C x2 -> ... 7 more ... -> D -> E",
         (("A", 1), ("B", 1), ("C", 2), ("", 7), ("D", 1), ("E", 1))),
        ("", ()),
    ],
)  # fmt: skip
def test_the_nodes_of_a_graph_are_read_from_the_name(name, nodes):
    link = link_of_1_2(LinkKind.AUTOGRAD_NODE, name, "Tensor")
    assert link == Link(LinkKind.AUTOGRAD_NODE, type_name="Tensor", nodes=nodes)


def test_the_bytes_of_a_view_are_read_from_the_name():
    link = link_of_1_2(LinkKind.BASE, "32 of 512 bytes", "Tensor")
    assert link == Link(LinkKind.BASE, type_name="Tensor", shown_bytes=32, storage_bytes=512)
    for name in ("", "many of 512 bytes", "9" * 40 + " of 512 bytes"):
        assert link_of_1_2(LinkKind.BASE, name) == Link(LinkKind.BASE, name)


@pytest.mark.parametrize(
    ("name", "is_record"),
    [("'model'", True), ("3", False), ("('a', 1)", False), ("element", False)],
)
def test_a_dict_with_quoted_names_is_a_record(name, is_record):
    assert link_of_1_2(LinkKind.ITEM, name, "dict").is_record is is_record
    assert not link_of_1_2(LinkKind.ATTRIBUTE, name).is_record


@pytest.mark.parametrize(
    ("name", "is_parameter"),
    [("param_groups[0]['params'][0]", True), ("state (key)", True), ("exp_avg", False)],
)
def test_what_an_optimizer_updates_is_told_from_its_state(name, is_parameter):
    assert link_of_1_2(LinkKind.OPTIMIZER_STATE, name, "Adam").is_parameter is is_parameter


@pytest.mark.parametrize(
    ("rest", "memory"),
    [
        ("", Unowned()),
        (" (C++ holds the Tensor)", Unowned(owner="Tensor")),
        (
            " (C++ holds the Tensor): autocast is on (cpu) and caches low-precision weights",
            Unowned(owner="Tensor", autocast="cpu"),
        ),
        (f": {WORKSPACE}", Unowned(workspace=True)),
        (f": {WORKSPACE}; {GRAPHS}; {STREAM}",
         Unowned(workspace=True, pool=(2, 0), side_stream=True)),
        (
            ": it lies in the memory pool (0, 3): a MemPool, or graphs that share one",
            Unowned(pool=(0, 3)),
        ),
    ],
)  # fmt: skip
def test_what_was_known_of_memory_without_an_owner_is_read_from_the_name(rest, memory):
    name = f"no Python owner found{rest}"
    link = link_of_1_2(LinkKind.UNKNOWN, name)
    assert link == Link(LinkKind.UNKNOWN, unowned=memory)
    assert Holder(links=[link]).description == name


def test_a_search_that_was_cut_off_is_told_from_one_that_found_no_owner():
    link = link_of_1_2(LinkKind.UNKNOWN, "the search ended before it found an owner")
    assert link == Link(LinkKind.UNKNOWN, unowned=Unowned(cut_off=True))


def test_links_of_the_present_schema_stay_as_they_are():
    link = Link(LinkKind.ITEM, "'model'", "dict", length=2)  # beside a key that is no string
    finding = Finding("holders", holders=[Holder(links=[link])])
    assert upgraded(finding, SCHEMA_VERSION) is finding


def test_a_file_of_1_2_and_the_same_of_today_hold_the_same(tmp_path: Path) -> None:
    links = [
        Link(LinkKind.GLOBAL, "state", "train"),
        Link(LinkKind.ITEM, "'log'", "dict", length=2, is_record=True),
        Link(LinkKind.ITEM, "7", "list", length=30),
        Link(LinkKind.AUTOGRAD_NODE, type_name="Tensor", nodes=(("AddBackward0", 3),)),
        Link(LinkKind.SAVED_TENSOR, "self", "MulBackward0"),
    ]
    trace = TraceBuilder()
    for step in range(12):
        trace.label(step=step).alloc(512, f"kept{step}", stack=())
    holder = Holder(LinkKind.SAVED_TENSOR, "train.py", 3, "log.append(loss)", links)
    now = write_run(
        tmp_path / "now.json", trace.build(), more=[Finding("holders", "cuda:0", holders=[holder])]
    )
    old = tmp_path / "old.json"
    records = [json.dumps(as_in_1_2(record)) for record in json.loads(now.read_text())]
    old.write_text("[" + ",\n".join(records) + "\n]\n")

    assert load(old).header.schema == (1, 2)
    assert load(old).findings == load(now).findings
    assert load(old).findings[0].holders == [holder]
    assert [one.title for one in leaks(examine(load(old)))] == [
        one.title for one in leaks(examine(load(now)))
    ]


def as_in_1_2(record: dict[str, Any]) -> dict[str, Any]:
    """A record of today as a writer of 1.2 put it, holders with their sentence."""
    if record["kind"] == "header":
        return record | {"schema": [1, 2]}
    for holder in record.get("holders", ()):
        holder["description"] = "saved tensor `self` of MulBackward0, kept by …"
        for link in holder["links"]:
            link.pop("is_record", None)
            for name, count in link.pop("nodes", ()):
                link["name"] = f"{name} x{count}"
    return record


def test_the_oldest_file_s_holder_is_described_from_its_chain() -> None:
    (finding,) = load(DATA / "run-1.0.json").findings
    assert [one.description for one in finding.holders] == ["global `CACHE` of list"]
