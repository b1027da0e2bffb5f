"""Jobs of DDP, FSDP2 and a pipeline over gloo: what of their ranks' bytes is whose."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

import memprof
from memprof import native
from memprof.ranks.files import report_of
from memprof.trace import Action, Category

torch = pytest.importorskip("torch", reason="there is nothing to record without torch")
dist = pytest.importorskip("torch.distributed", reason="needs torch.distributed")
if not dist.is_available() or not dist.is_gloo_available():
    pytest.skip("this torch was built without gloo", allow_module_level=True)

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent.parent
RANKS = 4
STEPS = 6
WEIGHT = 256 * 256 * 4
"""Bytes of the layer that is looked at."""
MODEL = WEIGHT + 256 * 4 + 256 * 32 * 4 + 32 * 4
PART = 8 * 256 * 4
"""Bytes that a stage of the pipeline hands to the next, of one of four parts of a batch."""

JOB = f"""
import gc, os, sys, traceback
import torch
import torch.distributed as dist
import memprof
from torch.optim import SGD, Adam  # what is imported before the fork is imported once

meet, natives, jobs = sys.argv[1], sys.argv[2].split(","), sys.argv[3].split(",")
if "fsdp" in jobs:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
if "pipeline" in jobs:
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
rank, world = 0, {RANKS}

def sequential():
    torch.manual_seed(rank)
    return torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 32))

def train(model):
    optimizer = SGD(model.parameters(), 0.1, momentum=0.9)
    for _ in range({STEPS}):
        optimizer.zero_grad()
        model(torch.randn(32, 256)).pow(2).mean().backward()
        optimizer.step()

def ddp():
    train(torch.nn.parallel.DistributedDataParallel(sequential()))

def fsdp():
    model, mesh = sequential(), init_device_mesh("cpu", (world,))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    train(model)

def pipeline():
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU())
    stage = PipelineStage(model, rank, world, torch.device("cpu"))
    loss = lambda y, t: (y - t).pow(2).mean()
    schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=loss)
    optimizer = Adam(model.parameters())
    for _ in range({STEPS}):
        optimizer.zero_grad()
        batch = (torch.randn(32, 256),) if rank == 0 else ()
        schedule.step(*batch, **({{"target": torch.zeros(32, 256)}} if rank == world - 1 else {{}}))
        optimizer.step()

def run():
    dist.init_process_group("gloo", "file://" + meet, rank=rank, world_size=world)
    for native in natives:
        os.environ["MEMPROF_NATIVE"] = native
        for job in jobs:
            gc.collect()  # models lie in cycles: the last one is no part of the next recording
            with memprof.track(f"{{job}}{{native}}/run.json", allowance_s=600):
                globals()[job]()
    dist.destroy_process_group()

children = []
for rank in range(world):
    child = os.fork()
    if child:
        children.append(child)
        continue
    os.environ |= {{"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}}
    try:
        run()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)
sys.exit(any([os.waitpid(child, 0)[1] for child in children]))
"""


def has_fsdp() -> bool:
    import torch.distributed.fsdp

    return hasattr(torch.distributed.fsdp, "fully_shard")


def has_pipeline() -> bool:
    return torch.__version__ >= "2.5"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Where each job has left a file of each rank: all jobs ran in the same four processes."""
    folder: Path = tmp_path_factory.mktemp("jobs")
    (folder / "train.py").write_text(JOB)
    jobs = ["ddp", *(["fsdp"] if has_fsdp() else []), *(["pipeline"] if has_pipeline() else [])]
    natives = ["0", *(["1"] if native.available() else [])]
    command = [sys.executable, "train.py", str(folder / "meet"), ",".join(natives), ",".join(jobs)]
    plain = {n: v for n, v in os.environ.items() if not n.startswith(("MEMPROF", "PYTHON"))}
    if "MEMPROF_CACHE" in os.environ:
        plain["MEMPROF_CACHE"] = os.environ["MEMPROF_CACHE"]
    plain |= {
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "cli", ROOT / "dashboards"))),
        "OMP_NUM_THREADS": "1",
    }
    ranks = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=plain, start_new_session=True,
    )  # fmt: skip
    try:
        told = ranks.communicate(timeout=900)[0]
    finally:
        if ranks.poll() is None:  # one rank waits for another: all of them are in one session
            os.killpg(ranks.pid, signal.SIGKILL)
            ranks.wait()
    assert ranks.returncode == 0, told
    return folder


