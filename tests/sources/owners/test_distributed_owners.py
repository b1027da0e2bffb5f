"""Whose bytes a DTensor's are, on one rank: those of its local tensor, and no source minds the mesh."""

from __future__ import annotations

from collections import Counter

import pytest

torch = pytest.importorskip("torch", reason="needs torch")
dist = pytest.importorskip("torch.distributed", reason="needs torch.distributed")
if not dist.is_available() or not dist.is_gloo_available():
    pytest.skip("this torch was built without gloo", allow_module_level=True)
try:
    from torch.distributed.tensor import Replicate, distribute_module, distribute_tensor
except ImportError:  # before 2.5
    from torch.distributed._tensor import Replicate, distribute_module, distribute_tensor

from torch.distributed.device_mesh import init_device_mesh  # noqa: E402

from memprof.sources.cuda.oom_observer import Exhausted, OomWatch  # noqa: E402
from memprof.sources.cuda.source_with_owners import OwnedCudaSource  # noqa: E402
from memprof.sources.loop.loop_watch import LoopWatch  # noqa: E402
from memprof.sources.protocol import Interner  # noqa: E402
from memprof.testing.cuda import StandInOutOfMemoryError, TorchStandIn  # noqa: E402
from memprof.trace import BlockState, Category  # noqa: E402
from tests.sources.recording import CpuRecording  # noqa: E402

WEIGHT, BIAS = 16 * 8 * 4, 16 * 4


pytestmark = pytest.mark.filterwarnings("ignore:DTensor random operators:UserWarning")


@pytest.fixture(scope="module")
def mesh():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


class Scale(torch.nn.Module):
    """No matrix product: torch 2.4 cannot run one on a mesh of one rank."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(16, 8))
        self.bias = torch.nn.Parameter(torch.ones(16, 1))

    def forward(self, x):
        return x * self.weight + self.bias


def trained(mesh):
    """A distributed model after a step, its optimizer, and what keeps its gradients."""
    model = distribute_module(Scale(), mesh)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    model(distribute_tensor(torch.ones(16, 8), mesh, [Replicate()])).to_local().sum().backward()
    optimizer.step()
    return model, optimizer


class OnDevice:
    """CPU tensors that lie on a stand-in's device, each at an address of its own."""

    def __init__(self, stand_in: TorchStandIn) -> None:
        self._stand_in = stand_in
        self.address: dict[int, int] = {}

    def lay(self, tensor) -> int:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self.address:
            self.address[key] = self._stand_in.alloc(storage.nbytes())
        return self.address[key]

    def place(self, tensor) -> tuple[str, int]:
        address = self.address.get(tensor.untyped_storage()._cdata, 0)
        return ("cuda:0", address) if address else ("", 0)


def local(tensor):
    return tensor._local_tensor


@pytest.fixture
def interner():
    return Interner()


@pytest.fixture
def loop_watch(interner):
    made = LoopWatch(interner)
    made.open(lambda step: None)
    made.watch_modules()
    yield made
    made.close()


@pytest.fixture
def recording():
    made = CpuRecording()
    yield made
    made.close()


def test_on_the_cpu_every_byte_of_a_distributed_model_has_its_owner(mesh, recording):
    recording.source.begin_window()
    model, optimizer = trained(mesh)
    recording.source.drain()
    blocks = recording.source.end_window()["cpu"].blocks
    at = dict(zip(blocks.address.tolist(), blocks.category.tolist(), strict=True))
    for parameter in model.parameters():
        momentum = optimizer.state[parameter]["momentum_buffer"]
        for tensor, category in (
            (parameter, Category.PARAMETER),
            (parameter.grad, Category.GRADIENT),
            (momentum, Category.OPTIMIZER_STATE),
        ):
            assert at[local(tensor).untyped_storage().data_ptr()] == category


