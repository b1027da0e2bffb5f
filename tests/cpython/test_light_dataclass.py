"""Frozen dataclasses without compiled text behave as those of the standard library do."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError, field, fields, is_dataclass, replace

import pytest

from memprof.cpython.light_dataclass import light_dataclass


@light_dataclass(frozen=True, slots=True)
class Place:
    """A line."""

    name: str
    line: int = 0
    seen: list[int] = field(default_factory=list)


@light_dataclass(frozen=True, slots=True, eq=False)
class Named:
    """A name."""

    name: str = ""


def test_values_are_given_by_place_or_by_name_and_the_rest_has_its_defaults():
    place = Place("a.py", line=3)
    assert (place.name, place.line, place.seen) == ("a.py", 3, [])
    assert Place("a.py").seen is not place.seen
    assert repr(place) == "Place(name='a.py', line=3, seen=[])"


@pytest.mark.parametrize(
    ("given", "named", "message"),
    [
        ((), {}, "Place has no value for 'name'"),
        (("a.py",), {"file": 1}, "Place has no field 'file'"),
        (("a.py",), {"name": "b.py"}, "Place has two values for 'name'"),
        (("a.py", 1, [], 2), {}, "Place has 3 fields, not 4"),
    ],
)
def test_wrong_values_are_refused(given, named, message):
    with pytest.raises(TypeError, match=message):
        Place(*given, **named)


def test_nothing_can_be_changed_or_added():
    place = Place("a.py")
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'line'"):
        place.line = 1
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'line'"):
        del place.line
    assert not hasattr(place, "__dict__")


def test_it_is_a_dataclass_that_can_be_replaced_copied_and_sent():
    place = Place("a.py", 3, [1])
    assert is_dataclass(place)
    assert [one.name for one in fields(place)] == ["name", "line", "seen"]
    assert Place.__match_args__ == ("name", "line", "seen")
    assert replace(place, line=4) == Place("a.py", 4, [1])
    assert pickle.loads(pickle.dumps(place)) == copy.copy(place) == place


def test_equality_is_that_of_the_values_only_where_it_is_asked_for():
    assert Place("a.py") == Place("a.py") != Place("a.py", 1)
    assert Place("a.py") != "a.py"
    assert Named("a") != Named("a")
    assert len({Named("a"), Named("a")}) == 2
