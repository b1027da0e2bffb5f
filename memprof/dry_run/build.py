"""Compiles the library that stands in for CUDA, for the torch that is there, and keeps it.

It is compiled where it is used, because structs of CUDA's runtime differ between its major versions
and the functions that must be there are those that this build of torch asks for: both are read
from what torch brings along. The compiler is that of the package ziglang if it is installed, which
``pip install 'cuda-memprof[dry-run]'`` brings without root, else the C compiler of the machine. No
CUDA toolkit is needed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from memprof.dry_run.answers import is_harmless, refusal_of
from memprof.dry_run.elf import undefined_symbols
from memprof.dry_run.prototypes import with_sizes_of_zero
from memprof.errors import MissingError

__all__ = ["LIBRARY", "Torch", "build", "compiler", "find_torch"]

LIBRARY = "libcuda.so.1"
_OTHER_NAMES = ("libcuda.so", "libnvidia-ml.so.1")
"""What Triton links with, and what NVML is looked for under."""
_SOURCES = Path(__file__).with_name("runtime")
_TORCH_LIBRARIES = re.compile(r"c10_cuda|torch_cuda|torch_python|caffe2_nvrtc")
_CUDA_NAMES = re.compile(r"(?:__)?cu[A-Zbdfrs]|nvrtc|nccl")
_NVML_CALLS = re.compile(rb"\0(nvml[A-Z]\w+)(?=\0)")
_CALLS_OF_HEADERS = {
    "cuda.h": re.compile(r"CUresult\s+CUDAAPI\s+(cu\w+)\s*\("),
    "cuda_runtime_api.h": re.compile(r"CUDARTAPI\s+(cuda\w+)\s*\("),
}
_CALLS_OF_LIBRARIES = {
    "cublas_api.h": re.compile(r"CUBLASWINAPI\s+(cublas\w+)\s*\("),
    "cusolverDn.h": re.compile(r"CUSOLVERAPI\s+(cusolver\w+)\s*\("),
    "cusparse.h": re.compile(r"CUSPARSEAPI\s+(cusparse\w+)\s*\("),
    "cufft.h": re.compile(r"CUFFTAPI\s+(cufft\w+)\s*\("),
    "cufftXt.h": re.compile(r"CUFFTAPI\s+(cufft\w+)\s*\("),
}
"""Where they lie beside torch, functions that others than torch may call."""
_ANSWER = """\
#define INTERNAL __attribute__((visibility("hidden")))
typedef struct { const char *name, *code; long refusal; } Answer;
INTERNAL extern const Answer answers[];
INTERNAL extern const size_t answers_made;
INTERNAL extern unsigned char answers_called[];
INTERNAL long answer(unsigned number);
INTERNAL long answer_without_size(unsigned number);
"""
"""As in stand_in.h, without CUDA's headers: the generated declarations contradict theirs."""
_LONGEST_S = 300


@dataclass(frozen=True, slots=True)
class Torch:
    """A build of torch with CUDA, and where its headers of CUDA lie."""

    folder: Path
    version: str
    includes: tuple[Path, ...]
    nccl_version: int = 0
    """2.28.9 as 22809; 0 where its header is not beside torch."""
    cublas_version: int = 0
    """13.1.0 as 130100; 0 likewise."""


def find_torch() -> Torch:
    """The torch of this Python; it is not imported.

    Raises:
        MissingError: there is none, it was built without CUDA, or its headers are missing.
    """
    if sys.platform != "linux":
        raise MissingError(
            f"a dry run works on Linux only, and this is {platform.system()}",
            "on Windows use WSL; elsewhere a container with Linux",
        )
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise MissingError("there is no torch beside memprof", _HOW_TO_GET_CUDA)
    folder = Path(spec.origin).parent
    if not (folder / "lib" / "libtorch_cuda.so").exists():
        raise MissingError(
            "this torch was built without CUDA, and a dry run is torch's own CUDA code",
            f"{_HOW_TO_GET_CUDA}; memprof run records what it takes on the CPU instead",
        )
    packages = folder.parent
    return Torch(
        folder,
        _version(folder),
        _includes(packages),
        _nccl_version(packages),
        _cublas_version(packages),
    )


