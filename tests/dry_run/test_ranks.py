"""Ranks in a dry run: one of a job whose others are not there, and processes that are."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from memprof.dry_run.absent_ranks import color_in_cpp
from memprof.dry_run.build import find_torch
from memprof.dry_run.launch import OneRank
from memprof.errors import SettingsError
from memprof.loading import load

MIB = 1 << 20
CONNECTION = 12 * MIB
"""Of NCCL, of a channel to one peer: 2 MiB to send and 10 MiB to receive."""
CODE = 80 * MIB
DDP = """\
import os
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
local = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
model = torch.nn.Linear(1024, 4096).cuda()
model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[local])
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(2):
    model(torch.ones(8, 1024, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.barrier()
dist.destroy_process_group()
"""
FSDP = """\
import os
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

try:
    from torch.distributed.fsdp import fully_shard
except ImportError:  # torch 2.4
    from torch.distributed._composable.fsdp import fully_shard

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
mesh = init_device_mesh("cuda", (int(os.environ["WORLD_SIZE"]),))
with torch.device("meta"):
    model = torch.nn.Sequential(*(torch.nn.Linear(4096, 4096, bias=False) for _ in range(4)))
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
before = torch.cuda.memory_allocated()
model.to_empty(device="cuda")
print("sharded", torch.cuda.memory_allocated() - before)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    model(torch.ones(4, 4096, device="cuda")).sum().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
print("peak", torch.cuda.max_memory_allocated())
dist.destroy_process_group()
"""
TENSOR_PARALLEL = """\
import os
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel, RowwiseParallel, parallelize_module,
)

local = int(os.environ["LOCAL_RANK"])
device = torch.device("cuda", local)
dist.init_process_group("cpu:gloo,cuda:nccl", device_id=device)
torch.cuda.set_device(device)
mesh = init_device_mesh("cuda", (8, 8), mesh_dim_names=("data", "tensor"))
model = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.Linear(4096, 1024)).cuda()
plan = {"0": ColwiseParallel(), "1": RowwiseParallel()}
parallelize_module(model, mesh["tensor"], plan)
out = model(torch.ones(8, 1024, device="cuda"))
out.sum().backward()
print([list(p.to_local().shape) for p in model.parameters()], list(out.shape))
print(list(mesh.get_coordinate()))
"""
EXCHANGES = """\
import os
import torch
import torch.distributed as dist

def say(*words):  # at once, so that no other process writes into the line
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

dist.init_process_group(os.environ["BACKEND"])
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
rank, ranks = dist.get_rank(), dist.get_world_size()
gathered = [None] * ranks
dist.all_gather_object(gathered, rank)
sent = [("from", rank) if rank == 0 else None]
dist.broadcast_object_list(sent, src=0)
scattered = [None]
dist.scatter_object_list(scattered, list(range(10, 10 + ranks)) if rank == 1 else None, src=1)
whole = torch.empty(ranks, dtype=torch.int64, device="cuda")
pieces = [torch.empty(1, dtype=torch.int64, device="cuda") for _ in range(ranks)]
if os.environ["BACKEND"] == "nccl":
    own = torch.tensor([7], device="cuda")
    dist.all_gather_into_tensor(whole, own)
    dist.all_gather(pieces, own)
    say(whole.tolist(), [piece.item() for piece in pieces])
say(f"{rank} of {ranks}:", gathered, sent, scattered)
dist.barrier()
dist.destroy_process_group()
"""
SPAWNED = """\
import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def work(rank, store):
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.cuda.set_device(rank)
    model = torch.nn.Linear(1024, 4096).cuda()
    model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank])
    model(torch.ones(8 * (rank + 1), 1024, device="cuda")).sum().backward()
    dist.destroy_process_group()


if __name__ == "__main__":
    import sys

    mp.spawn(work, (sys.argv[1],), nprocs=2)
"""


def answer(done) -> dict:
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout[done.stdout.index("\n{") :])


@pytest.fixture
def one_of(dry_run, tmp_path):
    """Runs a program as one rank of a job on A100s; the command's answer, and what was printed."""

    def run(program: str, rank: int, ranks: int, *words: object, **variables: str):
        (tmp_path / "train.py").write_text("print()\n" + program)
        job = ["--gpu", "a100-80gb", "--rank", rank, "--world-size", ranks, *words, "--json"]
        done = dry_run(*job, "-o", "run.json", "train.py", cwd=tmp_path, **variables)
        return answer(done), done.stdout[: done.stdout.index("\n{")].strip().splitlines()

    return run


# -- what needs no torch -------------------------------------------------------------------------