@pytest.fixture(params=["0", "1"], ids=["operators", "allocator"])
def is_native(request) -> str:
    """With which of the CPU's two recorders."""
    if request.param == "1" and not native.available():
        pytest.skip("the native part is not built for this torch")
    return str(request.param)


def owned(folder: Path) -> list[dict[tuple[str, int], int]]:
    """Of each rank how many allocations were whose, by category and bytes."""
    by_rank = []
    for rank in range(RANKS):
        counts: dict[tuple[str, int], int] = defaultdict(int)
        for trace in memprof.load(folder / f"run.rank{rank}.json").devices[0].windows:
            events = trace.events
            for action, size, one in zip(events.action, events.size, events.category, strict=True):
                if action == Action.ALLOC:
                    counts[Category(one).name, int(size)] += 1
        by_rank.append(counts)
    return by_rank


def unowned(counts: dict[tuple[str, int], int]) -> list[int]:
    """The sizes, of some weight, that nobody is known to own."""
    return [size for (name, size) in counts if name == "UNKNOWN" and size >= PART]


def test_every_rank_of_ddp_owns_the_model_its_gradients_and_its_buckets(folder, is_native):
    for counts in owned(folder / f"ddp{is_native}"):
        assert counts["PARAMETER", WEIGHT] == 1
        assert counts["GRADIENT", WEIGHT] == STEPS
        assert counts["OPTIMIZER_STATE", WEIGHT] == 1
        # The reducer makes them with the wrapper, and anew in the order of the first backward pass.
        buckets = {size: n for (name, size), n in counts.items() if name == "GRADIENT_BUCKET"}
        assert max(buckets) == pytest.approx(MODEL, abs=64)
        assert buckets[max(buckets)] == 2
        assert unowned(counts) == []
    report = report_of([folder / f"ddp{is_native}"])
    assert (report.world_size, len(report.judged)) == (RANKS, RANKS)
    assert [one for one in report.deviations if "time" not in one.measure] == []


def test_every_rank_of_fsdp_owns_its_shards_and_what_it_gathers(folder, is_native):
    if not has_fsdp():
        pytest.skip("this torch has no fully_shard")
    shard = WEIGHT // RANKS
    for counts in owned(folder / f"fsdp{is_native}"):
        assert counts["PARAMETER", shard] == 1
        assert counts["PARAMETER", WEIGHT] == 0
        assert counts["OPTIMIZER_STATE", shard] == 1
        # The reduced gradients of a group lie in one tensor: those of the weight and its bias.
        group = shard + 256 * 4 // RANKS
        assert {name for name, size in counts if size == group} == {"GRADIENT"}
        assert counts["GRADIENT", group] == STEPS
        # Gathered for the forward pass, freed by a resize of the storage, and gathered again for
        # the backward pass; without the native part nobody sees a resize.
        gathered = counts["GATHERED_PARAMETER", WEIGHT]
        assert gathered == 2 * STEPS if is_native == "1" else gathered >= 1
        assert counts["COMMUNICATION_BUFFER", group * RANKS] >= 3 * STEPS
        assert unowned(counts) == []


def test_every_stage_of_a_pipeline_owns_its_part_of_the_model(folder, is_native):
    if not has_pipeline():
        pytest.skip("this torch has no torch.distributed.pipelining as it is used here")
    for rank, counts in enumerate(owned(folder / f"pipeline{is_native}")):
        assert counts["PARAMETER", WEIGHT] == 1
        assert counts["GRADIENT", WEIGHT] == STEPS
        assert counts["OPTIMIZER_STATE", WEIGHT] == 2
        assert counts["ACTIVATION", PART] >= 4 * STEPS
        neighbours = (rank > 0) + (rank < RANKS - 1)
        assert counts["COMMUNICATION_BUFFER", PART] == 4 * neighbours
        # The schedule itself keeps the last stage's outputs until its next step begins. That no
        # graph saves them is known where a look at the graphs came in that time, as the clock has
        # it.
        if rank == RANKS - 1:
            assert set(unowned(counts)) <= {PART}
            assert counts["UNKNOWN", PART] <= 4 * STEPS
        else:
            assert unowned(counts) == []


def test_buckets_gathered_parameters_and_buffers_are_blamed_for_nothing(folder, is_native):
    for job in ("ddp", "fsdp"):
        if (folder / f"{job}{is_native}").exists():
            report = report_of([folder / f"{job}{is_native}"])
            assert [one.title for one in report.findings if not one.minor] == []