_HOW_TO_GET_CUDA = (
    "on x86-64 Linux `pip install torch` brings a build with CUDA, and needs no GPU: "
    "python -m venv cuda && cuda/bin/pip install torch 'cuda-memprof[dry-run]'"
)


def _version(folder: Path) -> str:
    text = (folder / "version.py").read_text(encoding="utf-8")
    match = re.search(r"__version__ = '([^']+)'", text)
    return match.group(1) if match else ""


def _nccl_version(packages: Path) -> int:
    header = packages / "nvidia" / "nccl" / "include" / "nccl.h"
    if not header.exists():
        return 0
    match = re.search(r"#define NCCL_VERSION_CODE (\d+)", header.read_text(errors="replace"))
    return int(match.group(1)) if match else 0


def _cublas_version(packages: Path) -> int:
    header = next((packages / "nvidia").rglob("cublas_api.h"), None)
    text = header.read_text(errors="replace") if header else ""
    parts = [
        re.search(rf"#define CUBLAS_VER_{part} (\d+)", text) for part in ("MAJOR", "MINOR", "PATCH")
    ]
    major, minor, patch = (int(match.group(1)) if match else 0 for match in parts)
    return major * 10000 + minor * 100 + patch


def _includes(packages: Path) -> tuple[Path, ...]:
    """Folders with the headers of CUDA's runtime and driver, from what torch depends on."""
    runtime = next((packages / "nvidia").rglob("cuda_runtime_api.h"), None)
    toolkits = [os.environ.get("CUDA_HOME", ""), "/usr/local/cuda"]
    places = [*([runtime.parent] if runtime else []), packages / "triton/backends/nvidia/include"]
    places += [packages / "nvidia" / "cudnn" / "include"]
    places += [Path(toolkit) / "include" for toolkit in toolkits if toolkit]
    for name in ("cuda_runtime_api.h", "cuda.h", "cuda_occupancy.h"):
        if not any((place / name).exists() for place in places):
            raise MissingError(
                f"CUDA's header {name} is not beside this torch",
                "pip install nvidia-cuda-runtime (for CUDA 12 nvidia-cuda-runtime-cu12) and triton",
            )
    return tuple(place for place in places if place.is_dir())


def compiler() -> tuple[str, ...]:
    """The command of the C compiler that is used.

    Raises:
        MissingError: there is none.
    """
    if importlib.util.find_spec("ziglang") is not None:
        # Without a target the library could need a newer glibc than another machine has.
        target = f"{platform.machine()}-linux-gnu.2.17"
        return (sys.executable, "-m", "ziglang", "cc", "-target", target)
    command = os.environ.get("CC")
    if command:
        return tuple(shlex.split(command))
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name):
            return (name,)
    raise MissingError(
        "a dry run needs a C compiler, once",
        "pip install 'cuda-memprof[dry-run]' brings one (ziglang); gcc and clang do as well",
    )


def build(torch: Torch) -> Path:
    """The library for ``torch``, compiled unless it was before.

    It takes some seconds, and is kept under ``MEMPROF_CACHE`` or the user's folder for caches.

    Raises:
        MissingError: there is no compiler, or it fails.
    """
    command = compiler()
    library = _folder(torch, command) / LIBRARY
    if _is_ours(library):
        return library
    library.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        folder = Path(scratch)
        for name in _OTHER_NAMES:
            (folder / name).symlink_to(LIBRARY)
            (folder / name).replace(library.with_name(name))
        _compile(folder, torch, command).replace(library)
    return library


def _folder(torch: Torch, command: Sequence[str]) -> Path:
    parts = [torch.version, str(torch.nccl_version), str(torch.cublas_version), str(torch.folder)]
    parts += [*map(str, torch.includes), *command]
    digest = hashlib.sha256("\0".join(parts).encode())
    for source in sorted([*_SOURCES.glob("*.[ch]"), *Path(__file__).parent.glob("*.py")]):
        digest.update(source.read_bytes())
    caches = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    root = os.environ.get("MEMPROF_CACHE") or str(Path(caches) / "memprof")
    return Path(root) / "dry-run" / digest.hexdigest()[:16]


