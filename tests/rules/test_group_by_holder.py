"""Who holds a growing group: the last look, or an earlier one where that knew more."""

from __future__ import annotations

import pytest

from memprof.records import Finding, Holder
from memprof.reference_chain import Link, LinkKind
from memprof.rules.group_by_holder import held_by

THREAD = Link(LinkKind.THREAD, "MainThread", "thread")
SERVICE = Link(LinkKind.LOCAL, "service", "main", "/serve.py", 9)
CYCLE = Link(LinkKind.CYCLE, "", "")
WORKER = Link(LinkKind.ATTRIBUTE, "service", "Worker")


def stored(name, length):
    return (
        Link(LinkKind.ATTRIBUTE, name, "Service", "/serve.py", 7),
        Link(LinkKind.ITEM, "0", "dict", length=length),
    )


def look(step, *links):
    holder = Holder(links[0].kind, "/serve.py", 7, "self.answers[key] = answer", list(links))
    return Finding("holders", device="cpu", step=step, stack=1, holders=[holder])


@pytest.mark.parametrize(
    ("name", "root"),
    [("answers", LinkKind.THREAD), ("history", LinkKind.CYCLE)],
    ids=["the same container", "another one"],
)
def test_a_cycle_that_is_left_when_names_are_gone_is_not_what_holds_them(name, root):
    """`service` was a variable of a function that has returned; its workers know it as well."""
    looks = [
        look(10, THREAD, SERVICE, *stored("answers", 40)),
        look(20, THREAD, SERVICE, *stored("answers", 80)),
        look(30, CYCLE, WORKER, *stored(name, 120)),
    ]
    (holder,) = held_by(looks, "cpu")[1]
    assert holder.links[0].kind is root
    assert holder.links[-1].length == (80 if root is LinkKind.THREAD else 120)


def test_a_cycle_that_was_one_from_the_first_look_on_is_named():
    looks = [look(step, CYCLE, WORKER, *stored("answers", 4 * step)) for step in (10, 20)]
    (holder,) = held_by(looks, "cpu")[1]
    assert (holder.links[0].kind, holder.links[-1].length) == (LinkKind.CYCLE, 80)
