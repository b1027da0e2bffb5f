"""Records small programs of ours on a GPU, as snapshots for tests/data with torch's own counters.

    python tests/gpu/record_small.py [FOLDER] [NAME ...]
    memprof dry-run --gpu 8GiB --no-record python tests/gpu/record_small.py

The second records torch's own allocator in a dry run; its files are named ``stub-``.

Each program runs in a process of its own, with the allocator's settings that it is there for. Paths
of the machine are taken out. Without a CUDA device nothing is written, which is said.
"""

from __future__ import annotations

import gzip
import json
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from memprof.record.process import is_dry_run

DATA = Path(__file__).resolve().parents[1] / "data"
MIB = 1 << 20
MOST_BYTES = 200_000
"""Of one file; a repository is no place for large ones."""


def training() -> None:
    """Three steps of a small model with Adam."""
    torch.manual_seed(0)
    layers = [m for _ in range(3) for m in (torch.nn.Linear(768, 768), torch.nn.GELU())]
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        model(torch.ones(64, 768, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def sizes() -> None:
    """Tensors of many sizes come and go; some stay."""
    kept: list[torch.Tensor] = []
    for number in range(300):
        mib = (number * 7919 % 331) / 10 + 0.01
        kept.append(torch.empty(int(mib * MIB), dtype=torch.uint8, device="cuda"))
        if number % 3:
            del kept[number * 104729 % len(kept)]
        if number % 100 == 99:
            torch.cuda.empty_cache()


def streams() -> None:
    """Two streams, and blocks that wait for the other one."""
    side = torch.cuda.Stream()
    for _ in range(20):
        here = torch.ones(MIB, device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            there = here * 2
            here.record_stream(side)
        torch.cuda.current_stream().wait_stream(side)
        there.record_stream(torch.cuda.current_stream())


def graphs() -> list[Any]:
    """A captured graph, whose memory lies in a pool of its own and stays."""
    graph, x = torch.cuda.CUDAGraph(), torch.ones(512, 512, device="cuda")
    x @ x + x  # kernels are loaded, and cuBLAS is ready, when the capture begins
    with torch.cuda.graph(graph):
        y = x @ x + x
    graph.replay()
    return [graph, x, y]


def collecting() -> None:
    """The same with 1 GiB, of which six tenths may be held before old segments are given back."""
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(1024 * MIB / total)
    kept: list[torch.Tensor] = []
    for number in range(400):
        mib = (number * 7919 % 331) / 4 + 0.01
        kept.append(torch.empty(int(mib * MIB), dtype=torch.uint8, device="cuda"))
        while sum(tensor.nbytes for tensor in kept) > 450 * MIB:
            del kept[number * 104729 % len(kept)]


def anything(seed: int) -> list[torch.Tensor]:
    """Tensors of all sizes on several streams, which wait for one another, with little memory."""
    chance = random.Random(seed)
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(chance.choice([400, 800, 1500]) * MIB / total)
    streams = [torch.cuda.current_stream(), *(torch.cuda.Stream() for _ in range(seed % 3))]
    kept: list[torch.Tensor] = []
    for _ in range(400):
        choice = chance.random()
        if choice < 0.55:
            _one_more(chance, streams, kept)
        elif choice < 0.97 and kept:
            kept.pop(chance.randrange(len(kept)))
        elif choice > 0.985:
            torch.cuda.empty_cache()
    return kept


def _one_more(
    chance: random.Random, streams: list[torch.cuda.Stream], kept: list[torch.Tensor]
) -> None:
    least, most = chance.choice([(1, MIB), (MIB, 10 * MIB), (10 * MIB, 80 * MIB)])
    try:
        with torch.cuda.stream(chance.choice(streams)):
            made = torch.empty(chance.randrange(least, most), dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        del kept[: len(kept) // 2]
        return
    if chance.random() < 0.2:
        made.record_stream(chance.choice(streams))
    kept.append(made)


def running_out() -> None:
    """The limit of the process is reached."""
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(512 * MIB / total)
    kept = []
    try:
        for _ in range(100):
            kept.append(torch.empty(30 * MIB, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError:
        kept.clear()


PROGRAMS: dict[str, tuple[Callable[[], object], str]] = {
    "training": (training, ""),
    "sizes": (sizes, ""),
    "sizes-expandable": (sizes, "expandable_segments:True"),
    "sizes-split-limit": (sizes, "max_split_size_mb:24"),
    "sizes-powers": (sizes, "roundup_power2_divisions:4"),
    "collecting": (collecting, "garbage_collection_threshold:0.6"),
    "collecting-split-limit": (
        collecting,
        "garbage_collection_threshold:0.6,max_split_size_mb:24",
    ),
    "streams": (streams, ""),
    "graphs": (graphs, ""),
    "running-out": (running_out, ""),
}
ANYTHING: dict[str, tuple[Callable[[], object], str]] = {
    f"anything-{seed}": (partial(anything, seed), settings)
    for seed, settings in enumerate(
        (
            "",
            "expandable_segments:True",
            "max_split_size_mb:32",
            "roundup_power2_divisions:8",
            "garbage_collection_threshold:0.5",
            "max_split_size_mb:100,garbage_collection_threshold:0.7",
        )
    )
}
"""Not kept in tests/data."""


def record(name: str, folder: Path) -> None:
    """Run one program here and write what torch recorded, and what it counted."""
    program, _ = (PROGRAMS | ANYTHING)[name]
    torch.cuda.memory._record_memory_history(
        "all", context="alloc", stacks="python", max_entries=20_000
    )
    kept = program()
    torch.cuda.synchronize()
    snapshot = torch.cuda.memory._snapshot()
    counted = torch.cuda.memory_stats()
    torch.cuda.memory._record_memory_history(None)
    del kept
    _without_paths(snapshot)
    version = torch.__version__.split("+", maxsplit=1)[0]
    made_by = "stub" if is_dry_run() else "gpu"
    path = folder / f"{made_by}-{name}-torch{version}.pickle.gz"
    path.write_bytes(gzip.compress(pickle.dumps(snapshot, protocol=4), 9, mtime=0))
    names = ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes")
    figures = {n: counted[f"{n}.all.current"] for n in names}
    figures |= {f"{n}.peak": counted[f"{n}.all.peak"] for n in names[:2]}
    figures |= {"num_ooms": counted["num_ooms"]}
    about = {"torch": torch.__version__, "device": torch.cuda.get_device_name(), "bytes": figures}
    path.with_name(f"{path.name}.json").write_text(json.dumps(about, indent=1) + "\n")
    size = path.stat().st_size
    print(f"{path.name}: {size} bytes{'' if size <= MOST_BYTES else ', TOO LARGE to keep'}")


def _without_paths(snapshot: dict[str, Any]) -> None:
    """File names as they are below the folder that holds torch, else bare."""
    held = [*snapshot["segments"], *(b for s in snapshot["segments"] for b in s["blocks"])]
    held += [entry for trace in snapshot["device_traces"] for entry in trace]
    frames = {id(frame): frame for one in held for frame in one.get("frames", ())}
    root = str(Path(torch.__file__).parents[1]) + os.sep
    for frame in frames.values():
        filename = frame["filename"]
        below = filename.startswith(root)
        frame["filename"] = filename[len(root) :] if below else filename.rpartition("/")[2]


def main() -> int:
    arguments = sys.argv[1:]
    if arguments[:1] == ["--one"]:
        record(arguments[1], Path(arguments[2]))
        return 0
    if not torch.cuda.is_available():
        print("no CUDA device: nothing was recorded")
        return 0
    folder = Path(arguments[0]) if arguments else DATA
    folder.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name in arguments[1:] or PROGRAMS:
        environment = {k: v for k, v in os.environ.items() if "ALLOC_CONF" not in k}
        if settings := (PROGRAMS | ANYTHING)[name][1]:
            environment["PYTORCH_CUDA_ALLOC_CONF"] = settings
        command = [sys.executable, __file__, "--one", name, str(folder)]
        failed += subprocess.run(command, env=environment, check=False).returncode != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
