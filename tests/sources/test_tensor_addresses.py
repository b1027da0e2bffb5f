"""Where tensors and storages lie, and storages that must not be asked."""

from __future__ import annotations

import gc

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from memprof.sources.tensor_addresses import has_ended, storage_place  # noqa: E402


def test_a_storage_lies_where_its_first_byte_does():
    storage = torch.ones(3).untyped_storage()
    assert not has_ended(storage)
    assert storage_place(storage) == ("cpu", storage.data_ptr())


def test_a_storage_on_the_meta_device_lies_nowhere():
    assert storage_place(torch.ones(3, device="meta").untyped_storage()) == ("", 0)


class Ended:
    """A storage as it must not be looked at, but for these two."""

    _cdata = 4711

    def _expired(self, key: int) -> bool:
        return key == self._cdata


def test_a_storage_that_has_ended_is_asked_nothing():
    assert has_ended(Ended())
    assert storage_place(Ended()) == ("", 0)


def test_what_weak_references_of_torch_leave_of_a_storage_has_ended():
    tensor = torch.ones(4711)
    storage = tensor.untyped_storage()
    weak_reference = storage._weak_ref()
    key = storage._cdata
    del storage, tensor
    answers = [
        (has_ended(one), storage_place(one))
        for one in gc.get_objects()
        if type(one) is torch.UntypedStorage and one._cdata == key
    ]
    torch.UntypedStorage._free_weak_ref(weak_reference)
    assert answers in ([], [(True, ("", 0))])  # from torch 2.11 on nothing is left


class Empty:
    """A storage without bytes, whose address torch 2.7 damages the heap over."""

    _cdata = 4711
    device = torch.device("cuda", 0)

    def _expired(self, key: int) -> bool:
        return key != self._cdata

    def nbytes(self) -> int:
        return 0

    def data_ptr(self) -> int:
        raise AssertionError("it was asked where it lies")


def test_a_storage_without_bytes_is_not_asked_where_it_lies():
    assert not has_ended(Empty())
    assert storage_place(Empty()) == ("", 0)
