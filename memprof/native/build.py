"""Compiles the native part for the torch of this Python, in a process of its own.

python memprof/native/build.py FOLDER
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

__all__ = ["NAME", "compile_into"]

NAME = "memprof_native"
_FOLDER = Path(__file__).resolve().parent


def compile_into(folder: Path) -> None:
    """Compile what this torch can have of it; raises whatever setuptools and compilers raise."""
    from setuptools import Distribution
    from torch.utils.cpp_extension import BuildExtension, CppExtension

    headers = _cuda_headers()
    parts = ["module.cpp", "calls.cpp", "cpu.cpp", "reads.cpp", *(["cuda.cpp"] if headers else [])]
    extension = CppExtension(
        NAME,
        [str(_FOLDER / part) for part in parts],
        include_dirs=[str(_FOLDER), *map(str, headers)],
        define_macros=[("MEMPROF_CUDA", "1")] if headers else [],
        extra_compile_args=["-O2", "-g0", "-fvisibility=hidden"],
    )
    # Else all of torch is linked, and so loaded for it.
    extension.libraries = ["c10", "torch_cpu", *(["c10_cuda"] if headers else [])]
    command = BuildExtension.with_options(use_ninja=False, no_python_abi_suffix=True)
    distribution = Distribution({"name": NAME, "ext_modules": [extension]})
    with tempfile.TemporaryDirectory() as scratch:
        build = command(distribution)
        build.build_lib = str(folder)
        build.build_temp = scratch
        build.ensure_finalized()
        build.run()


def _cuda_headers() -> list[Path]:
    """Folders with the headers of the CUDA runtime: a toolkit's, or those of torch's own packages.

    None where this torch has no CUDA, or no headers are to be had: then the CPU's part is built.
    """
    import torch

    if not torch.version.cuda:
        return []
    packages = Path(torch.__file__).resolve().parent.parent
    toolkits = filter(None, (os.environ.get("CUDA_HOME"), "/usr/local/cuda"))
    places = [path.parent for path in (packages / "nvidia").rglob("cuda_runtime_api.h")]
    places += [Path(toolkit) / "include" for toolkit in toolkits]
    complete = [place for place in places if (place / "cuda_runtime_api.h").exists()]
    if not complete:
        return []
    triton = packages / "triton" / "backends" / "nvidia" / "include"
    return [complete[0], triton, _FOLDER / "shims"]


if __name__ == "__main__":
    compile_into(Path(sys.argv[1]))
