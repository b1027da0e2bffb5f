"""What the CPU source records of small programs, to the byte."""

from __future__ import annotations

import _thread
import gc
import signal
import time
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from torch import nn  # noqa: E402
from torch.utils import _python_dispatch  # noqa: E402

from memprof.sources.cpu.dispatch_source import CpuSource  # noqa: E402
from memprof.trace import NOT_RECORDED, Action, Category  # noqa: E402
from tests import forks  # noqa: E402
from tests.interruptions import Alarm, alarms  # noqa: E402
from tests.sources.recording import CpuRecording  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]


class Recorder(CpuRecording):
    def begin(self):
        gc.collect()  # what other tests left must not die in the window
        return self.source.begin_window()["cpu"]

    def drain(self):
        (chunk,) = self.source.drain()
        return chunk

    def bytes_by_owner(self, events):
        labels = self.interner.tables().labels
        found = Counter()
        for row in range(len(events)):
            if events.action[row] == Action.ALLOC:
                owner = Category(events.category[row]), labels[events.label[row]].module
                found[owner] += int(events.size[row])
        return found


@pytest.fixture
def recorder():
    it = Recorder()
    yield it
    it.close()


def test_a_tensor_is_one_allocation_and_two_free_events(recorder):
    recorder.begin()
    x = torch.ones(100)
    address = x.untyped_storage().data_ptr()
    view = x[10:]
    del x
    alive = recorder.drain().events
    assert (alive.action.tolist(), alive.size.tolist()) == ([Action.ALLOC], [400])
    del view
    gone = recorder.drain()
    assert gone.events.action.tolist() == [Action.FREE_REQUESTED, Action.FREE_COMPLETED]
    assert set(gone.events.address.tolist()) == {address}
    assert gone.late_events == {0: (Category.TEMPORARY, alive.label[0])}


def test_a_module_takes_the_parameters_that_were_told_before_it_was_called(recorder):
    recorder.begin()
    net = torch.nn.Linear(3, 4)
    made = recorder.drain().events
    net(torch.ones(2, 3))
    late = recorder.drain().late_events
    labels = recorder.interner.tables().labels
    owned = {
        int(made.size[row]): (owner.category, labels[owner.label].module)
        for row, owner in late.items()
    }
    assert owned == {48: (Category.PARAMETER, "Linear"), 16: (Category.PARAMETER, "Linear")}


def test_the_stack_ends_in_the_line_of_the_program(recorder):
    recorder.begin()
    x = torch.ones(3)
    events = recorder.drain().events
    tables = recorder.interner.tables()
    frame = tables.stack(events.stack[0])[0]
    assert frame.filename == __file__
    assert frame.name.endswith(test_the_stack_ends_in_the_line_of_the_program.__name__)
    assert x.numel() == 3


def test_what_was_there_before_is_in_the_starting_state(recorder):
    before = torch.ones(12345)
    state = recorder.begin()
    address = before.untyped_storage().data_ptr()
    row = state.blocks.address.tolist().index(address)
    assert state.blocks.size[row] == 4 * 12345


def test_a_resize_in_place_frees_and_allocates(recorder):
    recorder.begin()
    x = torch.ones(10)
    before = recorder.source.counters()[0].allocated
    x.resize_(1000)
    assert recorder.source.counters()[0].allocated - before == 4000 - 40


def test_between_windows_tensors_are_counted_now_and_then(recorder):
    source = recorder.source
    assert source.counters()[0].allocated == NOT_RECORDED  # nothing was ever recorded
    recorder.begin()
    before = source.counters()[0].allocated
    source.end_window()
    kept = [torch.ones(1000), torch.ones(500).view(5, 100)[0]]
    assert source.counters()[0].allocated - before == 6000
    kept.pop()
    assert source.counters()[0].allocated == NOT_RECORDED  # it is too soon
    assert source.take_spent_us() > 0


def test_memory_of_numpy_is_counted_once(recorder):
    numpy = pytest.importorskip("numpy")
    array = numpy.zeros(1000)
    recorder.begin()
    before = recorder.source.counters()[0].allocated
    first = torch.from_numpy(array)
    second = torch.from_numpy(array)
    total = first.add_(0).sum() + second.add_(0).sum()
    recorder.drain()
    assert recorder.source.counters()[0].allocated - before == 8000 + total.element_size()


