"""What is asked of chains of references."""

from __future__ import annotations

import msgspec
import pytest

from memprof.reference_chain import (
    Link,
    LinkKind,
    above_graph,
    breadth,
    is_bounded,
    is_field,
    largest_container,
    way,
)


def test_a_record_counts_a_quarter_of_its_length_whatever_its_key_is_called():
    link = Link(LinkKind.ITEM, "'user_7'", "dict", length=40)
    assert breadth(link) == (False, 40)  # keyed by other things as well
    assert breadth(msgspec.structs.replace(link, is_record=True)) == (False, 10)
    assert breadth(msgspec.structs.replace(link, name="x", is_record=True)) == (False, 10)


def test_what_was_seen_to_grow_counts_before_what_is_longer():
    longer = Link(LinkKind.ITEM, "3", "list", length=50)
    grown = Link(LinkKind.ITEM, "1", "list", length=4, grows=True)
    assert largest_container([grown, longer]) == 0


def test_only_an_item_is_the_field_of_a_record():
    assert is_field(Link(LinkKind.ITEM, is_record=True))
    assert not is_field(Link(LinkKind.ITEM, "'model'"))
    assert not is_field(Link(LinkKind.KEY, is_record=True))


def test_of_containers_within_one_another_the_largest_is_the_one_that_grows():
    row = Link(LinkKind.ITEM, "loss", "dict", length=12, is_record=True)
    rows = Link(LinkKind.ITEM, "3", "deque", length=8, limit=100)
    assert largest_container([Link(LinkKind.LOCAL, "rows"), rows, row]) == 1
    assert is_bounded([rows, row])
    assert not is_bounded([rows, msgspec.structs.replace(row, is_record=False)])


def test_a_single_item_is_no_container_that_grows():
    alone = Link(LinkKind.ITEM, "0", "deque", length=1, limit=1)
    assert largest_container([alone]) is None
    assert not is_bounded([alone])


def test_what_keeps_a_graph_is_all_above_its_first_node():
    links = [Link(kind) for kind in (LinkKind.LOCAL, LinkKind.AUTOGRAD_NODE, LinkKind.SAVED_TENSOR)]
    assert above_graph(links) == links[:1]
    assert above_graph(links[:2]) == ()  # the graph itself is what is held
    assert above_graph(links[::2]) == ()


def test_places_in_containers_and_lengths_make_no_other_way_of_holding():
    one = [Link(LinkKind.GLOBAL, "log", "m"), Link(LinkKind.ITEM, "3", "list", length=9)]
    assert way(one) == way([one[0], Link(LinkKind.ITEM, "4", "list", length=10)])
    assert way(one) != way([Link(LinkKind.GLOBAL, "other", "m"), one[1]])
    graph = [Link(LinkKind.AUTOGRAD_NODE, nodes=((name, 1),)) for name in ("A", "B")]
    assert way(graph[:1]) != way(graph[1:])


@pytest.mark.parametrize("kind", LinkKind)
def test_a_kind_is_its_value_as_text_and_in_a_file(kind):
    assert f"{kind}" == str(kind) == kind.value
    assert msgspec.json.decode(msgspec.json.encode(Link(kind)), type=Link) == Link(kind)


def test_a_kind_of_a_newer_version_is_unknown():
    assert msgspec.json.decode(b'{"kind":"tachyon","name":"x"}', type=Link) == Link(
        LinkKind.UNKNOWN, "x"
    )
