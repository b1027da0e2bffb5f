"""Under the default sources a job on a GPU does to the byte and the bit what it does alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch and a CUDA device")

import memprof  # noqa: E402
from memprof import native  # noqa: E402
from memprof.loading import load  # noqa: E402
from memprof.trace import Action, Phase  # noqa: E402
from tests.gpu.patience import LONG_S  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20
STEPS, OPERATORS = 6, 20_000


def fan_in():
    """A step in whose backward pass four gradients meet at one node."""
    weight = torch.nn.Parameter(torch.ones(8 * MIB // 4, device="cuda"))

    def step():
        x = weight * 1.0
        sum((x * float(i)).sum() for i in range(1, 5)).backward()
        weight.grad = None

    return step


def figures(step):
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    step()
    count = torch.cuda.memory_stats()["allocation.all.allocated"] - before
    return torch.cuda.max_memory_allocated(), count


def test_gradients_that_meet_take_the_memory_that_they_take_without_memprof(tmp_path):
    step = fan_in()
    step()
    plain = figures(step)
    with memprof.track(tmp_path / "run.json", allowance_s=LONG_S):
        step()
        assert figures(step) == plain
    assert figures(step) == plain


@pytest.mark.kernels
@pytest.mark.parametrize("name", ["prod", "cumprod", "fan-in"])
def test_gradients_are_bit_equal(tmp_path, name):
    functions = {
        "prod": lambda x: x.prod(1),
        "cumprod": lambda x: x.cumprod(1),
        "fan-in": lambda x: x.sin() + x.cos() + x.tanh(),
    }

    def gradient():
        torch.manual_seed(1)
        x = (torch.rand(16, 16, device="cuda") + 0.5).requires_grad_()
        functions[name](x).sum().backward()
        return x.grad.cpu()

    plain = gradient()
    with memprof.track(tmp_path / "run.json", allowance_s=LONG_S):
        assert torch.equal(gradient(), plain)


def phases(path, sources):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    model.cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    target = torch.zeros(16, dtype=torch.long, device="cuda")
    with memprof.track(path, sources=sources, allowance_s=LONG_S):
        for _ in range(4):
            output = model(torch.ones(16, 64, device="cuda"))
            torch.nn.functional.cross_entropy(output, target).backward()  # outside every module
            optimizer.step()
            optimizer.zero_grad()
    run = load(path)
    (window,) = run.device("cuda:0").windows
    made = window.events.take(window.events.action == Action.ALLOC)
    labels = [window.label(row) for row in made.label.tolist()]
    found = [
        (label.phase, label.module, size)
        for label, size in zip(labels, made.size.tolist(), strict=True)
        if label.step in (1, 2)
    ]
    return run, found


def test_by_default_a_loss_outside_every_module_is_labelled_as_cuda_alone_labels_it(tmp_path):
    _, alone = phases(tmp_path / "cuda.json", ("cuda",))
    run, found = phases(tmp_path / "all.json", None)
    assert found == alone
    assert Phase.BACKWARD in {phase for phase, _, _ in found}
    devices = [device.device for device in run.devices]
    notes = [note.message for note in run.notes if note.source == "cpu"]
    if native.is_wanted() is not False and native.available():  # it needs no dispatch mode
        assert (devices, notes) == (["cpu", "cuda:0"], [])
    else:
        assert devices == ["cuda:0"]
        (note,) = notes
        assert "the job uses CUDA" in note


NEAR_THE_LIMIT = """
import sys, torch, memprof
from contextlib import nullcontext
layer = torch.nn.Linear(16, 16).cuda()

@torch.compile(backend="aot_eager", dynamic=False, fullgraph=True)
def f(x):
    return layer(x).relu()

def epoch():
    for rows in (8, 16, 24, 32, 40):
        f(torch.ones(rows, 16, device="cuda")).sum().backward()

with memprof.track(sys.argv[1], allowance_s=60) if sys.argv[1] else nullcontext():
    epoch()
    epoch()
epoch()
print(torch._dynamo.utils.counters["stats"]["unique_graphs"])
"""


NESTED = """
import sys, torch, memprof
from contextlib import nullcontext

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(16)
        self.mix = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU())

    def forward(self, x):
        return x + self.mix(self.norm(x))

model = torch.nn.Sequential(Block(), Block()).cuda()
compiled = torch.compile(model, backend="aot_eager")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
counters = torch._dynamo.utils.counters

def epoch():
    for _ in range(6):
        compiled(torch.ones(8, 16, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

for _ in range(2):
    with memprof.track(sys.argv[1], allowance_s=60) if sys.argv[1] else nullcontext():
        epoch()
        epoch()
    epoch()
print(counters["stats"]["unique_graphs"], dict(counters["graph_break"]))
"""


WHOLE_STEP = """
import sys, torch, memprof
from contextlib import nullcontext
model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU()).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
counters = torch._dynamo.utils.counters

@torch.compile(backend="aot_eager")
def step(x):
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()

def epoch():
    for _ in range(4):
        step(torch.ones(8, 16, device="cuda"))

with memprof.track(sys.argv[1], allowance_s=60) if sys.argv[1] else nullcontext():
    epoch()
epoch()
print(counters["stats"]["unique_graphs"])
"""


def test_a_whole_step_is_compiled_as_often_and_its_steps_are_counted(tmp_path):
    plain, recorded = (outcome(WHOLE_STEP, path) for path in ("", str(tmp_path / "run.json")))
    assert recorded[0] == plain[0]
    # What torch itself says of optimizers in a compiled function begins with time and process.
    assert [said.split("]")[-1] for said in recorded[1].splitlines()] == [
        said.split("]")[-1] for said in plain[1].splitlines()
    ]
    run = load(tmp_path / "run.json")
    assert run.footer.steps == 4
    assert run.device("cuda:0").windows


@pytest.mark.parametrize(
    ("program", "graphs"), [(NEAR_THE_LIMIT, "5\n"), (NESTED, "1 {}\n")], ids=["limit", "nested"]
)
def test_it_is_compiled_as_often_and_nothing_is_said(tmp_path, program, graphs):
    plain = outcome(program, "")
    assert outcome(program, str(tmp_path / "run.json")) == plain
    assert plain[0] == graphs


AN_ORDINARY_JOB = """
import sys, torch, memprof
from contextlib import nullcontext
import torch.distributed as dist
from torch.nn import functional as F
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import checkpoint

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up = torch.nn.LayerNorm(64), torch.nn.Linear(64, 256)
        self.down = torch.nn.Linear(256, 64)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(512, 64)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(3))

    def forward(self, ids):
        x = self.words(ids)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x @ self.words.weight.T  # tied: two gradients meet

dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
net = torch.nn.parallel.DistributedDataParallel(Net().cuda())

def alone(_state, bucket):
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future

net.register_comm_hook(None, alone)
optimizer = torch.optim.AdamW(net.parameters(), foreach=True)
ids = torch.zeros(8, 32, dtype=torch.long, device="cuda")

def step():
    with torch.autocast("cuda", dtype=torch.bfloat16):
        logits = net(ids)
    F.cross_entropy(logits.flatten(0, 1).float(), ids.flatten()).backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()

def figures():
    for _ in range(3):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_stats()
        step()
        after = torch.cuda.memory_stats()
        count = after["allocation.all.allocated"] - before["allocation.all.allocated"]
        print(torch.cuda.max_memory_allocated(), torch.cuda.memory_reserved(), count)

step()
with memprof.track(sys.argv[1], allowance_s=60) if sys.argv[1] else nullcontext():
    figures()
figures()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("native", ["0", "1"])
def test_an_ordinary_job_has_the_peaks_and_allocations_of_every_step_that_it_has_alone(
    tmp_path, monkeypatch, native
):
    """Autocast, checkpointing, tied weights, clipping, DDP's buckets, AdamW with `foreach`."""
    monkeypatch.setenv("MEMPROF_NATIVE", native)
    plain = outcome(AN_ORDINARY_JOB, "")
    assert outcome(AN_ORDINARY_JOB, str(tmp_path / "run.json")) == plain
    assert len(plain[0].splitlines()) == 6
    (window,) = load(tmp_path / "run.json").device("cuda:0").windows
    phases = {window.label(row).phase for row in window.events.label.tolist()}
    assert {Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER} <= phases


ENDS_IN_A_THREAD = """
import sys, threading, torch, memprof
from contextlib import nullcontext
layer = torch.nn.Linear(64, 64).cuda()

def loop():
    for _ in range(20):
        layer(torch.ones(8, 64, device="cuda")).sum().backward()
        layer.zero_grad()
        memprof.step()

for _ in range(3):
    with memprof.track(sys.argv[1], allowance_s=0.0) if sys.argv[1] else nullcontext():
        thread = threading.Thread(target=loop)
        thread.start()
        thread.join()
"""


@pytest.mark.parametrize("native", ["0", "1"])
def test_a_window_that_ends_in_another_thread_leaves_torch_nothing_to_say(
    tmp_path, monkeypatch, native
):
    monkeypatch.setenv("MEMPROF_NATIVE", native)
    plain = outcome(ENDS_IN_A_THREAD, "")
    assert outcome(ENDS_IN_A_THREAD, str(tmp_path / "run.json")) == plain
    assert load(tmp_path / "run.json").device("cuda:0").windows


@pytest.mark.parametrize("native", ["0", "1"])
def test_a_job_with_very_many_blocks_is_recorded(tmp_path, monkeypatch, native):
    monkeypatch.setenv("MEMPROF_NATIVE", native)
    kept = [torch.empty(1, device="cuda") for _ in range(200_000)]
    with memprof.track(tmp_path / "run.json", allowance_s=LONG_S):
        for _ in range(3):
            torch.empty(9, device="cuda")
            memprof.step()
    (window,) = load(tmp_path / "run.json").device("cuda:0").windows
    assert len(window.start.blocks) >= len(kept)
    made = window.events.take(window.events.action == Action.ALLOC)
    assert made.size.tolist() == [36] * 3


@pytest.mark.parametrize("native", ["0", "1"])
def test_a_loop_that_crosses_no_module_and_no_optimizer_is_recorded_without_a_gap(
    tmp_path, monkeypatch, native
):
    """No hook is passed, so that somebody else must see to it that the ring is read in time."""
    monkeypatch.setenv("MEMPROF_NATIVE", native)
    x = torch.ones(32, device="cuda")
    with memprof.track(tmp_path / "run.json", allowance_s=LONG_S):
        for _ in range(STEPS):
            y = x
            for _ in range(OPERATORS):
                y = y * 1.0001
            memprof.step()
    run = load(tmp_path / "run.json")
    windows = run.device("cuda:0").windows
    made = [int((one.events.action == Action.ALLOC).sum()) for one in windows]
    assert sum(made) == STEPS * OPERATORS
    assert run.footer.steps == STEPS
    assert [note.message for note in run.notes if "overflow" in note.message] == []


def outcome(program: str, path: str) -> tuple[str, str]:
    """What a program prints and complains of, in a process of its own; recorded if ``path``."""
    command = [sys.executable, "-c", program, path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr
