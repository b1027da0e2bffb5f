"""Labels told by time, against a real training step whose tensors a stand-in allocates as well."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="phases and modules come from torch's hooks")

from torch.utils import checkpoint  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from memprof.sources.cpu import dispatch_source as cpu  # noqa: E402
from memprof.sources.cuda.backward_stacks import BackwardStacks  # noqa: E402
from memprof.sources.cuda.intern_tables import InternedTables  # noqa: E402
from memprof.sources.cuda.label_timeline import LabelRecorder, LabelTimeline  # noqa: E402
from memprof.sources.cuda.snapshot_source import CudaSource  # noqa: E402
from memprof.sources.cuda.thread_entry_point import NO_ENTRY  # noqa: E402
from memprof.sources.loop.loop_watch import LoopWatch  # noqa: E402
from memprof.sources.protocol import Interner  # noqa: E402
from memprof.testing.cuda import TorchStandIn  # noqa: E402
from memprof.trace import Action, Events, Frame, Label, Phase, Tables  # noqa: E402

MIB = 1 << 20
WIDTH, BATCH = 48, 5
WEIGHT, ACTIVATION = 4 * WIDTH * WIDTH, 4 * WIDTH * BATCH


class Mirrored(TorchDispatchMode):
    """Every new storage of the program is allocated on the stand-in too; backward passes as well."""

    def __init__(self, stand_in: TorchStandIn) -> None:
        super().__init__()
        self._stand_in = stand_in

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        known = {t.untyped_storage().data_ptr() for t in args if isinstance(t, torch.Tensor)}
        result = func(*args, **kwargs or {})
        for tensor in result if isinstance(result, (list, tuple)) else (result,):
            if isinstance(tensor, torch.Tensor) and tensor.numel() > 1:
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in known:
                    self._stand_in.alloc(storage.nbytes())
        return result


class Net(torch.nn.Module):
    def __init__(self, *, checkpointed: bool = False) -> None:
        super().__init__()
        self.first = torch.nn.Linear(WIDTH, WIDTH, bias=False)
        self.second = torch.nn.Linear(WIDTH, WIDTH, bias=False)
        self._checkpointed = checkpointed

    def forward(self, x):
        if self._checkpointed:
            return self.second(checkpoint.checkpoint(self.inner, x, use_reentrant=False))
        return self.second(self.inner(x))

    def inner(self, x):
        return self.first(x).tanh()


@pytest.fixture
def trained() -> Iterator:
    """Trains a network for some steps; the (bytes, label) of everything that was allocated."""
    interner = Interner()
    loop_watch = LoopWatch(interner)
    stand_in = TorchStandIn("2.13")
    source = CudaSource(interner, loop_watch, stand_in)

    def train(net: Net, optimizer, steps: int = 3) -> list[tuple[int, Label]]:
        loop_watch.open(lambda step: source.counters() and None)
        source.open()
        source.begin_window()
        with Mirrored(stand_in):
            for _ in range(steps):
                net(torch.ones(BATCH, WIDTH)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        found = []
        for chunk in source.drain():
            labels = interner.tables().labels
            made = chunk.events.take(chunk.events.action == Action.ALLOC)
            sizes, rows = made.size.tolist(), made.label.tolist()
            found += [(size, labels[row]) for size, row in zip(sizes, rows, strict=True)]
        return found

    yield train
    source.close()
    loop_watch.close()


def test_gradients_are_made_in_the_backward_pass_and_state_by_the_optimizer(trained):
    net = Net()
    made = trained(net, torch.optim.Adam(net.parameters(), foreach=False))
    first = [label for size, label in made if size == WEIGHT and label.step <= 0]
    by_phase = {phase: sum(label.phase is phase for label in first) for phase in Phase}
    assert by_phase[Phase.FORWARD] == 0
    assert by_phase[Phase.BACKWARD] >= 2  # a gradient each
    assert by_phase[Phase.OPTIMIZER] >= 4  # two moments each


def test_what_is_made_in_a_module_bears_its_path_both_ways(trained):
    net = Net()
    made = [(s, x) for s, x in trained(net, torch.optim.SGD(net.parameters())) if x.step == 1]
    forward = [x.module for s, x in made if s == ACTIVATION and x.phase is Phase.FORWARD]
    assert [path for path in forward if path] == ["Net.first", "Net", "Net.second"]
    backward = [x.module for s, x in made if s == WEIGHT and x.phase is Phase.BACKWARD]
    assert backward == ["Net.second", "Net.first"]


def test_what_checkpointing_makes_again_belongs_to_the_backward_pass(trained):
    net = Net(checkpointed=True)
    made = [(s, x) for s, x in trained(net, torch.optim.SGD(net.parameters())) if x.step == 1]
    again = [x for s, x in made if s == ACTIVATION and x.module == "Net.first"]
    assert [x.phase for x in again][:2] == [Phase.FORWARD, Phase.BACKWARD]


def test_every_allocation_has_the_step_in_which_it_was_made(trained):
    net = Net()
    steps = [x.step for _, x in trained(net, torch.optim.SGD(net.parameters()), steps=5)]
    assert steps == sorted(steps)
    assert set(steps) >= {0, 1, 2, 3, 4}


class Replica(torch.nn.Module):
    """Allocates 1 MiB on a device when both replicas have begun, as those of DataParallel do."""

    def __init__(self, stand_in: TorchStandIn, device: int, begun: threading.Barrier) -> None:
        super().__init__()
        self.stand_in, self.device, self.begun = stand_in, device, begun

    def forward(self, x):
        self.begun.wait(300)
        self.stand_in.alloc(MIB, self.device)
        self.begun.wait(300)
        return x


class Left(Replica):
    pass


class Right(Replica):
    pass


@pytest.mark.parametrize("told", [True, False], ids=["a device each", "both of device 0"])
def test_replicas_that_run_side_by_side_have_the_labels_of_their_own_devices(told):
    interner = Interner()
    loop_watch = LoopWatch(interner)
    stand_in = TorchStandIn("2.13", devices=2)
    source = CudaSource(interner, loop_watch, stand_in)
    loop_watch.open(lambda step: None)
    source.open()
    source.begin_window()
    begun = threading.Barrier(2)

    def run(replica: Replica) -> None:
        if told:
            stand_in.cuda.set_device(replica.device)
        replica(torch.ones(1))

    try:
        replicas = [Left(stand_in, 0, begun), Right(stand_in, 1, begun)]
        threads = [threading.Thread(target=run, args=(replica,)) for replica in replicas]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        labels = interner.tables().labels
        chunks = source.drain()
    finally:
        source.close()
        loop_watch.close()
    modules = {
        chunk.device: [labels[row].module for row in chunk.events.label[chunk.events.size == MIB]]
        for chunk in chunks
    }
    if told:
        assert modules == {"cuda:0": ["Left"], "cuda:1": ["Right"]}
    else:  # the last mark before is all that there is to go by
        assert modules["cuda:0"] == modules["cuda:1"]


class Asking(torch.nn.Module):
    """Has another thread allocate 1 MiB while it runs."""

    def __init__(self, other: Callable[[], None]) -> None:
        super().__init__()
        self.other = other

    def forward(self, x):
        thread = threading.Thread(target=self.other)
        thread.start()
        thread.join()
        return x


class Alone(torch.nn.Module):
    def __init__(self, stand_in: TorchStandIn) -> None:
        super().__init__()
        self.stand_in = stand_in

    def forward(self, x):
        self.stand_in.alloc(MIB)
        return x


@pytest.fixture
def stepped(monkeypatch) -> Iterator:
    """A stand-in, and what runs a step so often; then the labels of its blocks of 1 MiB."""
    interner = Interner()
    loop_watch = LoopWatch(interner)
    stand_in = TorchStandIn("2.13")
    keepers = []

    def keeper(*args):
        keepers.append(LabelRecorder(*args))
        return keepers[-1]

    monkeypatch.setattr("memprof.sources.cuda.snapshot_source.LabelRecorder", keeper)
    source = CudaSource(interner, loop_watch, stand_in)
    loop_watch.open(lambda step: source.counters() and None)
    source.open()
    source.begin_window()

    def steps(one: Callable[[], object], times: int) -> list[Label]:
        for _ in range(times):
            one()
            loop_watch.step_done()
        (chunk,) = source.drain()
        labels = interner.tables().labels
        made = (chunk.events.action == Action.ALLOC) & (chunk.events.size == MIB)
        return [labels[row] for row in chunk.events.label[made]]

    (steps.keeper,) = keepers
    yield stand_in, steps
    source.close()
    loop_watch.close()


def test_what_a_thread_beside_the_loop_makes_is_not_the_modules_that_the_loop_is_in(stepped):
    stand_in, steps = stepped
    loader = Asking(lambda: stand_in.alloc(MIB))
    made = steps(lambda: loader(torch.ones(1)), 2)
    assert [(x.step, x.phase, x.module) for x in made] == [(n, Phase.OTHER, "") for n in range(2)]


def test_a_thread_beside_the_loop_that_runs_modules_has_the_labels_of_its_own(stepped):
    stand_in, steps = stepped
    other = Alone(stand_in)
    loop = Asking(lambda: other(torch.ones(1)))
    made = steps(lambda: loop(torch.ones(1)), 2)
    assert [(x.step, x.phase, x.module) for x in made] == [
        (n, Phase.FORWARD, "Alone") for n in range(2)
    ]


def test_a_loop_in_a_thread_of_its_own_is_labelled_like_any(stepped):
    stand_in, steps = stepped
    alone, made = Alone(stand_in), []
    loop = threading.Thread(
        target=lambda: made.extend(steps(lambda: alone(torch.ones(1)), 3)),
    )
    loop.start()
    loop.join()
    assert [(x.step, x.module) for x in made] == [(n, "Alone") for n in range(3)]


def test_what_autograd_makes_before_it_reaches_a_module_is_of_the_backward_pass():
    interner = Interner()
    loop_watch = LoopWatch(interner)
    stand_in = TorchStandIn("2.13")
    source = CudaSource(interner, loop_watch, stand_in)
    loop_watch.open(lambda step: None)
    source.open()
    source.begin_window()
    try:
        loss = torch.nn.Linear(4, 4)(torch.ones(1, 4)).square().mean()
        stand_in.alloc(MIB)  # of the loss
        with stand_in.backward_thread():
            stand_in.alloc(2 * MIB)  # the gradient of the square
        loss.backward()
        (chunk,) = source.drain()
    finally:
        source.close()
        loop_watch.close()
    labels = interner.tables().labels
    made = chunk.events.take(chunk.events.action == Action.ALLOC)
    assert [labels[row].phase for row in made.label] == [Phase.FORWARD, Phase.BACKWARD]


def test_what_has_no_frame_but_memprofs_came_from_a_thread_of_autograds():
    """Where a mode is on such a thread calls memprof, and torch's recorder sees that frame."""
    interner = Interner()
    own, theirs = Frame("dispatch", cpu.__file__, 1), Frame("step", "train.py", 2)
    around = [
        Frame("__call__", "/site-packages/torch/_ops.py", 1),
        Frame("_fn", "/site-packages/torch/_dynamo/eval_frame.py", 2),
        Frame("inner", "/site-packages/torch/_compile.py", 3),
        Frame("eager_router", "/site-packages/torch/_native/registry.py", 4),
    ]
    stacks = ((), (2, 0, 3, 4), (0, 1), (5,))
    tables = Tables(frames=(own, theirs, *around), stacks=stacks, labels=(Label(),))
    remapped = InternedTables(interner, tables)
    marks = LabelTimeline()
    marks.add(0, interner.label(3, Phase.FORWARD, "Net", ""))
    events = Events.build(
        action=[Action.ALLOC] * 4,
        time_us=[1, 2, 3, 4],
        stack=[0, 1, 2, 3],
        label=[0] * 4,
        pool=[0] * 4,
    )
    passes = BackwardStacks(interner, LoopWatch(interner))
    made = remapped.events(events, marks, 0, passes)
    found = interner.tables()
    assert [found.stacks[row] for row in made.stack] == [(), (), (0,), ()]
    assert found.frames[0].filename == "train.py"
    backward, forward = Phase.BACKWARD, Phase.FORWARD
    assert [found.labels[row].phase for row in made.label] == [
        *(backward, backward, forward, backward)
    ]


