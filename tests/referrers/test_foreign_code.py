"""A search runs no code of the objects that it looks at, however odd they are."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from memprof.referrers.find_holders import holders
from memprof.referrers.list_tensors import tensors

KEPT: dict[str, object] = {}


@pytest.fixture(autouse=True)
def _nothing_kept() -> Iterator[None]:
    yield
    KEPT.clear()


class Loud:
    """Whatever is asked of it, it raises."""

    def __getattribute__(self, name: str) -> object:
        raise AssertionError(name)

    def __eq__(self, other: object) -> bool:
        raise AssertionError

    def __str__(self) -> str:
        raise AssertionError

    __repr__ = __str__
    __hash__ = object.__hash__


class LoudType(type):
    def __eq__(cls, other: object) -> bool:
        raise AssertionError

    __hash__ = type.__hash__


class Key(metaclass=LoudType):
    """Its class cannot be compared."""


def descriptions(tensor: torch.Tensor) -> list[str]:
    return [one.description for one in holders(tensor, budget_s=30)]


def test_keys_whose_class_defines_equality_are_named_by_their_type() -> None:
    KEPT["table"] = table = {Key(): torch.ones(2)}
    (tensor,) = table.values()
    del table
    assert "dict `KEPT['table']` (1 items), global `KEPT` of" in " ".join(descriptions(tensor))


def test_a_module_may_have_anything_for_its_file_and_for_its_names() -> None:
    module = types.ModuleType("odd")
    module.__file__ = Loud()  # type: ignore[assignment]
    module.__name__ = Loud()  # type: ignore[assignment]
    module.__dict__[Loud()] = 1  # type: ignore[index]
    module.kept = torch.ones(2)  # type: ignore[attr-defined]
    sys.modules["odd"] = module
    try:
        assert "global `kept` of odd" in descriptions(module.kept)
    finally:
        del sys.modules["odd"]


def test_attributes_under_a_key_that_is_no_string_are_named_by_the_keys_type() -> None:
    class Holder:
        pass

    KEPT["holder"] = holder = Holder()
    holder.__dict__[Loud()] = torch.ones(2)  # type: ignore[index]
    (tensor,) = holder.__dict__.values()
    del holder
    assert "<Loud>" in " ".join(descriptions(tensor))


def test_a_module_of_two_names_is_told_once() -> None:
    module = types.ModuleType("first")
    module.kept = torch.ones(2)  # type: ignore[attr-defined]
    sys.modules["first"] = sys.modules["second"] = module
    try:
        told = [one for one in descriptions(module.kept) if "global" in one]
    finally:
        del sys.modules["first"], sys.modules["second"]
    assert told == ["global `kept` of first"]


def wrapper(**policy: Any) -> torch.Tensor:
    """A tensor of a subclass that asks its own code for its sizes, its layout or its device."""

    class Wrapper(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            raise AssertionError(func)

        @property
        def nbytes(self) -> int:
            raise AssertionError

    made = torch.Tensor._make_wrapper_subclass(Wrapper, (4,), **policy)  # type: ignore[attr-defined]
    assert isinstance(made, torch.Tensor)
    return made


@pytest.mark.parametrize(
    "policy",
    [
        {},
        {"dispatch_sizes_strides_policy": "sizes"},
        {"dispatch_sizes_strides_policy": "strides"},
        {"dispatch_layout": True},
        {"dispatch_device": True},
    ],
)
def test_a_wrapper_is_not_asked_for_what_its_own_code_may_answer(policy: dict[str, Any]) -> None:
    KEPT["wrapper"] = made = wrapper(**policy)
    assert any("KEPT" in one for one in descriptions(made))
    del made
    (listed,) = [one for one in tensors(budget_s=30) if "KEPT" in one.name]
    assert (listed.shape, listed.nbytes, listed.dtype) == ((), 0, "float32")


def test_properties_of_a_subclass_do_not_answer_for_the_tensor() -> None:
    class Named(torch.Tensor):
        @property
        def nbytes(self) -> int:
            raise AssertionError

        @property
        def shape(self) -> torch.Size:
            raise AssertionError

    KEPT["named"] = torch.ones(6).as_subclass(Named)
    (listed,) = [one for one in tensors(budget_s=30) if one.name.startswith("dict `KEPT`")]
    assert (listed.shape, listed.nbytes, listed.hidden_bytes) == ((6,), 24, 0)