def test_a_rank_finds_the_variables_that_torchrun_would_set():
    found = OneRank(11, 64).variables(8)
    wanted = {
        "RANK": "11",
        "WORLD_SIZE": "64",
        "LOCAL_RANK": "3",
        "LOCAL_WORLD_SIZE": "8",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "8",
        "MASTER_ADDR": "127.0.0.1",
    }
    assert {name: found[name] for name in wanted} == wanted


def test_the_last_node_may_have_fewer_ranks():
    assert OneRank(8, 10).variables(8)["LOCAL_WORLD_SIZE"] == "2"


@pytest.mark.parametrize(("rank", "ranks"), [(64, 64), (-1, 4), (0, 0)])
def test_a_rank_that_is_not_of_the_job_is_refused(rank, ranks):
    with pytest.raises(SettingsError, match=f"no rank {rank} of {ranks}"):
        OneRank(rank, ranks).variables(8)


def test_a_color_is_what_cpp_makes_of_the_ranks():
    # One rank r: 0 ^ (r + 0x9e3779b9), of 64 bits, modulo the largest int.
    assert color_in_cpp([5]) == (5 + 0x9E3779B9) % 0x7FFFFFFF
    assert color_in_cpp([0, 1]) != color_in_cpp([1, 0])


# -- one rank, the others absent -----------------------------------------------------------------


def test_one_rank_of_ddp_is_answered_with_what_nccl_takes(one_of):
    told, _ = one_of(DDP, 3, 64)
    (device,) = told["devices"]
    assert device["device"] == "cuda:3"
    assert device["rank"] == 3
    assert told["file"] == "run.rank3.json"
    # 24 channels: a ring, the tree of a rank amid others, what nodes share, NCCL's code.
    shared = 32 * 16 * 128 * 1024
    assert device["nccl_bytes"] == 2 * 24 * CONNECTION + shared + CODE
    used = device["left_bytes"] + device["peak_reserved_bytes"] + device["context_bytes"]
    assert used + device["nccl_bytes"] == device["total_bytes"]
    assert any("NCCL is taken to hold 720 MiB of cuda:3" in line for line in told["not_seen"])


@pytest.mark.parametrize(("rank", "half_trees"), [(0, 1), (1, 2)])
def test_within_a_node_the_first_rank_has_nobody_above_it_in_the_tree(one_of, rank, half_trees):
    told, _ = one_of(DDP, rank, 4)
    (device,) = told["devices"]
    old = find_torch().nccl_version < 22200
    shared = 32 * 16 * 512 * 1024 if old else 0
    tree = half_trees * 24 * CONNECTION // 2
    assert device["nccl_bytes"] == 24 * CONNECTION + tree + shared + CODE


def test_fewer_channels_and_smaller_buffers_are_heeded(one_of):
    told, _ = one_of(DDP, 1, 2, NCCL_MAX_NCHANNELS="2", NCCL_BUFFSIZE=str(MIB))
    (device,) = told["devices"]
    shared = 32 * 16 * 128 * 1024 if find_torch().nccl_version < 22200 else 0
    assert device["nccl_bytes"] == 2 * (8 + 2) * MIB + shared + CODE


def test_fsdp_holds_one_shard_of_64_and_gathers_a_layer(one_of):
    told, printed = one_of(FSDP, 11, 64)
    layer = 4096 * 4096 * 4
    assert printed[0] == f"sharded {4 * layer // 64}"
    peak = int(printed[1].split()[1])
    (device,) = told["devices"]
    assert device["peak_allocated_bytes"] == peak
    # Two layers gathered at once, with what they were gathered into, and a gradient of each.
    assert 2 * layer < peak < 8 * layer
    assert device["device"] == "cuda:3"


def test_tensor_parallel_ranks_hold_their_part(one_of):
    _, printed = one_of(TENSOR_PARALLEL, 11, 64)
    assert printed[-2] == "[[512, 1024], [512], [1024, 512], [1024]] [8, 1024]"
    assert printed[-1] == "[1, 3]"


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_objects_of_other_ranks_are_this_ones_or_stay_as_they_were(one_of, backend):
    told, printed = one_of(EXCHANGES, 2, 4, BACKEND=backend)
    assert printed[-1] == "2 of 4: [2, 2, 2, 2] [None] [None]"
    if backend == "nccl":
        assert printed[-2] == "[7, 7, 7, 7] [7, 7, 7, 7]"
    line = EXCHANGES.splitlines().index("dist.broadcast_object_list(sent, src=0)") + 2
    where = f"train.py:{line} in <module> would be given objects by another rank"
    assert any(where in note and "broadcast_object_list" in note for note in told["not_seen"])


