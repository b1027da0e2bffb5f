"""Owners and holders of CUDA memory on a GPU: found by address, without touching the device."""

from __future__ import annotations

import gc
from collections import Counter

import pytest

torch = pytest.importorskip("torch", reason="needs torch and a CUDA device")

import memprof  # noqa: E402
from memprof.loading import load  # noqa: E402
from memprof.referrers.find_holders import find_holders  # noqa: E402
from memprof.sources.cpu.find_storages import reads_saved  # noqa: E402
from memprof.sources.tensor_addresses import DeviceBlock, place_of  # noqa: E402
from memprof.trace import Action, BlockState, Category  # noqa: E402
from tests.gpu.devices import recorded  # noqa: E402
from tests.gpu.patience import LONG_S  # noqa: E402

KEPT: dict[str, object] = {}
STEPS = 24


@pytest.fixture(autouse=True)
def _nothing_kept():
    yield
    KEPT.clear()
    gc.collect()


def block(tensor) -> DeviceBlock:
    """The memory of a tensor as torch's recorder knows it; holds nothing."""
    device, address = place_of(tensor)
    return DeviceBlock(device, address, tensor.untyped_storage().nbytes())


def operations() -> tuple[int, int]:
    stats = torch.cuda.memory_stats()
    return stats["allocation.all.allocated"], stats["allocation.all.freed"]


def train(path, sources, keep=lambda loss: None, steps=STEPS):
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 8))
    with memprof.track(path, sources=sources, allowance_s=LONG_S):
        model = model.cuda()
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(steps):
            loss = model(torch.ones(64, 256, device="cuda")).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            keep(loss)
    return load(path), model, optimizer


def test_a_tensors_storage_begins_where_its_block_does():
    tensor = torch.ones(1000, device="cuda")
    assert place_of(tensor[100:]) == (f"cuda:{tensor.device.index}", tensor.data_ptr())


def test_a_lazy_clone_gets_no_memory_by_being_looked_at():
    KEPT["whole"] = torch.ones(1 << 20, device="cuda")
    KEPT["clone"] = torch._lazy_clone(KEPT["whole"])
    before = operations()
    assert place_of(KEPT["clone"]) == place_of(KEPT["whole"])
    find_holders([DeviceBlock("cuda:0", place_of(KEPT["whole"])[1], 4 << 20)], budget_s=LONG_S)
    assert operations() == before


def test_holders_of_a_block_are_those_of_its_tensor():
    KEPT["view"] = torch.ones(1000, device="cuda")[10:20]
    (found,) = find_holders([block(KEPT["view"])], budget_s=LONG_S)
    assert "a view that shows 40 of 4000 bytes" in found[0].description
    (held, *_) = memprof.holders(KEPT["view"], budget_s=LONG_S)
    assert held.description == found[0].description


def test_what_only_a_graph_saved_is_found_by_its_address():
    if not reads_saved():
        pytest.skip("before torch 2.8 saved tensors cannot be read")
    weight = torch.ones(8, device="cuda", requires_grad=True)
    values = torch.arange(8.0, device="cuda")
    target = block(values)
    KEPT["loss"] = (values * weight).sum()
    del values
    (found,) = find_holders([target], budget_s=LONG_S)
    assert found[0].description.startswith("saved tensor `self` of MulBackward0")


def test_searching_neither_waits_nor_allocates():
    KEPT["tensors"] = [torch.ones(1000, device="cuda") for _ in range(50)]
    targets = [block(one) for one in KEPT["tensors"]]
    torch.cuda.synchronize()
    before = operations()
    torch.cuda.set_sync_debug_mode("error")
    try:
        find_holders(targets, budget_s=LONG_S)
        memprof.tensors(budget_s=LONG_S)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert operations() == before


def test_every_live_tensor_is_listed_with_its_device_and_bytes():
    KEPT["whole"] = torch.ones(1000, device="cuda")
    KEPT["part"] = KEPT["whole"][10:20]
    listed = [one for one in memprof.tensors(budget_s=LONG_S) if one.device == "cuda:0"]
    assert sum(one.storage_bytes for one in listed if "KEPT" in one.name) == 4000
    assert {0, 3960} <= {one.hidden_bytes for one in listed}


def test_blocks_at_the_end_have_the_owners_that_point_at_them(tmp_path, sources):
    run, model, optimizer = train(tmp_path / "run.json", sources)
    end = recorded(run).windows[-1].end
    used = end.blocks.take(end.blocks.state == BlockState.ACTIVE_ALLOCATED)
    owner = dict(zip(used.address.tolist(), used.category.tolist(), strict=True))
    for parameter in model.parameters():
        assert owner[parameter.data_ptr()] == Category.PARAMETER
    for state in optimizer.state.values():
        assert owner[state["exp_avg"].data_ptr()] == Category.OPTIMIZER_STATE


def test_gradients_and_activations_of_every_step_are_known(tmp_path, sources):
    run, _, _ = train(tmp_path / "run.json", sources)
    made = Counter(
        Category(int(category))
        for window in recorded(run).windows
        for action, category in zip(window.events.action, window.events.category, strict=True)
        if action == Action.ALLOC
    )
    assert made[Category.GRADIENT] >= 4 * (STEPS - 1)
    assert made[Category.ACTIVATION] >= 2 * (STEPS - 1)
    assert made[Category.INPUT] >= STEPS - 1


def test_a_growing_list_of_cuda_tensors_is_named_while_the_job_runs(tmp_path, sources):
    outputs: list[object] = []
    run, _, _ = train(
        tmp_path / "run.json", sources, lambda loss: outputs.append(loss.detach().clone())
    )
    found = [f for f in run.findings if f.finding == "holders" and f.device == "cuda:0"]
    assert any("outputs" in one.description for f in found for one in f.holders)


def test_memory_of_a_captured_graph_says_whose_pool_it_lies_in(tmp_path, sources):
    with memprof.track(tmp_path / "run.json", sources=sources, allowance_s=LONG_S):
        graph, static = torch.cuda.CUDAGraph(), torch.ones(1 << 20, device="cuda")
        static * 2  # its kernel is loaded when the capture begins
        with torch.cuda.graph(graph):
            out = static * 2
        target = block(out)
        del out
        memprof.step()
    (found,) = find_holders([target._replace(pool=(1, 0))], budget_s=LONG_S)
    assert "no Python owner found" in found[0].description
    assert "private pool of a CUDA graph" in found[0].description