def _is_ours(library: Path) -> bool:
    """Whether it is there and nobody else's: a library runs as whoever loads it."""
    try:
        return library.stat().st_uid in (os.getuid(), 0)
    except OSError:
        return False


def _compile(folder: Path, torch: Torch, command: Sequence[str]) -> Path:
    rest, library = folder / "rest.c", folder / LIBRARY
    names = sorted(functions_asked_for(torch))
    sizes = with_sizes_of_zero(names, torch.folder.parent)
    rest.write_text(_without_code(names, sizes), encoding="ascii")
    options = [
        *(
            "-shared",
            "-fPIC",
            "-O2",
            "-Wall",
            "-finstrument-functions",  # for crashes.c
            "-Wno-unused-parameter",
            "-g0",
            "-pthread",
            f"-Wl,-soname,{LIBRARY}",
        ),
        *("-fno-sanitize=undefined", f"-I{_SOURCES}"),
        *(f"-I{include}" for include in torch.includes),
        f"-DMEMPROF_CUBLAS_VERSION={torch.cublas_version}",
        *([f"-DMEMPROF_NCCL_VERSION={torch.nccl_version}"] if torch.nccl_version else []),
    ]
    sources = [*map(str, sorted(_SOURCES.glob("*.c"))), str(rest)]
    try:
        process = subprocess.run(
            [*command, *options, "-o", str(library), *sources, "-ldl"],
            capture_output=True,
            text=True,
            timeout=_LONGEST_S,
            check=False,
            # Zig keeps what it compiles in a folder of the user's: here it goes with the rest.
            env={**os.environ, "ZIG_GLOBAL_CACHE_DIR": str(folder / "zig"), "LD_PRELOAD": ""},
        )
        problem = "" if process.returncode == 0 else process.stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        problem = str(error)
    if problem or not library.exists():
        raise MissingError(
            f"the library for dry runs could not be compiled: {_first_error(problem)}",
            "pip install 'cuda-memprof[dry-run]' brings a compiler that can (ziglang)",
        )
    return library


def _first_error(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line), " ".join(lines[:1]) or "no message")


def functions_asked_for(torch: Torch) -> set[str]:
    """Every function of CUDA that torch links with, or another library may."""
    names: set[str] = set()
    for file, pattern in _CALLS_OF_HEADERS.items():
        header = next(place / file for place in torch.includes if (place / file).exists())
        names |= set(pattern.findall(header.read_text(errors="replace")))
    for file, pattern in _CALLS_OF_LIBRARIES.items():
        for header in sorted((torch.folder.parent / "nvidia").rglob(file)):
            names |= set(pattern.findall(header.read_text(errors="replace")))
    calls = _NVML_CALLS.findall((torch.folder / "lib" / "libc10_cuda.so").read_bytes())
    names |= {name.decode() for name in calls}
    return names | functions_linked(torch)


def functions_linked(torch: Torch) -> set[str]:
    """Those without which torch's libraries could not be loaded."""
    return {
        name
        for path in (torch.folder / "lib").glob("lib*.so")
        if _TORCH_LIBRARIES.search(path.name)
        for name in undefined_symbols(path)
        if _CUDA_NAMES.match(name)
    }


def _without_code(names: Sequence[str], sizes: Mapping[str, str]) -> str:
    """C code of functions that say that they were called, and answer what `answers` decides.

    Those in ``sizes`` have parameters and the beginning of a body. All are weak, so that a function
    of the library's own takes the place of its namesake.
    """
    bodies = "\n".join(
        f"__attribute__((weak)) long {name}{sizes.get(name, '(void) {')} "
        f"return answer{'_without_size' if name in sizes else ''}({number}); }}"
        for number, name in enumerate(names)
    )
    table = ",\n".join(
        f'{{"{name}", 0, 0}}'
        if name in sizes or is_harmless(name)
        else '{{"{}", "{}", {}}}'.format(name, *refusal_of(name))
        for name in names
    )
    return (
        f"#include <stddef.h>\n{_ANSWER}"
        f"const size_t answers_made = {len(names)};\n"
        f"unsigned char answers_called[{len(names)}];\n"
        f"const Answer answers[] = {{\n{table}\n}};\n{bodies}\n"
    )