def test_on_cuda_the_local_tensors_blocks_have_the_owner(mesh, interner, loop_watch):
    stand_in = TorchStandIn()
    device, *_trained = laid(stand_in, mesh)
    source = OwnedCudaSource(interner, loop_watch, stand_in, device.place)
    source.open()
    blocks = source.begin_window()["cuda:0"].blocks
    used = blocks.take(blocks.state == BlockState.ACTIVE_ALLOCATED)
    found = Counter(zip(map(Category, used.category), used.requested.tolist(), strict=True))
    kinds = (Category.PARAMETER, Category.GRADIENT, Category.OPTIMIZER_STATE)
    assert found == {(kind, size): 1 for kind in kinds for size in (WEIGHT, BIAS)}
    source.close()
    assert source.notes() == []


def laid(stand_in: TorchStandIn, mesh):
    """A device on which a trained model's local tensors lie; the model and its optimizer."""
    device = OnDevice(stand_in)
    model, optimizer = trained(mesh)
    for parameter in model.parameters():
        for tensor in (parameter, parameter.grad, *optimizer.state[parameter].values()):
            device.lay(local(tensor))
    return device, model, optimizer


def failed(stand_in: TorchStandIn, loop_watch: LoopWatch, device: OnDevice) -> Exhausted:
    """What is told of a failed request."""
    told: list[Exhausted] = []
    watch = OomWatch(stand_in, loop_watch, told.append, device.place)
    assert watch.open() == ""
    with pytest.raises(StandInOutOfMemoryError):
        stand_in.alloc(1 << 40)
    watch.close()
    (what,) = told
    return what


def test_a_failure_tells_whose_the_bytes_of_a_distributed_model_are(mesh, loop_watch):
    stand_in = TorchStandIn()
    device, *_trained = laid(stand_in, mesh)
    what = failed(stand_in, loop_watch, device)
    whole = WEIGHT + BIAS
    assert "unread" not in what.facts
    assert what.facts["live_categories"] == {
        "parameter": whole,
        "gradient": whole,
        "optimizer state": whole,
    }
    assert what.facts["live_dtypes"]["parameter"] == {"float32": whole}
    assert len(what.owned) == 6


def test_a_sparse_gradient_is_in_a_failures_figures_by_its_parts(loop_watch):
    stand_in = TorchStandIn()
    device = OnDevice(stand_in)
    model = torch.nn.Sequential(torch.nn.Embedding(100, 8, sparse=True), torch.nn.Linear(8, 8))
    model(torch.tensor([1, 2])).sum().backward()
    gradient = model[0].weight.grad
    for tensor in (*model.parameters(), gradient._indices(), gradient._values()):
        device.lay(tensor)
    what = failed(stand_in, loop_watch, device)
    assert what.facts["live_categories"] == {
        "parameter": 100 * 8 * 4 + 8 * 8 * 4 + 8 * 4,
        "gradient": 2 * 8 + 2 * 8 * 4,
    }
    assert what.facts["live_dtypes"]["gradient"] == {"int64": 16, "float32": 64}


def test_one_gradient_that_raises_costs_a_failures_record_nothing_else(loop_watch):
    stand_in = TorchStandIn()
    device = OnDevice(stand_in)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 4))
    model(torch.ones(2, 8)).sum().backward()
    device.lay(model[0].weight)
    real = device.place

    def place(tensor):
        if tensor is model[1].weight:
            raise KeyError("nowhere")
        return real(tensor)

    device.place = place
    what = failed(stand_in, loop_watch, device)
    assert what.facts["live_categories"] == {"parameter": 8 * 8 * 4}
    assert "of type Parameter raised" in loop_watch.notes()[0]


@pytest.mark.skipif(not hasattr(torch, "_lazy_clone"), reason="this torch clones at once")
def test_a_failure_gives_no_lazily_cloned_parameter_memory_of_its_own(loop_watch):
    stand_in = TorchStandIn()
    model = torch.nn.Linear(8, 8)
    model.register_buffer("shared", torch._lazy_clone(torch.ones(8)))
    model(torch.ones(2, 8))
    told: list[Exhausted] = []
    watch = OomWatch(stand_in, loop_watch, told.append)
    watch.open()
    with pytest.raises(StandInOutOfMemoryError):
        stand_in.alloc(1 << 40)
    watch.close()
    assert torch._C._is_cow_tensor(model.shared)
