"""What a machine with a GPU is, as far as the results made there depend on it; asserts nothing.

With ``--versions`` it starts CUDA and prints the versions alone, as one JSON object.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable
from datetime import datetime, timezone
from importlib import metadata, util
from pathlib import Path

from tests.results import MEASURED, write

PACKAGES = (
    "torch",
    "triton",
    "numpy",
    "msgspec",
    "psutil",
    "nvidia-ml-py",
    "pytest",
    "pytest-xdist",
    "pytest-timeout",
    "hypothesis",
    "click",
    "rich",
    "plotly",
    "ninja",
)
COMPILERS = ("gcc", "g++", "nvcc", "ninja")


def versions() -> dict[str, object]:
    """What every result depends on; starts CUDA.

    Raises:
        SystemExit: torch sees no CUDA device.
    """
    import torch

    import memprof

    if not torch.cuda.is_available():
        sys.exit("torch sees no CUDA device")
    torch.cuda.init()
    return {
        "date": f"{datetime.now(timezone.utc):%Y-%m-%d}",
        "device": torch.cuda.get_device_name(),
        "driver": _driver_version(),
        "torch": torch.__version__,
        "CUDA": torch.version.cuda,
        "Python": platform.python_version(),
        "memprof": memprof.__version__,
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
    }


def _driver_version() -> str:
    try:
        return Path("/sys/module/nvidia/version").read_text().strip()
    except OSError:
        return "none"


def machine() -> None:
    print(platform.platform(), "Python", platform.python_version(), os.cpu_count(), "cores")
    for name in PACKAGES:
        try:
            print(f"  {name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            print(f"  {name} is not there")
    print("  compilers:", {name: shutil.which(name) for name in COMPILERS})
    print("  torchvision:", util.find_spec("torchvision") is not None)
    print({k: v for k, v in os.environ.items() if k.startswith(("CUDA", "PYTORCH", "TORCH"))})


def driver() -> None:
    smi = shutil.which("nvidia-smi")
    if smi is None:
        print("no nvidia-smi")
        return
    print(subprocess.run([smi], capture_output=True, text=True, timeout=30, check=False).stdout)


def memory_before_and_after_first_use() -> None:
    """What the driver takes for the context, and as kernels and libraries are first used."""
    import torch

    uses: dict[str, Callable[[], object]] = {
        "context": torch.cuda.init,
        "first tensor": lambda: torch.ones(1, device="cuda") + 1,
        "first matmul": lambda: (
            torch.ones(512, 512, device="cuda") @ torch.ones(512, device="cuda")
        ),
        "first bf16 matmul": lambda: torch.ones(64, 64, device="cuda", dtype=torch.bfloat16).matmul(
            torch.ones(64, 64, device="cuda", dtype=torch.bfloat16)
        ),
        "first convolution": lambda: torch.nn.Conv2d(3, 8, 3).cuda()(
            torch.ones(8, 3, 64, 64, device="cuda")
        ),
        "first attention": lambda: torch.nn.functional.scaled_dot_product_attention(
            *torch.ones(3, 1, 8, 128, 64, device="cuda", dtype=torch.bfloat16)
        ),
    }
    for name, use in uses.items():
        use()
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        reserved = torch.cuda.memory_reserved()
        told = f"{total - free - reserved} bytes outside torch, {reserved} reserved by it"
        print(f"{name}: {told}")
        write(f"after the {name}", MEASURED, told)
    print(torch.cuda.get_device_properties(0), "total of the driver:", total)


def nvml() -> None:
    import torch

    from memprof.sources.nvml import NvmlSource, cards, driver_version, processes_on

    kept = torch.ones(1, device="cuda")
    print("driver", driver_version(), cards())
    source = NvmlSource()
    source.open()
    print(source.read())
    source.close()
    print("this process:", os.getpid(), "listed:", processes_on(str(kept.device)))


def main() -> None:
    if sys.argv[1:] == ["--versions"]:
        print(json.dumps(versions()))
        return
    for fact in (machine, driver, memory_before_and_after_first_use, nvml):
        print(f"\n== {fact.__name__}", flush=True)
        try:
            fact()
        except Exception:  # noqa: BLE001 - the next fact is worth having without it
            print(traceback.format_exc(limit=-2, chain=False))


if __name__ == "__main__":
    main()
