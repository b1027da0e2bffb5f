"""Objects that raise when they are looked at: who holds the others is found all the same."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="holders are searched among torch's tensors")

from memprof.referrers.find_holders import find_holders, holders  # noqa: E402
from memprof.referrers.graph_growth import longest_graph  # noqa: E402
from memprof.referrers.list_tensors import tensors  # noqa: E402
from memprof.sources.tensor_addresses import DeviceBlock  # noqa: E402
from tests.sources import strange  # noqa: E402

KEPT = []


@pytest.fixture(
    params=[
        strange.stale_view,
        strange.Nameless,
        strange.dead_proxy,
        lambda: strange.Half(torch.ones(3)),
        lambda: strange.Looped(torch.ones(3)),
        strange.rude,
    ],
    ids=["stale view", "class without hash", "dead proxy", "half made", "looped", "rude"],
)
def stranger(request):
    yield request.param()
    KEPT.clear()


def test_a_strange_neighbour_hides_no_holder(stranger):
    tensor = torch.ones(300)
    KEPT.extend([stranger, tensor])
    found = holders(tensor)
    assert any("KEPT" in one.description for one in found)


def test_beside_a_strange_tensor_a_block_has_its_holder(stranger):
    tensor = torch.ones(300)
    KEPT.extend([stranger, tensor])
    (found,) = find_holders([DeviceBlock("cpu", tensor.data_ptr(), 1200)])
    assert any("KEPT" in one.description for one in found)


def test_a_strange_tensor_is_no_end_of_the_list_of_tensors(stranger):
    tensor = torch.ones(311)
    KEPT.extend([stranger, tensor])
    assert [one.shape for one in tensors() if one.shape == (311,)] == [(311,)]


def test_the_longest_graph_is_found_beside_what_has_none_to_show(stranger):
    KEPT.append(stranger)
    chain = torch.ones(3, requires_grad=True)
    for _ in range(400):
        chain = chain * 1.5
    found = longest_graph(budget_s=10.0)
    assert found.nodes >= 401
    assert found.tensor() is not None


def test_the_base_of_a_view_that_torch_refuses_to_ask_is_held_by_the_view():
    view = strange.stale_view()
    found = holders(view._base)
    assert any("view" in one.description for one in found)
