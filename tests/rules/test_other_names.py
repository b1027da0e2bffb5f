"""The container that has what a variable has, as other searches found it."""

from __future__ import annotations

import pytest

from memprof.records import Holder
from memprof.reference_chain import Link, LinkKind
from memprof.rules.other_names import by_containers

OUT = Link(LinkKind.LOCAL, "out", "run")
RECORDS = (
    Link(LinkKind.LOCAL, "records", "run"),
    Link(LinkKind.ITEM, "1", "list", length=3),
    Link(LinkKind.ITEM, "'output'", "dict", length=3),
)
SEQUENCES, SCORES = (Link(LinkKind.ATTRIBUTE, name, "Output") for name in ("sequences", "scores"))


def holder(*links, line=5):
    return Holder(LinkKind.ITEM, "run.py", line, "", list(links))


def names(held, stack):
    return [[link.name for link in one.links] for one in held[stack]]


def test_a_variable_is_what_the_container_has_if_one_search_says_so():
    held = by_containers(
        {
            1: (holder(*RECORDS, SEQUENCES, line=9), holder(OUT, SEQUENCES)),
            2: (holder(OUT, SCORES),),
        }
    )
    assert names(held, 2) == [["records", "1", "'output'", "scores"]]
    assert held[2][0].line == 9
    assert names(held, 1) == [["records", "1", "'output'", "sequences"], ["out", "sequences"]]


@pytest.mark.parametrize(
    "other",
    [
        holder(*RECORDS, SCORES),  # what it has ends otherwise
        holder(Link(LinkKind.LOCAL, "same", "run"), SEQUENCES),  # another variable, no container
    ],
)
def test_another_chain_says_nothing_of_it(other):
    held = by_containers({1: (other, holder(OUT, SEQUENCES)), 2: (holder(OUT, SCORES),)})
    assert names(held, 2) == [["out", "scores"]]
