"""What outlives its step: kept by a graph it is an activation, kept by the program it is not."""

from __future__ import annotations

import gc
import time
from collections import Counter
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from memprof.sources.cpu.find_storages import StorageSearch, reads_saved  # noqa: E402
from memprof.sources.cpu.throttle import Throttle  # noqa: E402
from memprof.trace import Action, Category  # noqa: E402
from tests.sources.recording import CpuRecording  # noqa: E402

STEPS = 5
READS_SAVED = reads_saved()
pytestmark = pytest.mark.skipif(not READS_SAVED, reason="torch before 2.8 tells no saved tensors")


class Recorder(CpuRecording):
    def run(self, job, steps=STEPS):
        """Run a job, a step a call, in a window; the category by address of what is left."""
        self.source.begin_window()
        for _ in range(steps):
            job()
            self.loop_watch.step_done()
        return self.end()

    def end(self):
        blocks = self.source.end_window()["cpu"].blocks
        return dict(zip(blocks.address.tolist(), map(Category, blocks.category), strict=True))


@pytest.fixture
def recorder():
    it = Recorder()
    yield it
    it.close()


class Net(nn.Module):
    """Saves the result of exp, and keeps something for its own purposes."""

    def __init__(self, keep=lambda _: None):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.keep = keep

    def forward(self, x):
        y = self.linear(x).exp()
        self.keep(y)
        return y.sum()


def addresses(tensors):
    return [t.untyped_storage().data_ptr() for t in tensors]


def test_what_a_program_keeps_of_a_forward_pass_is_no_activation_once_no_graph_saves_it(recorder):
    kept = []
    net = Net(lambda y: kept.append(y.detach()))
    left = recorder.run(lambda: net(torch.ones(3, 8)).backward())
    found = [left[address] for address in addresses(kept)]
    # The next step may still replace what the last one left: judged from the second on.
    assert found == [Category.UNKNOWN] * (STEPS - 1) + [Category.ACTIVATION]


def test_the_result_of_a_step_counts_as_activation_until_the_next_replaces_it(recorder):
    net, held = Net(), {}

    def job():
        held["loss"] = loss = net(torch.ones(3, 8))
        loss.backward()

    left = recorder.run(job)
    assert left[held["loss"].untyped_storage().data_ptr()] == Category.ACTIVATION


def test_a_retained_graph_keeps_activations_until_it_is_released(recorder):
    kept, losses = [], []
    net = Net(lambda y: kept.append(y.detach()))

    def job():
        losses.append(net(torch.ones(3, 8)))
        losses[-1].backward(retain_graph=True)

    left = recorder.run(job)
    assert [left[a] for a in addresses(kept)] == [Category.ACTIVATION] * STEPS
    losses.clear()
    recorder.source.begin_window()
    left = recorder.end()
    assert {left[a] for a in addresses(kept[:-1])} == {Category.UNKNOWN}


def test_losses_whose_backward_never_ran_keep_activations(recorder):
    kept, losses = [], []
    net = Net(lambda y: kept.append(y.detach()))
    left = recorder.run(lambda: losses.append(net(torch.ones(3, 8))))
    assert [left[a] for a in addresses(kept[:-1])] == [Category.ACTIVATION] * (STEPS - 1)
    assert {left[a] for a in addresses(losses[:-1])} == {Category.UNKNOWN}  # no graph saves a sum


def test_micro_batches_are_judged_like_steps_of_one_backward_pass(recorder):
    kept = []
    net = Net(lambda y: kept.append(y.detach()))

    def job():
        for _ in range(3):
            net(torch.ones(3, 8)).backward()

    left = recorder.run(job)
    found = [left[address] for address in addresses(kept)]
    assert found == [Category.UNKNOWN] * 3 * (STEPS - 1) + [Category.ACTIVATION] * 3


def test_of_two_models_each_graph_is_asked(recorder):
    freed, saved, losses = [], [], []
    first, second = Net(lambda y: freed.append(y.detach())), Net(lambda y: saved.append(y.detach()))

    def job():
        first(torch.ones(3, 8)).backward()
        losses.append(second(torch.ones(3, 8)))
        losses[-1].backward(retain_graph=True)

    left = recorder.run(job)
    assert {left[a] for a in addresses(freed[:-1])} == {Category.UNKNOWN}
    assert {left[a] for a in addresses(saved)} == {Category.ACTIVATION}


