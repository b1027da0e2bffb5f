"""Jobs of DDP, FSDP2 and a pipeline over gloo: what of their ranks' bytes is whose."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

import memprof
from memprof.ranks.files import report_of
from memprof.trace import Action, Category

torch = pytest.importorskip("torch", reason="there is nothing to record without torch")
dist = pytest.importorskip("torch.distributed", reason="needs torch.distributed")
if not dist.is_available() or not dist.is_gloo_available():
    pytest.skip("this torch was built without gloo", allow_module_level=True)

ROOT = Path(__file__).resolve().parent.parent.parent
STEPS = 12
WEIGHT = 256 * 256 * 4
"""Bytes of the layer that is looked at."""

JOB = """
import torch
import torch.distributed as dist

def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    {made}
    for step in range(12):
        optimizer.zero_grad()
        {step}
        optimizer.step()
    dist.destroy_process_group()

main()
"""

DDP = """
    layers = [torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64)]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
"""
FSDP = """
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.device_mesh import init_device_mesh
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64))
    mesh = init_device_mesh("cpu", (world,))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
"""
TRAIN = """
        model(torch.randn(32, 256)).pow(2).mean().backward()
"""
PIPELINE = """
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU())
    stage = PipelineStage(model, rank, world, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=lambda y, t: (y - t).pow(2).mean())
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
"""
SCHEDULE = """
        schedule.step(torch.randn(32, 256)) if rank == 0 else schedule.step(target=torch.zeros(32, 256))
"""


def recorded(folder: Path, ranks: int, made: str, step: str) -> list[Path]:
    """The files of the job's ranks."""
    site = folder / "site"
    site.mkdir()
    hook = (ROOT / "memprof" / "record" / "startup.pth").read_text()
    (site / "sitecustomize.py").write_text(hook)
    (folder / "train.py").write_text(JOB.format(made=made.strip(), step=step.strip()))
    plain = {n: v for n, v in os.environ.items() if not n.startswith(("MEMPROF", "PYTHON"))}
    wanted = {
        "PYTHONPATH": os.pathsep.join(map(str, (site, ROOT, ROOT / "cli", ROOT / "dashboards"))),
        "OMP_NUM_THREADS": "1",
        "MEMPROF": str(folder / "out" / "run.json"),
        "MEMPROF_ALLOWANCE": "600",  # however busy the machine is, the window stays open
    }
    launcher = ("torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks))
    done = subprocess.run(
        [sys.executable, "-m", *launcher, "train.py"],
        cwd=folder, env=plain | wanted, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [folder / "out" / f"run.rank{rank}.json" for rank in range(ranks)]


def owned(file: Path) -> dict[tuple[str, int], int]:
    """How many allocations of the CPU were whose, by category and bytes."""
    counts: dict[tuple[str, int], int] = defaultdict(int)
    for trace in memprof.load(file).devices[0].windows:
        events = trace.events
        for action, size, category in zip(events.action, events.size, events.category, strict=True):
            if action == Action.ALLOC:
                counts[Category(category).name, int(size)] += 1
    return counts


@pytest.mark.slow
def test_every_rank_of_ddp_owns_the_whole_model_and_its_gradients(tmp_path):
    files = recorded(tmp_path, 4, DDP, TRAIN)
    for file in files:
        counts = owned(file)
        assert counts["PARAMETER", WEIGHT] == 1
        assert counts["GRADIENT", WEIGHT] == STEPS
        assert counts["OPTIMIZER_STATE", WEIGHT] == 1
        assert counts["UNKNOWN", WEIGHT] == 0
    report = report_of([tmp_path / "out"])
    assert (report.world_size, len(report.judged), report.deviations) == (4, 4, ())


@pytest.mark.slow
def test_every_rank_of_fsdp_owns_its_shards_alone(tmp_path):
    pytest.importorskip("torch.distributed.fsdp", reason="needs FSDP2")
    if not hasattr(torch.distributed.fsdp, "fully_shard"):
        pytest.skip("this torch has no fully_shard")
    shard = WEIGHT // 2
    for file in recorded(tmp_path, 2, FSDP, TRAIN):
        counts = owned(file)
        assert counts["PARAMETER", shard] == 1
        assert counts["OPTIMIZER_STATE", shard] == 1
        # The reduced gradients of a group lie in one tensor: those of the weight and its bias.
        group = shard + 256 * 4 // 2
        assert {name for name, size in counts if size == group} == {"GRADIENT"}
        assert counts["UNKNOWN", shard] == 0


@pytest.mark.slow
def test_every_stage_of_a_pipeline_owns_its_part_of_the_model(tmp_path):
    if not torch.__version__ >= "2.5":
        pytest.skip("this torch has no torch.distributed.pipelining as it is used here")
    for file in recorded(tmp_path, 2, PIPELINE, SCHEDULE):
        counts = owned(file)
        assert counts["PARAMETER", WEIGHT] == 1
        assert counts["GRADIENT", WEIGHT] == STEPS
