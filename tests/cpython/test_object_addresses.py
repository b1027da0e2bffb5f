"""Objects by the address of their type: none of the program's code runs."""

from __future__ import annotations

from memprof.cpython import object_addresses
from memprof.cpython.object_addresses import are_exact_instances, exact_instances


class Hostile(type):
    """A metaclass whose classes refuse to be compared or hashed."""

    def __eq__(cls, other):
        raise AssertionError

    def __hash__(cls):
        raise AssertionError


class Wanted(metaclass=Hostile):
    """What is looked for."""


class Derived(Wanted):
    """What is not: only exact instances are."""


def test_only_exact_instances_are_returned_in_order():
    first, second = Wanted(), Wanted()
    objects = [1, first, Derived(), "text", second, [], None]
    assert [id(one) for one in exact_instances(objects, [Wanted])] == [id(first), id(second)]
    assert exact_instances(objects, [int, str]) == [1, "text"]
    assert are_exact_instances(objects, [list]).tolist() == [False] * 5 + [True, False]


def test_nothing_is_asked_of_nothing():
    assert exact_instances([], [int]) == []
    assert exact_instances([1, 2], []) == []
    assert are_exact_instances([1, 2], []).tolist() == [False, False]


def test_types_are_read_alike_from_memory_and_by_asking_whatever_the_number(monkeypatch):
    of_many_kinds = [1, "text", 2.0, [], {}, None, Wanted(), Derived(), Wanted, object()]
    objects = of_many_kinds * (2 * object_addresses.OBJECTS_AT_ONCE // len(of_many_kinds) + 3)
    kinds = [Wanted, dict, type(None), Hostile]
    from_memory = are_exact_instances(objects, kinds)
    monkeypatch.setattr(object_addresses, "STANDARD_LIST", False)
    assert from_memory.tolist() == are_exact_instances(objects, kinds).tolist()
    assert int(from_memory.sum()) == 4 * len(objects) // len(of_many_kinds)