@pytest.mark.parametrize("reentrant", [True, False])
def test_the_input_of_a_checkpointed_part_is_kept_as_long_as_its_graph(recorder, reentrant):
    inputs, losses = [], []

    class Checkpointed(Net):
        def forward(self, x):
            x = self.linear(x)
            inputs.append(x.detach())
            return checkpoint(lambda t: t.exp().sum(), x, use_reentrant=reentrant)

    net = Checkpointed()
    done = Net(lambda y: None)

    def job():
        losses.append(net(torch.ones(3, 8)))
        done(torch.ones(3, 8)).backward()

    left = recorder.run(job)
    assert {left[a] for a in addresses(inputs[:-1])} == {Category.ACTIVATION}
    losses.clear()
    recorder.source.begin_window()
    left = recorder.end()
    assert {left[a] for a in addresses(inputs[:-1])} == {Category.UNKNOWN}


KEPT_BY_SCALE: list = []


class Scale(torch.autograd.Function):
    """Saves its input the proper way, and something as an attribute."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.factor = x.detach() * 2
        KEPT_BY_SCALE.append((x.detach(), ctx.factor.view(-1)))
        return x * ctx.factor

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * (ctx.factor + 2 * x)


def test_attributes_of_ctx_outlast_the_backward_pass_and_saved_tensors_do_not(recorder):
    KEPT_BY_SCALE.clear()
    losses = []

    class Custom(Net):
        def forward(self, x):
            return Scale.apply(self.linear(x)).sum()

    net = Custom()

    def job():
        losses.append(net(torch.ones(3, 8)))
        losses[-1].backward()

    left = recorder.run(job)
    saved, attributes = zip(*KEPT_BY_SCALE[:-1], strict=True)
    KEPT_BY_SCALE.clear()
    assert {left[a] for a in addresses(attributes)} == {Category.ACTIVATION}
    assert {left[a] for a in addresses(saved)} == {Category.UNKNOWN}


def test_a_graph_over_gradients_keeps_activations(recorder):
    kept, results = [], []
    net = Net(lambda y: kept.append(y.detach()))

    def job():
        x = torch.ones(3, 8, requires_grad=True)
        (gradient,) = torch.autograd.grad(net(x), x, create_graph=True)
        results.append(gradient.pow(2).sum())

    left = recorder.run(job)
    assert {left[a] for a in addresses(kept[:-1])} == {Category.ACTIVATION}
    results.clear()
    recorder.source.begin_window()
    left = recorder.end()
    assert {left[a] for a in addresses(kept[:-1])} == {Category.UNKNOWN}


def test_under_autocast_the_low_precision_results_are_judged_alike(recorder):
    kept, losses = [], []
    net = Net(lambda y: kept.append(y.detach()))

    def job():
        with torch.autocast("cpu", torch.bfloat16):
            losses.append(net(torch.ones(3, 8)))
        losses[-1].backward(retain_graph=len(losses) == 1)

    left = recorder.run(job)
    found = [left[address] for address in addresses(kept[:-1])]
    assert found == [Category.ACTIVATION] + [Category.UNKNOWN] * (STEPS - 2)


def test_what_hooks_pack_is_seen_and_nothing_is_unpacked(recorder):
    packed, unpacked, losses = [], [], []

    def pack(tensor):
        copy = tensor.detach().clone()
        packed.append(copy.untyped_storage().data_ptr())
        return {"copy": copy}

    def unpack(value):
        unpacked.append(value)
        return value["copy"]

    net = Net()

    def job():
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            losses.append(net(torch.ones(3, 8)))
        Net()(torch.ones(3, 8)).backward()

    left = recorder.run(job)
    assert unpacked == []
    # Saved in every step: the result of exp, a view of the weight, and the batch.
    assert {left[address] for address in packed[:-3]} == {Category.ACTIVATION}


@pytest.fixture
def rest(monkeypatch):
    """Lets so much time go by, for a search, that it may look again."""
    clock = SimpleNamespace(now_s=time.monotonic())
    turned = SimpleNamespace(**vars(time))
    turned.monotonic = lambda: clock.now_s
    monkeypatch.setattr("memprof.sources.cpu.find_storages.time", turned)

    def rest() -> None:
        clock.now_s += 1000.0

    return rest


def test_what_died_old_is_unknown_and_what_died_young_temporary(recorder, rest):
    net = Net()
    kept = []
    net.keep = lambda y: kept.append(y.detach())
    recorder.source.begin_window()
    categories = {}

    def drain():
        (chunk,) = recorder.source.drain()
        first = len(categories)
        for row in range(len(chunk.events)):
            made = chunk.events.action[row] == Action.ALLOC
            categories[first + row] = Category(chunk.events.category[row]) if made else None
            if made and chunk.events.size[row] == 3 * 8 * 4 + 4:
                sizes.append(first + row)
        for row, owner in chunk.late_events.items():
            categories[row] = Category(owner.category)

    sizes: list[int] = []
    for step in range(STEPS):
        net(torch.ones(3, 8)).backward()
        recorder.loop_watch.step_done()
        if step == 3:
            rest()
        drain()
    recorder.loop_watch.step_done()
    kept.clear()
    drain()
    found = Counter(c for c in categories.values() if c is not None)
    assert found[Category.UNKNOWN] == 4
    assert found[Category.ACTIVATION] >= 1
    recorder.source.end_window()


def test_graphs_are_looked_at_only_when_something_new_has_outlived_its_step(
    recorder, rest, monkeypatch
):
    looks = []
    everything = StorageSearch.everything

    def counted(search):
        looks.append(None)
        return everything(search)

    monkeypatch.setattr(StorageSearch, "everything", counted)
    # No object becomes old unnoticed.
    monkeypatch.setattr(gc, "get_stats", lambda: [{"collections": 0}] * 3)
    kept, net = [], Net()
    recorder.source.begin_window()

    found = []
    for keep in (lambda _: None, *[lambda y: kept.append(y.detach())] * 2):
        net.keep = keep
        before = len(looks)
        for _ in range(6):
            net(torch.ones(3, 8)).backward()
            recorder.loop_watch.step_done()
            rest()
            recorder.source.drain()
        found.append(len(looks) - before)
    assert found == [0, 1, 0]  # nothing to ask; one look; the line is known by now
    recorder.source.end_window()


def test_where_torch_does_not_tell_what_graphs_save_activations_stay_such(recorder, monkeypatch):
    monkeypatch.setattr(StorageSearch, "reads_saved", False)
    kept = []
    net = nn.Linear(16, 16)

    def job():
        out = net(torch.ones(2, 16))
        kept.append(out.detach())
        out.sum().backward()

    found = recorder.run(job)
    assert {found[one.data_ptr()] for one in kept} == {Category.ACTIVATION}


def test_what_dies_before_the_first_drain_was_known_while_it_lived(recorder, monkeypatch):
    monkeypatch.setattr(Throttle, "__call__", lambda _, work: work())  # as if steps were long
    kept = []

    def train():
        net = Net(lambda y: kept.append(y.detach()))
        optimizer = torch.optim.Adam(net.parameters())
        for _ in range(STEPS):
            net(torch.ones(3, 8)).backward()
            optimizer.step()
            optimizer.zero_grad()
            recorder.loop_watch.step_done()
            recorder.source.counters()
        return sum(p.nbytes for p in net.parameters())

    recorder.source.begin_window()
    parameters = train()
    kept.clear()
    (chunk,) = recorder.source.drain()
    found = Counter()
    for row in range(len(chunk.events)):
        if chunk.events.action[row] == Action.ALLOC:
            found[Category(chunk.events.category[row])] += int(chunk.events.size[row])
    recorder.source.end_window()
    assert found[Category.PARAMETER] == parameters
    assert found[Category.OPTIMIZER_STATE] == 2 * parameters + 2 * 4  # two moments, two step counts
    # y, made by exp, of all steps but the last: that one had not outlived its next.
    assert found[Category.UNKNOWN] == (STEPS - 1) * 3 * 8 * 4
