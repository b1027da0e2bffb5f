"""Whose the blocks of a device are, and what lives there: on a stand-in, not a test of a GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

torch = pytest.importorskip("torch", reason="owners are torch's modules and optimizers")

import memprof  # noqa: E402
from memprof.run import Run  # noqa: E402
from memprof.sources.cpu.find_storages import reads_saved  # noqa: E402
from memprof.sources.cuda.source_with_owners import OwnedCudaSource  # noqa: E402
from memprof.sources.loop.loop_watch import LoopWatch  # noqa: E402
from memprof.sources.owners.live_blocks import LiveBlocks, LivingBlocks  # noqa: E402
from memprof.sources.protocol import Interner  # noqa: E402
from memprof.sources.tensor_addresses import DeviceBlock  # noqa: E402
from memprof.testing.cuda import TorchStandIn  # noqa: E402
from memprof.trace import Action, BlockState, Category, Phase  # noqa: E402
from tests.sources.pretended import Pretended, recorded_device  # noqa: E402
from tests.tracked import of_kind  # noqa: E402

Training = Callable[[], None]


@pytest.fixture
def device(monkeypatch) -> Pretended:
    """A device that `memprof.track` records, for tensors that pretend to lie on it."""
    return recorded_device(monkeypatch)


def recorded(tmp_path, device: Pretended, program: Training, **options) -> Run:
    with memprof.track(tmp_path / "run.json", sources=("cuda",), allowance_s=60, **options), device:
        program()
    return memprof.load(tmp_path / "run.json")


def train(steps: int, keep: Callable[[torch.Tensor], None] = lambda _: None) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
    model.register_buffer("scale", torch.ones(8))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        batch = torch.randn(32, 64)
        loss = (model(batch) * model.scale).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        keep(loss)


def made(run: Run) -> Counter[tuple[Phase, Category]]:
    """How many allocations were made in each phase, by category."""
    (device,) = run.devices
    return Counter(
        (window.label(int(label)).phase, Category(int(category)))
        for window in device.windows
        for action, label, category in zip(
            window.events.action, window.events.label, window.events.category, strict=True
        )
        if action == Action.ALLOC
    )


def test_every_allocation_of_a_training_run_has_its_exact_owner(tmp_path, device):
    found = made(recorded(tmp_path, device, lambda: train(10)))
    assert found[Phase.OTHER, Category.PARAMETER] == 4
    assert found[Phase.OTHER, Category.BUFFER] == 1
    assert found[Phase.OTHER, Category.INPUT] == 10
    assert found[Phase.BACKWARD, Category.GRADIENT] == 4 * 10
    assert found[Phase.OPTIMIZER, Category.OPTIMIZER_STATE] == 3 * 4
    assert found[Phase.FORWARD, Category.ACTIVATION] > 0
    assert not [one for one in found if one[1] == Category.UNKNOWN]


def test_parameters_bear_the_path_of_their_module(tmp_path, device):
    run = recorded(tmp_path, device, lambda: train(3))
    (window,) = run.devices[0].windows
    paths = {
        window.label(int(label)).module
        for label, category in zip(window.events.label, window.events.category, strict=True)
        if category == Category.PARAMETER
    }
    assert paths == {"Sequential.0", "Sequential.2"}


def test_parameters_written_before_any_call_bear_the_path_too(tmp_path, device, monkeypatch):
    monkeypatch.setattr("memprof.record.session.FLUSH_IN_WINDOW_US", 0)
    monkeypatch.setattr("memprof.record.recording.DRAIN_SHARE", 1e9)

    def program():
        model = torch.nn.Linear(64, 256)
        memprof.step()  # what is there is written here
        model(torch.randn(32, 64)).sum().backward()
        memprof.step()

    run = recorded(tmp_path, device, program)
    assert of_kind(tmp_path / "run.json", "owners")
    (window,) = run.devices[0].windows
    events = window.events
    bytes_by_path = {
        int(events.size[row]): window.label(int(events.label[row])).module
        for row in (events.category == Category.PARAMETER).nonzero()[0]
    }
    assert bytes_by_path == {64 * 256 * 4: "Linear", 256 * 4: "Linear"}


def test_windows_that_end_with_an_optimizers_step_raise_nothing_into_the_job(tmp_path, device):
    run = recorded(tmp_path, device, lambda: train(12), max_events=400, window_steps=1)
    assert run.footer is not None
    assert run.footer.status == "ok"
    ended = "it held half of the events that were left of 400"
    assert any(note.message.endswith(ended) for note in run.notes)


@pytest.mark.skipif(not reads_saved(), reason="this torch does not tell what graphs save")
def test_what_a_program_keeps_of_a_forward_pass_is_no_activation_for_long(tmp_path, device):
    kept = []

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(64, 96)

        def forward(self, x):
            y = self.linear(x).exp()
            kept.append(y.detach())
            return y.sum()

    def program():
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(8):
            model(torch.ones(1024, 64)).backward()
            optimizer.step()

    run = recorded(tmp_path, device, program)
    (window,) = run.devices[0].windows
    used = window.end.blocks.take(window.end.blocks.state == BlockState.ACTIVE_ALLOCATED)
    blocks = used.take(used.size == 1024 * 96 * 4)
    assert len(blocks) == len(kept) == 8
    found = Counter(Category(int(one)) for one in blocks.category)
    # The next step may still replace what the last one left.
    assert found == {Category.UNKNOWN: 7, Category.ACTIVATION: 1}


@pytest.mark.skipif(not reads_saved(), reason="this torch does not tell what graphs save")
def test_graphs_that_are_kept_keep_activations(tmp_path, device):
    kept, losses = [], []

    def program():
        model = torch.nn.Linear(64, 96)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(8):
            result = model(torch.ones(1024, 64)).exp()
            kept.append(result.detach())
            losses.append(result.sum())
            losses[-1].backward(retain_graph=True)
            optimizer.step()

    run = recorded(tmp_path, device, program)
    (window,) = run.devices[0].windows
    used = window.end.blocks.take(window.end.blocks.state == BlockState.ACTIVE_ALLOCATED)
    blocks = used.take(used.size == 1024 * 96 * 4)
    found = Counter(Category(int(one)) for one in blocks.category)
    assert found == {Category.ACTIVATION: 8}
    assert len(kept) == len(losses) == 8


def test_the_state_at_the_end_has_owners_and_labels(tmp_path, device):
    run = recorded(tmp_path, device, lambda: train(3))
    (window,) = run.devices[0].windows
    blocks = window.end.blocks.take(window.end.blocks.state == BlockState.ACTIVE_ALLOCATED)
    owned = Counter(Category(int(one)).name for one in blocks.category)
    assert owned == {}  # the model died with the function
    run = recorded(tmp_path, device, lambda: KEPT.append(kept_model()))
    (window,) = run.devices[0].windows
    blocks = window.end.blocks.take(window.end.blocks.state == BlockState.ACTIVE_ALLOCATED)
    owned = Counter(Category(int(one)).name for one in blocks.category)
    assert owned == {"PARAMETER": 2, "GRADIENT": 2, "ACTIVATION": 1}
    KEPT.clear()


KEPT: list[object] = []


def kept_model() -> object:
    model = torch.nn.Linear(8, 8)
    output = model(torch.ones(2, 8))
    output.sum().backward()
    return model, output


def test_an_input_that_a_program_makes_inside_its_model_is_none(tmp_path, device):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(8, 8)

        def forward(self):
            return self.layer(torch.ones(4, 8))

    def program():
        model = Model()
        optimizer = torch.optim.SGD(model.parameters())
        for _ in range(3):
            model().sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    found = made(recorded(tmp_path, device, program))
    assert not [one for one in found if one[1] == Category.INPUT]
    assert found[Phase.BACKWARD, Category.GRADIENT] == 6


# -- what lives ------------------------------------------------------------------------------------


@pytest.fixture
def sources() -> Iterator[ExitStack]:
    """What closes the sources made in a test."""
    with ExitStack() as made:
        yield made


def source_on(torch: TorchStandIn, made: ExitStack) -> OwnedCudaSource:
    interner = Interner()
    loop_watch = LoopWatch(interner)
    loop_watch.open(lambda step: None)
    made.callback(loop_watch.close)
    source = OwnedCudaSource(interner, loop_watch, torch)
    source.open()
    made.callback(source.close)
    return source


@dataclass(frozen=True)
class LiveBlock:
    """One row of the columns."""

    key: DeviceBlock
    size: int
    label: int


def rows_of(blocks: LivingBlocks) -> dict[int, LiveBlock]:
    """By address."""
    return {
        blocks.key(row).address: LiveBlock(blocks.key(row), int(size), int(label))
        for row, (size, label) in enumerate(zip(blocks.size, blocks.label, strict=True))
    }


def living(source: OwnedCudaSource) -> dict[int, LiveBlock]:
    return rows_of(source.living("cuda:0"))


def test_what_lives_is_what_the_device_holds_at_that_moment(sources):
    torch = TorchStandIn()
    old = torch.alloc(1000)
    source = source_on(torch, sources)
    source.begin_window()
    kept, freed = torch.alloc(2000), torch.alloc(3000)
    torch.free(freed)
    assert set(living(source)) == {old, kept}
    torch.free(old)
    assert set(living(source)) == {kept}
    assert living(source)[kept].size == 2048
    assert source.label_of(living(source)[kept].label).step == 0


def test_looking_at_what_lives_loses_no_event(sources):
    torch = TorchStandIn()
    source = source_on(torch, sources)
    source.begin_window()
    torch.alloc(1000)
    living(source)
    torch.alloc(2000)
    living(source)
    torch.alloc(3000)
    events = [int(one) for chunk in source.drain() for one in chunk.events.size]
    assert [size for size in events if size < 1 << 20] == [1000, 2000, 3000]


def test_a_block_keeps_its_step_from_window_to_window_if_it_is_still_the_same(sources):
    torch = TorchStandIn()
    source = source_on(torch, sources)
    source.begin_window()
    same, other = torch.alloc(1 << 20), torch.alloc(5 << 20)
    source.drain()
    source.end_window()
    torch.free(other)
    assert torch.alloc(5 << 20) == other  # unseen, at the same address
    found = living(source)
    assert source.label_of(found[same].label).step == 0
    assert source.label_of(found[other].label).step == -1
    state = source.begin_window()["cuda:0"]
    label = dict(zip(state.blocks.address.tolist(), state.blocks.label.tolist(), strict=True))
    assert source.label_of(label[same]).step == 0
    assert source.label_of(label[other]).step == -1


def test_blocks_of_private_pools_and_streams_say_so(sources):
    torch = TorchStandIn()
    source = source_on(torch, sources)
    source.begin_window()
    side = torch.alloc(1000, stream=0x7F)
    assert living(source)[side].key.stream == 0x7F


def test_the_events_alone_tell_the_streams_and_pools_of_the_windows_beginning(sources, monkeypatch):
    made = []

    def live_blocks(*what):
        made.append(LiveBlocks(*what))
        return made[-1]

    monkeypatch.setattr("memprof.sources.cuda.source_with_owners.LiveBlocks", live_blocks)
    torch = TorchStandIn()
    old = torch.alloc(1000, stream=0x7F)
    source = source_on(torch, sources)
    source.begin_window()
    kept = torch.alloc(30 << 20)  # in a segment that the beginning has not
    source.drain()
    (live,) = made
    known, alone = live.living("cuda:0"), live.alive("cuda:0")
    assert known.key(0)._replace(size=0) == DeviceBlock("cuda:0", old, 0, 0x7F)
    assert rows_of(alone)[old].key == DeviceBlock("cuda:0", old, 1000, 0x7F)
    assert rows_of(alone)[kept].key == DeviceBlock("cuda:0", kept, 30 << 20)
    assert set(rows_of(known)) == set(rows_of(alone)) == {old, kept}
    assert len(live.alive("cuda:1")) == 0


@pytest.mark.parametrize("version", [f"2.{minor}" for minor in range(4, 16)])
def test_nothing_waits_empties_or_resets_while_owners_are_looked_for(version, sources):
    torch = TorchStandIn(version, devices=2)
    source = source_on(torch, sources)
    torch.alloc(1000)
    source.begin_window()
    torch.alloc(1000, device=1)
    living(source)
    source.drain()
    source.end_window()
    living(source)
    for name in ("synchronize", "empty_cache", "reset_peak_memory_stats", "init"):
        assert torch.calls[name] == 0


def test_nothing_lives_on_a_device_before_cuda_is_initialised(sources):
    torch = TorchStandIn(initialized=False)
    source = source_on(torch, sources)
    source.begin_window()
    assert len(source.living("cuda:0")) == 0
    assert torch.calls["snapshot"] == torch.calls["init"] == 0
