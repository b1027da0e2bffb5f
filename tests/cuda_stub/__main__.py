"""Runs Python with torch's own CUDA code above a stub of the CUDA runtime: no GPU, no kernels.

    python tests/cuda_stub -m pytest -m gpu
    python tests/cuda_stub train.py

torch must be a CUDA build, which needs neither a device nor a driver to be installed. Its allocator,
its recorder and its threads are the real ones; memory is accounted for by `runtime.c`, which says
what may be set. What kernels would compute is not there, so nothing is learnt of values or speed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

RUNTIME = Path(__file__).with_name("runtime.c")
LIBRARY = "libcuda.so.1"
_OTHER_NAMES = ("libcuda.so", "libnvidia-ml.so.1")
"""What Triton links with, and what torch asks whether segments may be shared between machines."""
_TORCH_LIBRARIES = re.compile(r"c10_cuda|torch_cuda|torch_python|caffe2_nvrtc")
_CUDA_NAMES = re.compile(r"(?:__)?cu[A-Zbdfrs]|nvrtc|nccl")
_NVML_CALLS = re.compile(rb"\0(nvml[A-Z]\w+)(?=\0)")
_DRIVER_CALLS = re.compile(r"CUresult\s+CUDAAPI\s+(cu\w+)\s*\(")


class MissingError(Exception):
    """Something that the stub is made of is not on this machine."""


def library() -> Path:
    """The stub for the torch of this Python, compiled unless it was before."""
    torch = _torch()
    includes = _includes(torch.parent)
    made_of = RUNTIME.read_bytes() + Path(__file__).read_bytes() + str(torch).encode()
    key = hashlib.sha256(made_of).hexdigest()[:16]
    made = Path(tempfile.gettempdir()) / f"memprof-cuda-stub-{os.getuid()}-{key}" / LIBRARY
    if not made.exists():
        made.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=made.parent) as folder:
            _compile(Path(folder), torch, includes).replace(made)
        for name in _OTHER_NAMES:
            named = made.with_name(name)
            named.unlink(missing_ok=True)
            named.symlink_to(LIBRARY)
    return made


def environment() -> dict[str, str]:
    """The variables under which a process has the stub for its CUDA."""
    made = library()
    before = os.environ.get("LD_LIBRARY_PATH", "")
    path = f"{made.parent}:{before}" if before else str(made.parent)
    return {"LD_PRELOAD": str(made), "LD_LIBRARY_PATH": path}


def _torch() -> Path:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise MissingError("needs torch")
    torch = Path(spec.origin).parent
    if not any((torch / "lib").glob("libtorch_cuda.so")):
        raise MissingError("needs a torch that was built with CUDA, as pip installs it on Linux")
    return torch


def _includes(packages: Path) -> list[Path]:
    """Folders of headers that come with torch's own dependencies."""
    found = next((packages / "nvidia").rglob("cuda_runtime_api.h"), None)
    beside = packages / "triton" / "backends" / "nvidia" / "include"
    if found is None or not beside.is_dir():
        raise MissingError("needs the headers of nvidia-cuda-runtime and of triton")
    return [found.parent, beside]


def _compile(folder: Path, torch: Path, includes: list[Path]) -> Path:
    """The runtime, and for every other function that is asked for one that says all went well."""
    compiled, rest, made = folder / "runtime.o", folder / "rest.c", folder / LIBRARY
    options = ["-O1", "-fPIC", "-w", *(f"-I{include}" for include in includes)]
    subprocess.run(["gcc", *options, "-c", RUNTIME, "-o", compiled], check=True)
    wanted = set(_DRIVER_CALLS.findall((includes[0] / "cuda.h").read_text(errors="replace")))
    asked = (torch / "lib" / "libc10_cuda.so").read_bytes()
    wanted |= {name.decode() for name in _NVML_CALLS.findall(asked)}
    for path in (torch / "lib").glob("lib*.so"):
        if _TORCH_LIBRARIES.search(path.name):
            wanted |= {n for n in _symbols(path, "-D", "--undefined-only") if _CUDA_NAMES.match(n)}
    names = sorted(wanted - _symbols(compiled, "--defined-only"))
    rest.write_text("".join(f"long {name}(void) {{ return 0; }}\n" for name in names))
    shared = ["-shared", f"-Wl,-soname,{LIBRARY}", "-fPIC", "-w", "-o", made, compiled, rest]
    subprocess.run(["gcc", *shared, "-ldl", "-lpthread"], check=True)
    return made


def _symbols(path: Path, *which: str) -> set[str]:
    listed = subprocess.run(["nm", *which, path], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1].partition("@")[0] for line in listed.splitlines() if line.strip()}


def main() -> None:
    """Become Python with these arguments, above the stub."""
    try:
        more = environment()
    except MissingError as missing:
        sys.exit(f"the stub of CUDA {missing}")
    os.execve(sys.executable, [sys.executable, *sys.argv[1:]], {**os.environ, **more})


if __name__ == "__main__":
    main()
