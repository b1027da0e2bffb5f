"""Which of several looks says who holds what grows."""

from __future__ import annotations

from memprof.records import Finding, Holder
from memprof.reference_chain import Link, LinkKind
from memprof.rules.group_by_holder import held_by

OWN, LIBRARY = "/home/me/train.py", "/lib/site-packages/metrics.py"


def look(step, *links):
    holder = Holder(links[-1].kind, OWN, 3, "", list(links))
    return Finding("holders", device="cpu", step=step, stack=7, holders=[holder])


def named(length):
    """As long as the program's function runs."""
    return (
        Link(LinkKind.LOCAL, "monitor", "main", OWN),
        Link(LinkKind.MODULE_ATTRIBUTE, "ap.target", "Collection"),
        Link(LinkKind.ITEM, "6", "list", length=length),
    )


def left_over(name, length):
    """Once it has returned, and the objects are a cycle that nothing refers to."""
    return (
        Link(LinkKind.CYCLE, length=5),
        Link(LinkKind.BOUND_METHOD, "__self__", "update", LIBRARY),
        Link(LinkKind.MODULE_ATTRIBUTE, name, "Score"),
        Link(LinkKind.ITEM, "17", "list", length=length),
    )


def root_of(*looks):
    (holder, *_) = held_by(looks, "cpu")[7]
    return holder.links[0].kind, holder.links[-1].length


def test_a_name_that_is_gone_at_the_end_kept_the_list_that_another_object_shares():
    looks = look(12, *named(23)), look(48, *named(95)), look(120, *left_over("target", 120))
    assert root_of(*looks) == (LinkKind.LOCAL, 95)


def test_a_cycle_with_another_list_or_a_shorter_one_is_told():
    for cycle in (left_over("preds", 120), left_over("target", 9)):
        looks = look(12, *named(23)), look(48, *named(95)), look(120, *cycle)
        assert root_of(*looks)[0] == LinkKind.CYCLE