@pytest.mark.parametrize(
    ("mode", "phase"),
    [
        (torch.no_grad, Phase.FORWARD),
        (torch.inference_mode, Phase.FORWARD),
        (torch.enable_grad, Phase.BACKWARD),
    ],
)
def test_what_has_no_stack_where_no_graph_is_recorded_is_of_no_backward_pass(stepped, mode, phase):
    stand_in, steps = stepped

    def decode() -> None:
        with stand_in.backward_thread():  # any thread without Python looks so
            stand_in.alloc(MIB)

    def step() -> None:
        with mode():
            Asking(decode)(torch.ones(1))

    made = steps(step, 2)
    assert [x.phase for x in made] == [phase, phase]


def test_marks_that_no_event_needs_any_more_are_dropped_and_the_others_hold() -> None:
    beside = ("file.py", "load")
    marks = LabelTimeline()
    for time_us, label, device, entry in (
        (10, 1, -1, NO_ENTRY), (20, 2, 0, NO_ENTRY), (30, 3, -1, NO_ENTRY), (35, 4, -1, beside),
        (40, 5, -1, NO_ENTRY), (50, 6, 1, NO_ENTRY), (60, 7, -1, NO_ENTRY), (70, 8, 0, NO_ENTRY),
    ):  # fmt: skip
        marks.add(time_us, label, device, entry, with_gradients=label != 5)
    times = np.asarray([45, 55, 65, 75])
    before = [(part.at(times, d).tolist(), part.had_gradients(times).tolist())
              for part in (marks, *marks.apart()) for d in (0, 1, 2)]  # fmt: skip
    marks.forget_before(45)
    assert [row[1] for row in marks.rows] == [2, 4, 5, 6, 7, 8]
    assert before == [(part.at(times, d).tolist(), part.had_gradients(times).tolist())
                      for part in (marks, *marks.apart()) for d in (0, 1, 2)]  # fmt: skip


def test_a_long_window_keeps_the_marks_of_a_few_looks_only(stepped, monkeypatch):
    now_ns = [time.time_ns()]

    def clock_ns() -> int:  # marks of the last milliseconds stay: here the fifty steps take one
        now_ns[0] += 1_000
        return now_ns[0]

    monkeypatch.setattr(time, "time_ns", clock_ns)
    stand_in, steps = stepped
    alone = Alone(stand_in)
    kept = []
    for _ in range(4):
        steps(lambda: alone(torch.ones(1)), 50)
        kept.append(len(steps.keeper.marks.rows))
        now_ns[0] += 20_000_000
    # Three in each of the last fifty steps, and the last one before them.
    assert kept == [3 * 50 + 1] * 4
