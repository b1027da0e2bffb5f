"""The search upwards from tensors says what the search of the whole heap says, and keeps nothing."""

from __future__ import annotations

import gc
import itertools
import json
import weakref

import pytest

torch = pytest.importorskip("torch", reason="holders are searched for of tensors")

from memprof.referrers.find_holders import find_holders  # noqa: E402
from memprof.referrers.gc_objects import live_tensors, objects_at  # noqa: E402
from memprof.referrers.search_from_roots import quiet  # noqa: E402
from memprof.referrers.search_from_tensors import UpwardSearch  # noqa: E402
from tests import forks  # noqa: E402
from tests.unhurried import lift_limits  # noqa: E402

KEPT: list[torch.Tensor] = []
CACHE: dict[str, dict[int, torch.Tensor]] = {"step": {}}


class Meter:
    """Keeps what it is given."""

    def __init__(self):
        self.history = {"loss": []}


def climbed(keys, limit_s=60.0):
    """The descriptions by key, and how often the search went on."""
    climb, times = UpwardSearch(keys), 0
    with quiet():
        while not climb.is_over:
            climb.proceed(limit_s)
            times += 1
    return [[one.description for one in climb.searched[key]] for key in keys], times


@pytest.fixture
def held():
    """Tensors held in ways of several lengths; their keys."""
    meter = Meter()
    meter.history["loss"] += [torch.ones(3), torch.ones(4)]
    KEPT.extend([torch.ones(5), torch.ones(6)])
    CACHE["step"][7] = torch.ones(8)
    linear = torch.nn.Linear(3, 3)

    def closing():
        return meter

    tensors = [meter.history["loss"][1], KEPT[0], CACHE["step"][7], linear.weight]
    keys = [one.untyped_storage()._cdata for one in tensors]
    del tensors
    yield keys, closing, linear
    KEPT.clear()
    CACHE["step"].clear()


@pytest.mark.whole_heap
@pytest.mark.parametrize("limit_s", [0.0, 60.0])
def test_holders_are_those_of_a_search_of_the_whole_heap(held, limit_s):
    keys, closing, _linear = held
    found, times = climbed(keys, limit_s)
    whole = find_holders(keys, budget_s=60)
    assert [one[0] for one in found] == [one[0].description for one in whole]
    assert "`KEPT` (2 items)" in found[1][0]
    assert "CACHE['step']" in found[2][0]
    assert (times > 3) == (limit_s == 0.0)
    assert closing


@pytest.mark.parametrize("limit_s", [0.0, 60.0])
def test_an_iterator_that_a_loop_goes_through_holds_what_it_keeps(limit_s):
    """No name leads to it: the interpreter's own stack has it."""
    for number, part in enumerate(itertools.cycle(torch.ones(8 + n) for n in range(9))):
        if not number:
            key = part.untyped_storage()._cdata
        if number == 3:
            ((first,),), _ = climbed([key], limit_s)
            assert (
                first
                == "list (4 items), kept by itertools.cycle, which keeps what it has passed on"
            )
            return