def test_owners_equal_the_arithmetic_to_the_byte(recorder):
    model = nn.Sequential(nn.Linear(7, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    optimizer = torch.optim.AdamW(model.parameters())
    recorder.begin()
    model(torch.randn(4, 7)).sum().backward()
    optimizer.step()
    events = recorder.drain()
    owned = recorder.bytes_by_owner(events.events)
    for name, module in model.named_children():
        size = sum(4 * p.numel() for p in module.parameters())
        count = len(list(module.parameters()))
        assert owned[Category.GRADIENT, f"Sequential.{name}"] == size
        assert owned[Category.OPTIMIZER_STATE, f"Sequential.{name}"] == 2 * size + 4 * count
    blocks = recorder.source.end_window()["cpu"].blocks
    tensors = [*model.parameters(), *model.buffers(), *(p.grad for p in model.parameters())]
    tensors += [t for state in optimizer.state.values() for t in state.values()]
    own = {t.data_ptr() for t in tensors}  # other tests may have left models of theirs
    found = dict.fromkeys(Category, 0)
    for row in range(len(blocks)):
        if int(blocks.address[row]) in own:
            found[Category(blocks.category[row])] += int(blocks.size[row])
    assert sum(found.values()) == sum(t.nbytes for t in tensors)
    total = sum(4 * p.numel() for p in model.parameters())
    assert found[Category.PARAMETER] == found[Category.GRADIENT] == total
    assert found[Category.BUFFER] == sum(b.nbytes for b in model.buffers())
    assert found[Category.OPTIMIZER_STATE] == 2 * total + 4 * len(list(model.parameters()))


def test_the_state_of_an_optimizer_that_is_gone_before_anybody_looks_is_known(recorder):
    recorder.begin()
    recorder.source._at_leisure = lambda _: None  # a short job ends before its next turn

    def train():
        model = nn.Linear(30, 20)
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(5, 30)).sum().backward()
            optimizer.step()

    train()
    gc.collect()
    found = recorder.bytes_by_owner(recorder.drain().events)
    state = {owner: size for owner, size in found.items() if owner[0] == Category.OPTIMIZER_STATE}
    assert state == {
        (Category.OPTIMIZER_STATE, "Linear"): 2 * 4 * (30 * 20 + 20) + 2 * 4  # and a step each
    }


def test_gradients_dropped_before_the_steps_end_were_gradients(recorder):
    model = nn.Linear(4, 4)
    recorder.begin()
    model(torch.randn(2, 4)).sum().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.sub_(parameter.grad)
            parameter.grad = None
    owned = recorder.bytes_by_owner(recorder.drain().events)
    assert owned[Category.GRADIENT, "Linear"] == 4 * 20


def test_what_backward_needs_is_activation_and_the_rest_temporary(recorder):
    class Net(nn.Module):
        def forward(self, x):
            return ((x * 2).exp() + 1).sum()

    x = torch.randn(8, requires_grad=True)
    net = Net()
    recorder.begin()
    net(x).backward()
    owned = recorder.bytes_by_owner(recorder.drain().events)
    assert owned[Category.ACTIVATION, "Net"] == 32 + 4  # exp saves its result; the loss lives
    assert owned[Category.TEMPORARY, "Net"] == 32 + 32 + 32  # and the gradient of exp


def test_a_batch_and_its_targets_are_input(recorder):
    model = nn.Linear(4, 2)
    recorder.begin()
    x, target = torch.randn(8, 4), torch.randint(2, (8,))
    nn.functional.cross_entropy(model(x), target).backward()
    owned = recorder.bytes_by_owner(recorder.drain().events)
    assert owned[Category.INPUT, ""] == x.nbytes + target.nbytes


def test_a_subclass_and_fake_tensors_go_their_own_way(recorder):
    from torch._subclasses.fake_tensor import FakeTensorMode

    recorder.begin()
    before = recorder.source.counters()[0].allocated
    with FakeTensorMode():
        fake = torch.ones(1000) + 1
    sparse = torch.eye(10).to_sparse()
    assert torch.func.vmap(torch.sin)(torch.ones(3)).shape == (3,)
    with torch.inference_mode():
        assert torch.ones(2).is_inference()
    recorder.drain()
    kept = recorder.source.counters()[0].allocated - before
    assert kept == sparse._indices().nbytes + sparse._values().nbytes
    assert fake.shape == (1000,)


def test_the_parts_of_a_sparse_result_have_its_line(recorder):
    one = torch.eye(300).to_sparse()
    recorder.begin()
    total = one + one
    made = recorder.drain().events
    size = total._values().untyped_storage().nbytes()
    tables = recorder.interner.tables()
    names = {
        tables.stack(int(made.stack[row]))[0].name
        for row in range(len(made))
        if made.action[row] == Action.ALLOC and made.size[row] == size
    }
    assert names == {"test_the_parts_of_a_sparse_result_have_its_line"}


def test_a_mode_of_the_program_keeps_its_place(recorder):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Count(TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.calls += 1
            return func(*args, **(kwargs or {}))

    with Count() as mode:
        recorder.begin()
        torch.ones(1)
    torch.ones(1)
    assert mode.calls == 1
    assert len(recorder.drain().events) == 6
    recorder.source.end_window()


def test_an_error_of_the_program_stays_its_own(recorder):
    recorder.begin()
    with pytest.raises(RuntimeError, match="must match the size"):
        torch.ones(2) + torch.ones(3)


COMPILED = """
import torch
from torch import nn
from torch.utils import _python_dispatch
from memprof.sources.loop.loop_watch import LoopWatch
from memprof.sources.cpu.dispatch_source import CpuSource
from memprof.sources.protocol import Interner

graphs = []

def backend(graph, _inputs):
    graphs.append(graph)
    return graph.forward

interner = Interner()
loop_watch = LoopWatch(interner)
source = CpuSource(interner, loop_watch)
loop_watch.open(lambda _: None)
source.open()
model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
compiled = torch.compile(model, backend=backend)
x = torch.randn(2, 4)
expected = model(x)
source.begin_window()
assert torch.equal(compiled(x), expected)
assert torch.equal(compiled(x), expected)
assert len(graphs) == 1, len(graphs)
source.end_window()
assert torch.equal(compiled(x), expected)
notes = [*source.notes(), *loop_watch.notes()]
bearable = hasattr(_python_dispatch, "is_in_any_mode_without_ignore_compile_internals")
assert len(notes) == (0 if bearable else 1), notes
source.close()
loop_watch.close()
"""


def test_torch_compile_compiles_once_and_warns_of_nothing_under_a_window():
    # In a process of its own: dynamo patches Module for good.
    done = forks.run("import warnings\nwarnings.simplefilter('error', UserWarning)" + COMPILED)
    assert done.returncode == 0, done.stderr


def test_where_a_compiled_program_would_suffer_nothing_is_watched_and_that_is_said(
    recorder, monkeypatch
):
    recorder.begin()
    before = torch.ones(100)
    monkeypatch.setattr("memprof.sources.cpu.dispatch_source.spoils_compiled", lambda: True)
    model = nn.Linear(4, 4)
    during = torch.ones(200)
    model(torch.ones(1, 4))  # what is compiled begins in a call of a module
    assert not _python_dispatch._get_current_dispatch_mode_stack()
    after = torch.ones(300)
    sizes = set(recorder.drain().events.size.tolist())
    assert {before.nbytes, during.nbytes} <= sizes
    assert after.nbytes not in sizes
    recorder.source.end_window()
    (note,) = recorder.source.notes()
    assert "torch.compile is used" in note
    assert recorder.source.begin_window() == {}
    assert recorder.source.notes() == []


def test_results_on_a_thread_that_runs_no_python_above_are_seen(recorder):
    """As on CUDA, where autograd calls operators from a thread of its own."""
    recorder.begin()
    (mode,) = _python_dispatch._get_current_dispatch_mode_stack()
    dispatch = type(mode).__torch_dispatch__
    kept = []

    def operator():
        kept.append(torch.full((1000,), 1.0))
        return tuple(kept)

    running = _thread._count()
    _thread.start_new_thread(partial(dispatch, None, operator, ()), ())  # its outermost frame
    deadline = time.monotonic() + 300
    while not kept or _thread._count() > running:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert 4000 in recorder.drain().events.size.tolist()
    recorder.source.end_window()
    assert recorder.source.notes() == []


class OnCuda:
    """Initialises CUDA as torch sees it, without a device."""

    def __init__(self, monkeypatch):
        self._is_initialized = False
        self.queued = []
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: self._is_initialized)
        monkeypatch.setattr(torch.cuda, "_lazy_call", lambda call: self.queued.append((call, [])))
        monkeypatch.setattr(torch.cuda, "_queued_calls", self.queued)

    def begin(self):
        for call, _ in self.queued:
            call()
        self._is_initialized = True  # in this order, as torch.cuda._lazy_init does


@pytest.fixture
def by_default(monkeypatch):
    it = Recorder()
    it.source.close()
    cuda = OnCuda(monkeypatch)
    it.source = CpuSource(it.interner, it.loop_watch, beside_cuda=False)
    it.source.open()
    yield it, cuda
    it.close()
    assert cuda.queued == []


def test_by_default_nothing_is_watched_from_the_moment_on_that_the_job_uses_cuda(by_default):
    recorder, cuda = by_default
    recorder.begin()
    before = torch.ones(100)
    cuda.begin()
    assert not _python_dispatch._get_current_dispatch_mode_stack()
    after = torch.ones(300)
    size = before.nbytes
    del before
    events = recorder.drain().events
    assert events.size.tolist().count(size) == 3  # it came and went: both ends are known
    assert after.nbytes not in events.size.tolist()
    assert after.nbytes not in recorder.source.end_window()["cpu"].blocks.size.tolist()
    (note,) = recorder.source.notes()
    assert "the job uses CUDA" in note
    assert recorder.source.begin_window() == {}
    assert recorder.source.notes() == []


@pytest.mark.parametrize("moves", [True, False])
def test_what_a_model_is_made_of_is_known_when_it_moves_to_cuda_uncalled(by_default, moves):
    recorder, cuda = by_default
    recorder.begin()
    model = nn.Sequential(nn.Linear(100, 100), nn.Linear(100, 100))
    loaded = torch.ones(5000)
    cuda.begin()
    if moves:  # as Module.cuda() does it: the storages end here, before anything is drained
        for parameter in model.parameters():
            parameter.data = torch.empty(0)
    chunk = recorder.drain()
    made = chunk.events.action == Action.ALLOC
    sizes, categories = chunk.events.size[made].tolist(), chunk.events.category[made].tolist()
    known = sorted(zip(sizes, categories, strict=True))
    parameters = [(400, Category.PARAMETER)] * 2 + [(40_000, Category.PARAMETER)] * 2
    assert [one for one in known if one[0] in (400, 40_000)] == parameters
    assert (loaded.nbytes, Category.UNKNOWN) in known
    (note,) = recorder.source.notes()
    assert "the job uses CUDA" in note


def test_by_default_a_job_on_cuda_has_no_cpu_among_its_devices(by_default):
    recorder, cuda = by_default
    recorder.source.close()
    cuda.begin()
    recorder.source.open()
    assert recorder.source.begin_window() == {}
    assert (list(recorder.source.devices()), list(recorder.source.counters())) == ([], [])
    (note,) = recorder.source.notes()
    assert "the job uses CUDA" in note


def test_a_program_that_names_the_cpu_has_it_watched_beside_cuda(recorder, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    recorder.begin()
    kept = torch.ones(1000)
    assert kept.nbytes in recorder.drain().events.size.tolist()


def add_often(one):
    for _ in range(1000):
        one + 1


def test_what_a_handler_raises_while_limits_are_judged_reaches_the_program(recorder, monkeypatch):
    monkeypatch.setattr("memprof.sources.cpu.dispatch_source.PATIENCE_NS", 0)
    recorder.source.on_full = lambda: signal.raise_signal(signal.SIGALRM)
    recorder.begin()
    with alarms(), pytest.raises(Alarm):
        add_often(torch.ones(1))
    recorder.source.on_full = None
    assert recorder.source.notes() == []


def test_rows_are_bounded_where_nothing_is_crossed_and_the_window_may_end_there(
    recorder, monkeypatch
):
    """`on_full` is called within an operator, while torch has put the mode aside."""
    monkeypatch.setattr("memprof.sources.cpu.dispatch_source.MANY", 1000)
    monkeypatch.setattr("memprof.sources.cpu.dispatch_source.PATIENCE_NS", 60_000_000_000)
    recorder.begin()
    drained, modes = [], []

    def on_full():
        drained.append(len(recorder.source.drain()[0].events))
        if len(drained) == 3:
            recorder.source.end_window()

    recorder.source.on_full = on_full
    one = torch.ones(1)
    deadline = time.monotonic() + 300
    for count in range(20_000):
        one + 1
        if not count % 100:
            modes.append(len(_python_dispatch._get_current_dispatch_mode_stack()))
    while _python_dispatch._get_current_dispatch_mode_stack():
        assert time.monotonic() < deadline
    assert len(drained) == 3
    assert max(drained) <= 1600  # it is asked at every 61st operator; a free makes two events
    assert (modes[0], modes[-1]) == (1, 0)
    assert torch._C._len_torch_dispatch_stack() == 0
    assert recorder.source.notes() == []
