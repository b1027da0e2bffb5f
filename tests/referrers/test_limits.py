"""What is said when a search ends early, and that reading sources ends with it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from memprof.referrers import heap
from memprof.referrers import unreachable as garbage
from memprof.referrers.find_holders import find_holders, holders
from memprof.referrers.heap import CHUNK, Deadline
from memprof.source_code import find_line
from memprof.source_code.assignment_index import Index, read_index
from memprof.source_code.find_line import forget, index_of, reading_until

KEPT: dict[str, object] = {}
ENDED_EARLY = "the search ended before it found an owner"


@pytest.fixture(autouse=True)
def _nothing_kept() -> Iterator[None]:
    gc.collect()
    gc.disable()
    forget()
    yield
    gc.enable()
    forget()
    KEPT.clear()
    gc.collect()


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """A hundred sources, more than one search looks through."""
    paths = [tmp_path / f"program{at}.py" for at in range(100)]
    for path in paths:
        path.write_text("kept = []\nkept.append(1)\n")
    return list(map(str, paths))


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that were read."""
    names: list[str] = []

    def counted(filename: str) -> Index:
        names.append(filename)
        return read_index(filename)

    monkeypatch.setattr(find_line, "read_index", counted)
    return names


def test_each_file_is_read_once_however_often_all_are_looked_through(
    files: list[str], read: list[str]
) -> None:
    for _ in range(3):
        assert all(index_of(one).filled["kept"] for one in files)
    assert read == files


def test_remembered_files_have_a_bound(files: list[str], read: list[str]) -> None:
    for name in [*files, *(f"missing{at}" for at in range(200)), files[-1], files[0]]:
        index_of(name)
    # the oldest was forgotten, the others were not
    assert read.count(files[0]) == 2
    assert read.count(files[-1]) == 1


def test_no_file_is_read_when_the_time_is_over_but_known_ones_are_used(
    files: list[str], read: list[str]
) -> None:
    index_of(files[0])
    with reading_until(Deadline(0.0).check):
        assert index_of(files[0]).filled["kept"]
        assert index_of(files[1]).filled == {}
    assert read == files[:1]
    assert index_of(files[1]).filled["kept"]  # it was not remembered as empty


def test_sources_may_be_read_a_little_longer_than_the_search_may_take() -> None:
    over = Deadline(0.0)
    assert over.later(0.25).check()
    assert not Deadline(1000.0).later(0.25).check()
    spent = Deadline(0.01)
    while not spent.check():
        pass
    assert not spent.later(100.0).check()


def test_a_search_without_time_does_not_claim_that_nobody_owns_a_tensor() -> None:
    tensor = torch.ones(2)
    (told,) = holders(tensor, budget_s=0.0)
    assert (told.kind, told.description) == ("unknown", ENDED_EARLY)
    (missing,) = find_holders([12345], budget_s=60)[0]
    assert missing.description == "no Python owner found"


class Node:
    """One of two that know each other."""


def cycle() -> int:
    """The key of a storage that only a cycle keeps."""
    one, other = Node(), Node()
    one.other, other.other = other, one  # type: ignore[attr-defined]
    one.tensor = torch.ones(2)  # type: ignore[attr-defined]
    return int(one.tensor.untyped_storage()._cdata)  # type: ignore[attr-defined]


def test_a_cycle_among_more_objects_than_are_looked_at_is_not_called_a_leak(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = cycle()
    ((told,),) = find_holders([target], budget_s=60)
    assert told.kind == "cycle"
    monkeypatch.setattr(garbage, "MAX_OBJECTS", 1)
    ((told,),) = find_holders([target], budget_s=60)
    assert told.description == ENDED_EARLY


class Asked:
    """Stands for the ``gc`` of one module, and keeps how many objects each call asked about."""

    def __init__(self) -> None:
        self.objects: list[int] = []

    def get_referents(self, *objects: object) -> list[object]:
        self.objects.append(len(objects))
        return gc.get_referents(*objects)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    stand_in = Asked()
    monkeypatch.setattr(garbage, "gc", stand_in)
    return stand_in


def unreached(count: int) -> None:
    """Leave at least so many objects behind that only the collector could free."""
    for _ in range(count // 2):
        one, other = Node(), Node()
        one.other, other.other = other, one  # type: ignore[attr-defined]


def test_what_only_cpp_owns_is_told_without_a_look_at_what_no_root_leads_to(asked: Asked) -> None:
    unreached(20_000)
    ((told,),) = find_holders([12345], budget_s=60)
    assert told.description == "no Python owner found"
    assert asked.objects == []


def test_for_a_cycle_few_of_many_objects_are_looked_at_one_by_one(asked: Asked) -> None:
    unreached(20_000)
    target = cycle()
    ((told,),) = find_holders([target], budget_s=60)
    assert told.kind == "cycle"
    assert sum(count for count in asked.objects if count > 1) > 20_000
    assert asked.objects.count(1) <= 2 * CHUNK


def chain(length: int) -> int:
    """The key of a storage below so many objects, the first of which keeps itself."""
    first = one = Node()
    first.first = first  # type: ignore[attr-defined]
    for _ in range(length):
        one.next = Node()  # type: ignore[attr-defined]
        one = one.next  # type: ignore[attr-defined]
    one.tensor = torch.ones(2)  # type: ignore[attr-defined]
    return int(one.tensor.untyped_storage()._cdata)  # type: ignore[attr-defined]


def test_a_search_among_objects_in_cycles_stops_when_its_time_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target, late, asked = chain(400), [], []
    edges_to = garbage.Unreached.edges_to

    def counted(self: garbage.Unreached, one: object) -> object:
        (late if self.search.deadline.passed else asked).append(None)
        return edges_to(self, one)

    monkeypatch.setattr(garbage.Unreached, "edges_to", counted)
    ((told,),) = find_holders([target], budget_s=600)
    assert told.kind == "cycle"
    assert len(asked) > 40_000
    asked.clear()
    ticks = count()  # a clock that goes on by one each time it is looked at
    monkeypatch.setattr(
        heap, "time", SimpleNamespace(thread_time=lambda: next(ticks), monotonic=int)
    )
    ((told,),) = find_holders([target], budget_s=10_000)
    assert told.description == ENDED_EARLY
    assert 1000 < len(asked) < 10_000
    assert len(late) <= 3
