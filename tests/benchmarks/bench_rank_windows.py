"""Which steps two real ranks of one job record: they wait for each other, so it should be the same.

Their costs and clocks are real, and one of them has more to record, so nothing is asserted: what
the schedule decides, eight ranks in lockstep show in `tests/record/test_window_schedule.py`.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

from memprof.loading import load

ROOT = Path(__file__).resolve().parents[2]
TRAIN = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
layers = [torch.nn.Linear(128, 128) for _ in range(8)]
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
optimizer = torch.optim.Adam(model.parameters())
kept = []
for step in range(4000):
    optimizer.zero_grad()
    model(torch.randn(64, 128)).square().mean().backward()
    optimizer.step()
    if rank == 1 and step % 3 == 0:
        more = [torch.zeros(100) for _ in range(20)]
    if step > 2500:
        kept.append(torch.zeros(2**16))
"""

print(
    f"torch {metadata.version('torch')}, Python {platform.python_version()}, {os.cpu_count()} cores,"
    f" load {os.getloadavg()[0]:.1f}, {datetime.now(timezone.utc):%Y-%m-%d}"
)
with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    (folder / "train.py").write_text(TRAIN)
    startup = (ROOT / "memprof" / "record" / "startup.pth").read_text()
    (folder / "sitecustomize.py").write_text(startup)
    paths = os.pathsep.join((name, str(ROOT)))
    wanted = {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "MEMPROF": str(folder / "run.json")}
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py")
    subprocess.run(
        [sys.executable, *torchrun], cwd=name, env=os.environ | wanted, check=True, capture_output=True
    )  # fmt: skip
    windows = [
        [(one.reason, one.first_step, one.last_step) for one in load(folder / file).windows]
        for file in ("run.rank0.json", "run.rank1.json")
    ]
for rank, own in enumerate(windows):
    stretches = ", ".join(f"{reason} {first} to {last}" for reason, first, last in own)
    print(f"rank {rank} recorded steps  {stretches}")
print("the same steps" if windows[0] == windows[1] else "not the same steps")
