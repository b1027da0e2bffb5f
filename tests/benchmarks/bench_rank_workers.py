"""What it takes to judge every rank of a large job, here and on more and more workers.

The ranks are those of a real job of DDP over gloo, recorded first and then multiplied.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from memprof.ranks.engines import engine
from memprof.ranks.files import files_of, gather_ranks, report_of

ROOT = Path(__file__).resolve().parents[2]
RECORDED = 4
TRAIN = """
import torch
import torch.distributed as dist

def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    layers = [torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64)]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.Adam(model.parameters())
    kept = []
    for step in range(16):
        optimizer.zero_grad()
        loss = model(torch.randn(32, 256)).pow(2).mean()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 1:
            kept.append(torch.zeros(2**16))
    dist.destroy_process_group()

main()
"""


def record(folder: Path) -> list[Path]:
    """The files of a job of four ranks, of which one leaks."""
    site = folder / "site"
    site.mkdir()
    hook = (ROOT / "memprof" / "record" / "startup.pth").read_text()
    (site / "sitecustomize.py").write_text(hook)
    (folder / "train.py").write_text(TRAIN)
    paths = [site, ROOT, ROOT / "cli", ROOT / "dashboards"]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "OMP_NUM_THREADS": "1",
        "MEMPROF": str(folder / "real" / "run.json"),
        "MEMPROF_ALLOWANCE": "600",
    }
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(RECORDED)]
    command = [sys.executable, "-m", *launcher, "train.py"]
    subprocess.run(command, cwd=folder, env=environment, check=True)
    return sorted((folder / "real").glob("run.rank*.json"))


def multiply(files: list[Path], folder: Path, ranks: int) -> None:
    """Ranks 0 to ``ranks``, each with what one of the recorded ones did."""
    folder.mkdir()
    originals = [file.read_bytes().split(b"\n") for file in files]
    for rank in range(ranks):
        lines = [
            _renumbered(line, rank, ranks) if line.startswith(b'{"kind":"header"') else line
            for line in originals[rank % len(originals)]
        ]
        (folder / f"run.rank{rank}.json").write_bytes(b"\n".join(lines))


def _renumbered(line: bytes, rank: int, ranks: int) -> bytes:
    header = msgspec.json.decode(line.rstrip(b","))
    return msgspec.json.encode(header | {"rank": rank, "world_size": ranks}) + b","


def processor_s() -> float:
    """Of this process and of the children that ended."""
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def installed(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return f"no {package}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=256)
    parser.add_argument("--on", nargs="*", default=["processes://1", "processes://2"])
    parser.add_argument("--no-here", action="store_true", help="Leave out this process alone.")
    options = parser.parse_args()
    print(
        f"{os.cpu_count()} cores, Python {platform.python_version()}, "
        + ", ".join(map(installed, ("torch", "distributed", "ray")))
    )
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        multiply(record(folder), folder / "job", options.ranks)
        names = [folder / "job"]
        began = time.perf_counter()
        job = gather_ranks(files_of(names), by_name=False)
        assert job is not None
        assert len(job.recordings) == options.ranks
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        took = time.perf_counter() - began
        print(f"{options.ranks:,} ranks read from their ends: {took:.1f} s, peak {peak:.0f} MiB")
        expected = None
        for address in [*([] if options.no_here else [""]), *options.on]:
            used = processor_s()
            if address:
                with engine(address) as executor:
                    report_of([names[0]], executor=executor, judge_all=False)  # all have started
                    began = time.perf_counter()
                    report = report_of(names, executor=executor)
                    took = time.perf_counter() - began
            else:
                began = time.perf_counter()
                report = report_of(names)
                took = time.perf_counter() - began
            assert len(report.judged) == options.ranks
            expected = expected or report
            assert report == expected, "the answer is another one"
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(
                f"{address or 'this process':20} {took:7.1f} s, here up to {peak:.0f} MiB, "
                f"all processes {processor_s() - used:.0f} s of processor",
                flush=True,
            )


if __name__ == "__main__":
    main()
