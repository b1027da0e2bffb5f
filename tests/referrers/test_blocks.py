"""Holders of blocks of a device's memory, of which only address and size are known.

CPU tensors stand in: their memory is looked for by address, as a CUDA block's is.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator

import pytest
import torch

from memprof.referrers.find_holders import find_holders
from memprof.referrers.list_tensors import tensors
from memprof.sources.tensor_addresses import DeviceBlock, place_of, storage_place
from tests.referrers.marks import reads_saved

KEPT: dict[str, object] = {}


@pytest.fixture(autouse=True)
def _nothing_kept() -> Iterator[None]:
    gc.collect()
    yield
    KEPT.clear()


def block(tensor: torch.Tensor, device: str = "cpu") -> DeviceBlock:
    """The memory of a tensor as a block; holds nothing."""
    size = tensor.untyped_storage().nbytes()
    return DeviceBlock(device, torch._C._data_address(tensor), size)  # type: ignore[attr-defined]


def described(*blocks: DeviceBlock) -> list[str]:
    return [found[0].description for found in find_holders(blocks, budget_s=30)]


def kept(place: str) -> str:
    return f"{place}, global `KEPT` of {__name__}"


def test_a_view_holds_the_block_that_its_storage_begins_in() -> None:
    KEPT["view"] = torch.zeros(100)[10:20]
    (found,) = described(block(KEPT["view"]))
    assert found == f"a view that shows 40 of 400 bytes, kept by {kept('dict `KEPT` (1 items)')}"


def test_a_storage_that_python_holds_is_found_without_a_tensor() -> None:
    KEPT["storage"] = storage = torch.zeros(50).untyped_storage()
    target = DeviceBlock("cpu", storage.data_ptr(), storage.nbytes())
    del storage
    assert described(target) == [kept("dict `KEPT` (1 items)")]


@reads_saved
def test_what_only_a_graph_saved_is_found_by_its_address() -> None:
    weight = torch.ones(8, requires_grad=True)
    values = torch.arange(8.0)
    target = block(values)
    KEPT["loss"] = (values * weight).sum()
    del values
    (found,) = described(target)
    assert found.startswith("saved tensor `self` of MulBackward0, kept by the autograd graph")
    assert found.endswith(kept("dict `KEPT` (1 items)"))


def test_a_block_is_its_own_devices_only() -> None:
    KEPT["tensor"] = tensor = torch.zeros(100)
    target = block(tensor, device="cuda:0")
    assert described(target) == ["no Python owner found"]
    (found,) = find_holders([target], place=lambda one: ("cuda:0", place_of(one)[1]))
    assert "KEPT" in " ".join(one.description for one in found)


def test_every_storage_that_begins_in_a_block_holds_it() -> None:
    whole = torch.zeros(100)
    target = block(whole)
    start = whole.untyped_storage().data_ptr()
    inside = lambda one: ("cpu", start + 64) if one is KEPT.get("part") else place_of(one)  # noqa: E731
    KEPT["part"] = torch.zeros(1)
    del whole
    (found,) = find_holders([target], place=inside)
    assert found[0].description == kept("dict `KEPT` (1 items)")


def test_what_is_known_of_a_block_without_owner_is_said() -> None:
    workspace = DeviceBlock("cuda:0", 0x1000, 8_519_680)
    captured = DeviceBlock("cuda:0", 0x2000000, 512, stream=0x55, pool=(3, 0))
    pooled = DeviceBlock("cuda:0", 0x3000000, 512, pool=(0, 2))
    cublas, graph, pool = (
        text.partition(": ")[2] for text in described(workspace, captured, pooled)
    )
    assert cublas == "it has the size of a cuBLAS workspace, which torch keeps for every stream"
    assert graph.split("; ") == [
        "it lies in the private pool of a CUDA graph (3, 0)",
        "it was allocated on a side stream, as a library such as NCCL does",
    ]
    assert pool == "it lies in the memory pool (0, 2): a MemPool, or graphs that share one"


def test_looking_at_addresses_gives_no_lazy_clone_memory_of_its_own() -> None:
    KEPT["whole"] = [torch.zeros(100)]
    KEPT["clone"] = clone = [torch._lazy_clone(KEPT["whole"][0])]  # type: ignore[index]
    address = torch._C._data_address(clone[0])  # type: ignore[attr-defined]
    (found,) = find_holders([DeviceBlock("cpu", address, 400)])
    assert sorted(one.description.split(" (")[0] for one in found) == [
        "list `KEPT['whole']`",
        "list `clone`",
    ]
    assert torch._C._is_cow_tensor(clone[0])  # type: ignore[attr-defined]


def test_tensors_without_memory_lie_nowhere_and_disturb_no_search() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        KEPT["fake"] = torch.empty(10, device="cuda")
    KEPT["meta"] = torch.empty(10, device="meta")
    KEPT["sparse"] = torch.sparse_coo_tensor([[0]], [1.0], (3,), check_invariants=False)
    KEPT["lazy"] = torch.nn.UninitializedParameter()
    KEPT["freed"] = freed = torch.zeros(10)
    freed.untyped_storage().resize_(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [place_of(one)[1] for one in KEPT.values()] == [0] * 5
        assert (
            described(DeviceBlock("cuda:0", 4096, 512), DeviceBlock("cpu", 4096, 512))
            == ["no Python owner found"] * 2
        )


def test_the_storage_of_a_fake_tensor_is_passed_by_without_a_warning() -> None:
    """Compiling leaves such storages about; torch warns, once, of whoever asks where they lie."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.zeros(1000)
    KEPT["fake"], KEPT["real"] = fake.untyped_storage(), torch.zeros(8)
    del fake
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            (found,) = described(block(KEPT["real"]))  # type: ignore[arg-type]
    finally:
        torch.set_warn_always(before)
    assert found == kept("dict `KEPT` (2 items)")
    assert [str(one.message) for one in caught] == []


def test_a_wrappers_inner_tensor_names_the_wrapper() -> None:
    inner = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.jagged)
    KEPT["nested"] = inner
    target = block(inner.values())
    del inner
    (found,) = described(target)
    assert found == kept("attribute `_values` of `NestedTensor` (`KEPT['nested']._values`)")


def test_fake_tensors_are_listed_where_they_take_no_memory_and_symbolic_ones_not_at_all() -> None:
    from torch._dynamo.source import ConstantSource
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    shapes = ShapeEnv()
    mode = FakeTensorMode(shape_env=shapes)
    KEPT["symbolic"] = mode.from_tensor(torch.zeros(7, 5), source=ConstantSource("x"))
    with mode:
        KEPT["fake"] = torch.empty(10, device="cuda")
    listed = {one.name: one.device for one in tensors(budget_s=30) if "KEPT" in one.name}
    assert listed == {kept("dict `KEPT` (2 items)"): "meta"}
    assert shapes.guards == []


def test_the_address_of_a_storage_without_bytes_is_not_asked_for():
    """On torch 2.7 asking one that torch.compile left behind damages the heap."""

    class Storage:
        _cdata = 4711
        device = torch.device("cuda", 0)

        def _expired(self, _key):
            return False

        def nbytes(self):
            return 0

        def data_ptr(self):
            raise AssertionError

    assert storage_place(Storage()) == ("", 0)