def in_a_process_of_its_own(function, *arguments):
    """What a function of this module returns, where no test has left graphs that only C++ holds.

    Only so many nodes are looked at while they live, and which tests share a process changes.
    """
    name = function.__name__
    done = forks.run(
        f"import json\nfrom {__name__} import {name}\nprint(json.dumps({name}(*{arguments!r})))"
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def holders_of_what_graphs_saved(limit_s):
    """Of three states in a graph whose end is kept: by the search upwards, and by the whole one."""
    weight, state = torch.ones(3, 3, requires_grad=True), torch.ones(3)
    keys = []
    for _ in range(3):
        state = (weight @ state).tanh()
        keys.append(state.untyped_storage()._cdata)
    KEPT.append(state.sum())
    del state
    climb, _ = climbed(keys, limit_s)
    whole = find_holders(keys, budget_s=60)
    return [one[0] for one in climb], [one[0].description for one in whole]


@pytest.mark.parametrize("limit_s", [0.0, 60.0])
def test_what_a_graph_saved_is_held_by_who_has_its_end(limit_s):
    climb, whole = in_a_process_of_its_own(holders_of_what_graphs_saved, limit_s)
    assert climb == whole
    assert climb[0].startswith("saved tensor `")
    assert climb[0].endswith("kept by list `KEPT` (1 items), global `KEPT` of " + __name__)


def test_between_two_passes_nothing_is_kept():
    box = Meter()
    box.history["loss"].append(torch.ones(3))
    dead = weakref.ref(box), weakref.ref(box.history["loss"][0])
    climb = UpwardSearch([box.history["loss"][0].untyped_storage()._cdata])
    enabled = gc.isenabled()
    gc.disable()
    try:
        climb.proceed(0.0)
        assert not climb.is_over
        del box
        assert [ref() for ref in dead] == [None, None]
    finally:
        if enabled:
            gc.enable()
    while not climb.is_over:
        climb.proceed(0.0)
    assert list(climb.searched.values()) == [()]


def test_a_way_that_changed_meanwhile_is_no_answer():
    inner = [torch.ones(3)]
    outer = {"inner": inner}
    key = inner[0].untyped_storage()._cdata
    climb = UpwardSearch([key])
    with quiet():
        climb.proceed(0.0)
        outer["inner"] = list(inner)  # another list has taken its place
        inner.clear()
        while not climb.is_over:
            climb.proceed(0.0)
    said = [one.description for one in climb.searched[key]]
    assert not any("inner" in one for one in said)


def test_live_tensors_are_all_that_the_collector_knows():
    class Own(torch.Tensor):
        pass

    some = [torch.ones(1), torch.nn.Parameter(torch.ones(1)), torch.ones(1).as_subclass(Own)]
    product = some[1] * 2  # its graph keeps the parameter as well, which hid it before torch 2.11
    product.backward()
    some.append(some[1].grad)
    ids = set(map(id, live_tensors()))
    assert {id(one) for one in some} <= ids
    assert ids == {id(one) for one in gc.get_objects() if issubclass(type(one), torch.Tensor)}


def test_objects_are_looked_up_by_address_if_they_are_there_still():
    kept, dropped = [1], [2]
    addresses = [id(kept), id(dropped), 8]
    del dropped
    found = objects_at(addresses)
    assert any(one is kept for one in found)
    assert all(id(one) in addresses for one in found)


def search_in_a_graph_that_is_freed():
    """Whether a search was over before the graph was freed, and whether it names a holder."""
    hidden = (torch.ones(4, requires_grad=True) * 2).sigmoid()
    key = hidden.untyped_storage()._cdata
    KEPT.append(hidden.sum())
    del hidden
    climb = UpwardSearch([key])
    with quiet():
        climb.proceed(0.0)
        was_over = climb.is_over
        KEPT[0].backward()
        while not climb.is_over:
            climb.proceed(0.0)
    return was_over, any(one.is_named for one in climb.searched[key])


def test_a_graph_that_was_freed_meanwhile_holds_nothing():
    was_over, is_named = in_a_process_of_its_own(search_in_a_graph_that_is_freed)
    assert (was_over, is_named) == (False, False)


def holder_at_the_end_of_a_long_chain():
    """Of the first of 300 states in a graph whose end is kept, and how often the search went on."""
    lift_limits()  # to walk the graph takes a busy machine more than the search has for it
    state = torch.ones(3, requires_grad=True)
    keys = []
    for _ in range(300):
        state = (state * 1.01).tanh()
        keys.append(state.untyped_storage()._cdata)
    KEPT.append(state.sum())
    del state
    ((first, *_),), times = climbed(keys[:1], 0.0)
    return first, times


def test_the_end_of_a_long_chain_is_come_upon_in_a_few_passes():
    first, times = in_a_process_of_its_own(holder_at_the_end_of_a_long_chain)
    assert first.endswith("global `KEPT` of " + __name__)
    assert times <= 8


@pytest.mark.whole_heap
def test_what_nothing_holds_makes_nobody_wait():
    KEPT.append(torch.ones(5))
    gone = torch.ones(6)
    keys = [KEPT[0].untyped_storage()._cdata, gone.untyped_storage()._cdata]
    del gone
    found, times = climbed(keys, 0.0)
    assert "`KEPT` (1 items)" in found[0][0]
    assert found[1] == ["no Python owner found"]
    assert times <= 3
