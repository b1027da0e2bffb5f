"""Who holds a growing group: the last look, or an earlier one where that knew more."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from memprof.records import Finding, Holder
from memprof.reference_chain import Link, LinkKind, Unowned
from memprof.rules.group_by_holder import clusters, held_by
from memprof.rules.growing_groups import GrowingGroup

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


OWN, LIBRARY = "/home/me/train.py", "/lib/site-packages/metrics.py"


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
    (holder, *_) = held_by(looks, "cpu")[1]
    return holder.links[0].kind, holder.links[-1].length


def test_a_name_that_is_gone_at_the_end_kept_the_list_that_another_object_shares():
    looks = look(12, *named(23)), look(48, *named(95)), look(120, *left_over("target", 120))
    assert root_of(*looks) == (LinkKind.LOCAL, 95)


def test_a_cycle_with_another_list_or_a_shorter_one_is_told():
    for cycle in (left_over("preds", 120), left_over("target", 9)):
        looks = look(12, *named(23)), look(48, *named(95)), look(120, *cycle)
        assert root_of(*looks)[0] == LinkKind.CYCLE


@pytest.mark.parametrize(
    ("links", "reason", "are_named"),
    [
        ((Link(LinkKind.PARAMETER, "net.4.weight", "Field"),), "growth", False),
        ((Link(LinkKind.PARAMETER, "net.4.weight", "Field"),), "resident", True),
        ((Link(LinkKind.OPTIMIZER_STATE, "exp_avg", "Adam"),), "growth", True),
        (
            (
                Link(LinkKind.ITEM, "3", "list", length=4),
                Link(LinkKind.PARAMETER, "net.4.weight", "Field"),
            ),
            "growth",
            True,
        ),
    ],
    ids=["a model", "what does not grow", "an optimizer with all", "a list of models"],
)
def test_the_model_in_use_is_not_what_keeps_those_before_it(links, reason, are_named):
    """Each trial makes one: a running function's variable has the newest alone."""
    model = Link(LinkKind.LOCAL, "model", "study", "/sweep.py", 85)
    one = look(10, model, *links)
    holders = held_by([msgspec.structs.replace(one, details={"reason": reason})], "cpu")
    assert bool(holders) is are_named


def test_an_optimizer_that_has_the_newest_alone_is_not_what_keeps_the_others():
    local = Link(LinkKind.LOCAL, "optimizer", "study", "/sweep.py", 85)
    newest = look(10, local, Link(LinkKind.OPTIMIZER_STATE, "exp_avg", "Adam"))
    others = look(10, *named(23))
    both = msgspec.structs.replace(
        newest, holders=[*newest.holders, *others.holders], details={"reason": "growth"}
    )
    (holder,) = held_by([both], "cpu")[1]
    assert holder.links == others.holders[0].links


def growing(stack, places):
    return GrowingGroup(stack, np.arange(0), np.array(places), 1000.0, 0.9, 1)


@pytest.mark.parametrize(("calls", "number"), [((7, 7), 1), ((7, 8), 2), ((), 2)])
def test_what_nothing_holds_joins_what_the_same_call_made_in_most_of_its_steps(calls, number):
    """Where several threads call a model, a step of one may end in the middle of another's."""
    groups = [growing(1, range(30)), growing(2, range(0, 30, 3)), growing(3, range(21))]
    holders = {1: look(30, THREAD, SERVICE, *stored("answers", 80)).holders}
    made = clusters(groups[::2], holders, {1: calls[:1], 3: calls[1:]}.__getitem__)
    assert len(made) == number
    rarely = clusters(groups[:2], holders, lambda _: (7,))
    assert len(rarely) == 2


def of_layer(field, owner="layers.0.proj"):
    """A dict in a field of a layer, with an item for each adapter."""
    links = [
        Link(LinkKind.LOCAL, "model", "main", OWN),
        Link(LinkKind.MODULE_ATTRIBUTE, f"{owner}.{field}", "Layer"),
        Link(LinkKind.ITEM, "'first'", "ModuleDict", length=12),
        Link(LinkKind.PARAMETER, "weight", "Linear"),
    ]
    return (Holder(LinkKind.LOCAL, OWN, 7, "", links),)


@pytest.mark.parametrize(
    ("other", "calls", "places", "number"),
    [
        (of_layer("lora_B"), (7, 7), range(30), 1),
        (of_layer("lora_B"), (7, 8), range(30), 2),
        (of_layer("lora_B"), ((), ()), range(30), 2),
        (of_layer("lora_B"), (7, 7), range(0, 30, 2), 2),
        (of_layer("lora_B", "layers.1.proj"), (7, 7), range(30), 2),
    ],
    ids=["one call", "two calls", "no call", "other steps", "another layer"],
)
def test_what_one_call_puts_into_two_fields_of_an_object_is_one_leak(other, calls, places, number):
    """A layer with low-rank adapters has a dict for either matrix."""
    groups = [growing(1, range(30)), growing(2, places)]
    made = clusters(
        groups,
        {1: of_layer("lora_A"), 2: other},
        lambda stack: (calls[stack - 1],) if calls[stack - 1] else (),
    )
    assert len(made) == number
    assert sum(len(one.groups) for one in made) == len(groups)


def unowned(autocast):
    link = Link(LinkKind.UNKNOWN, unowned=Unowned(cut_off=True, autocast=autocast))
    return (Holder(LinkKind.UNKNOWN, "", 0, "", [link]),)


@pytest.mark.parametrize(("device", "other", "number"), [("cpu", "cpu", 1), ("", "", 2)])
def test_what_no_name_leads_to_while_autocast_caches_is_one_leak(device, other, number):
    """Leaves and their copies are made in turns, some of them in a step of their own."""
    groups = [growing(1, range(0, 30, 2)), growing(2, range(1, 30, 2))]
    made = clusters(groups, {1: unowned(device), 2: unowned(other)})
    assert len(made) == number
    held = {1: look(30, THREAD, SERVICE, *stored("answers", 80)).holders, 2: unowned(device)}
    assert len(clusters(groups, held)) == 2  # what has a holder is another matter