def test_no_port_is_opened_and_no_address_is_asked(one_of):
    program = (
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('nccl', init_method='tcp://192.0.2.1:1', rank=5, world_size=16)\n"
        "torch.cuda.set_device(5)\n"
        "part = dist.new_group([1, 5, 9])\n"
        "dist.all_reduce(torch.ones(3, device='cuda'), group=part)\n"
        "print(dist.get_rank(), dist.get_world_size(), dist.get_rank(part))\n"
    )
    _, printed = one_of(program, 5, 16)
    assert printed == ["5 16 1"]


def test_a_rank_without_a_number_of_ranks_is_refused(dry_run, tmp_path):
    done = dry_run("--gpu", "t4", "--rank", 0, "train.py", cwd=tmp_path)
    assert done.returncode == 2
    assert "--world-size is missing" in done.stderr


def test_nccl_that_finds_no_memory_ends_as_it_would_on_the_card(dry_run, tmp_path):
    (tmp_path / "train.py").write_text(DDP)
    job = ["--gpu", "1GiB", "--rank", 1, "--world-size", 2]
    card = {"NCCL_BUFFSIZE": str(64 * MIB)}
    (tmp_path / "train.py").write_text(
        "import torch\nheld = torch.empty(500 << 20, dtype=torch.uint8, device='cuda:1')\n" + DDP
    )
    done = dry_run(*job, "-o", "run.json", "train.py", cwd=tmp_path, **card)
    assert done.returncode == 1
    assert "no memory left for NCCL's buffers" in done.stderr
    assert "does not fit: NCCL lacked " in done.stdout
    assert "NCCL_BUFFSIZE" in done.stdout
    done = dry_run(*job, "--fail-above", "1GiB", "-o", "run.json", "train.py", cwd=tmp_path, **card)
    assert done.returncode == 3


# -- processes that are there --------------------------------------------------------------------


def launched(dry_run, site: Path, tmp_path: Path, program: str, *words: object, **variables: str):
    (tmp_path / "train.py").write_text(program)
    return dry_run(
        *("--gpu", "h100", "--gpus", 2, *words, sys.executable, "-m", "torch.distributed.run"),
        *("--standalone", "--nproc-per-node", 2, "train.py"),
        cwd=tmp_path,
        site=site,
        **variables,
    )


def test_a_launcher_is_answered_for_each_of_its_ranks(dry_run, site, tmp_path):
    done = launched(dry_run, site, tmp_path, "print()\n" + DDP, "-o", "run.json", "--json")
    told = answer(done)
    assert [(d["rank"], d["device"]) for d in told["devices"]] == [(0, "cuda:0"), (1, "cuda:1")]
    peaks = [device["peak_allocated_bytes"] for device in told["devices"]]
    # Torch's watchdog of NCCL holds the first bucket until it looks, every 0.1 s.
    assert max(peaks) - min(peaks) in (0, (1024 * 4096 + 4096) * 4)
    assert all(device["nccl_bytes"] for device in told["devices"])
    files = sorted(path.name for path in tmp_path.glob("run*"))
    assert files == ["run.rank0.json", "run.rank1.json"]
    assert load(tmp_path / "run.rank1.json").header.world_size == 2


def test_objects_between_processes_are_real_over_nccl_and_gloo(dry_run, site, tmp_path):
    for backend in ("nccl", "gloo"):
        done = launched(dry_run, site, tmp_path, EXCHANGES, "--no-record", BACKEND=backend)
        assert done.returncode == 0, done.stderr[-3000:]
        for rank in (0, 1):
            assert f"{rank} of 2: [0, 1] [('from', 0)] [{10 + rank}]" in done.stdout


def test_spawned_processes_are_recorded_and_the_one_that_spawned_them_is_not_kept(
    dry_run, site, tmp_path
):
    (tmp_path / "train.py").write_text(SPAWNED)
    words = ["--gpu", "h100", "--gpus", 2, "-o", "run.json", "--json", "train.py", "store"]
    done = dry_run(*words[:-1], tmp_path / "store", cwd=tmp_path, site=site)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout)
    assert sorted(device["device"] for device in told["devices"]) == ["cuda:0", "cuda:1"]
    assert len(list(tmp_path.glob("run*.json"))) == 2


def test_a_limit_holds_for_each_rank(dry_run, site, tmp_path):
    done = launched(dry_run, site, tmp_path, DDP, "-o", "run.json", "--fail-above", "1MiB")
    assert done.returncode == 3
    assert "on cuda:0 in run.rank0.json" in done.stderr
    assert "on cuda:1 in run.rank1.json" in done.stderr
