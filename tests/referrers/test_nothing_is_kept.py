"""After a search the job is as it was: counts, references, classes, collector, frames."""

from __future__ import annotations

import collections
import functools
import gc
import sys
import threading
import types
import weakref
from collections.abc import Iterator

import pytest
import torch

from memprof.referrers.find_holders import find_holders, holders
from memprof.referrers.list_tensors import tensors
from tests.referrers.marks import reads_saved

KEPT: dict[str, object] = {}


@pytest.fixture(autouse=True)
def _nothing_kept() -> Iterator[None]:
    gc.collect()
    yield
    KEPT.clear()


def tracked() -> int:
    """How many objects the collector tracks."""
    return len(gc.get_objects())


def test_counts_and_references_are_as_before() -> None:
    KEPT["list"] = kept = [torch.ones(2) for _ in range(50)]
    keys = [one.untyped_storage()._cdata for one in kept]
    weak = [weakref.ref(one) for one in kept]
    find_holders(keys)  # the first one imports and caches
    gc.collect()
    gc.disable()
    try:
        before = (tracked(), [sys.getrefcount(one) for one in kept])
        found = find_holders(keys)
        del found
        after = (tracked(), [sys.getrefcount(one) for one in kept])
        collected = gc.collect()
    finally:
        gc.enable()
    assert abs(after[0] - before[0]) <= 3  # the list of figures itself
    assert after[1] == before[1]
    assert all(weakref.getweakrefcount(one) == 1 for one in kept)
    assert all(one() is not None for one in weak)
    assert collected == 0


def test_no_collection_runs_during_a_search_and_the_switch_stays() -> None:
    phases: list[str] = []
    tensor = torch.ones(2)

    def note(phase: str, _: dict[str, int]) -> None:
        phases.append(phase)

    gc.collect()
    gc.callbacks.append(note)
    try:
        gc.disable()
        holders(tensor)
        assert not gc.isenabled()
        assert phases == []
    finally:
        gc.callbacks.remove(note)
        gc.enable()
    holders(tensor)
    assert gc.isenabled()


def test_a_tensor_dies_at_once_after_its_holders_were_asked() -> None:
    tensor = torch.ones(2)
    dead = weakref.ref(tensor)
    found = holders(tensor)
    listed = tensors()
    gc.disable()
    try:
        del tensor
        assert dead() is None
    finally:
        gc.enable()
    assert found
    assert listed


def test_a_callers_variables_are_not_kept_by_its_frame() -> None:
    value = torch.ones(2)
    other = torch.ones(3)
    dead = weakref.ref(other)
    holders(value)
    del other  # ``f_locals`` of this frame must not hold it
    assert dead() is None


def test_a_dict_from_locals_stays_as_the_program_has_it() -> None:
    value = torch.ones(2)
    mine = locals()
    mine["value"] = "changed"
    later = torch.ones(3)
    dead = weakref.ref(later)
    holders(value)
    assert dict(mine) == {"value": "changed"}
    del later
    assert dead() is None


def test_a_search_inside_a_profile_function_unbinds_no_variable() -> None:
    wanted = torch.ones(2)

    def look(frame: types.FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_name == "work":
            holders(wanted)

    def work(x: int) -> int:
        y = x + 1
        return x + y

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        result = work(20)
    finally:
        sys.setprofile(before)
    assert result == 41


def test_a_search_beside_a_thread_that_is_profiled_unbinds_no_variable_there() -> None:
    inside, searched = threading.Event(), threading.Event()
    results: list[int] = []

    def wait(frame: types.FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_name == "leaf":
            inside.set()
            searched.wait(300)

    def leaf(x: int) -> int:
        return x + 1

    def run() -> None:
        sys.setprofile(wait)
        results.append(leaf(5))

    thread = threading.Thread(target=run)
    thread.start()
    assert inside.wait(300)
    holders(torch.ones(2))
    searched.set()
    thread.join()
    assert results == [6]


def test_classes_are_not_kept() -> None:
    class Mine(torch.Tensor):
        pass

    dead = weakref.ref(Mine)
    holders(torch.ones(2).as_subclass(Mine))
    del Mine
    gc.collect()
    assert dead() is None


def test_a_class_that_cannot_be_hashed_does_no_harm() -> None:
    class Meta(type):
        __hash__ = None  # type: ignore[assignment]

        def __eq__(cls, other: object) -> bool:
            raise AssertionError

    class Odd(metaclass=Meta):
        pass

    odd = Odd()
    odd.tensor = torch.ones(2)  # type: ignore[attr-defined]
    KEPT["odd"] = odd
    target = odd.tensor.untyped_storage()._cdata  # type: ignore[attr-defined]
    del odd
    ((best,),) = find_holders([target])
    assert [(one.kind, one.name) for one in best.links[2:]] == [("attribute", "tensor")]


def test_a_search_stops_when_its_time_is_over() -> None:
    assert holders(torch.ones(2), budget_s=0.0) is not None


def test_bounds_of_containers_and_caches_are_told() -> None:
    @functools.lru_cache(maxsize=8)
    def table(size: int) -> torch.Tensor:
        return torch.ones(size)

    KEPT["table"] = table
    KEPT["deque"] = collections.deque([torch.ones(2)], maxlen=16)
    targets = [
        weakref.ref(table(3).untyped_storage()),
        weakref.ref(KEPT["deque"][0].untyped_storage()),
    ]  # type: ignore[index]
    (first, *_), (second, *_) = find_holders(targets)
    assert [(one.length, one.limit) for one in first.links if one.kind == "lru_cache"] == [(1, 8)]
    assert (second.links[-1].length, second.links[-1].limit) == (1, 16)


def test_tensors_counts_shared_storages_once() -> None:
    KEPT["full"] = full = torch.zeros(1237)  # no other test's
    KEPT["part"] = full[:13]
    key = full.untyped_storage()._cdata
    del full
    listed = tensors()
    owner = next(at for at, one in enumerate(listed) if one.shape == (1237,))
    view = next(one for one in listed if one.is_view and one.shape == (13,))
    assert (listed[owner].storage_bytes, listed[owner].hidden_bytes) == (4 * 1237, 0)
    assert (view.storage_bytes, view.shares_storage_with, view.hidden_bytes) == (
        0,
        owner,
        4 * (1237 - 13),
    )
    assert view.dtype == "float32"
    assert key


@reads_saved
def test_tensors_lists_what_only_a_graph_holds() -> None:
    x = torch.randn(777, requires_grad=True)
    KEPT["loss"] = x.exp().exp().sum()
    hidden = [one for one in tensors() if one.shape == (777,) and one.in_graph]
    assert len(hidden) == 2
    assert all(one.storage_bytes == 777 * 4 for one in hidden)
    assert all("saved tensor `result` of ExpBackward0" in one.name for one in hidden)
