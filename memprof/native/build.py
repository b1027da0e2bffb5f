"""Compiles the native part for the torch of this Python, in a process of its own: see `memprof.native`.

    python memprof/native/build.py FOLDER
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

__all__ = ["SOURCES", "compile_into"]

SOURCES = Path(__file__).parent
CPU = "memprof_cpu"
_LIBRARIES = {CPU: ["c10", "torch_cpu"]}


def compile_into(folder: Path) -> None:
    """Compile every part that this torch can have; raises whatever setuptools and compilers raise."""
    from setuptools import Distribution
    from torch.utils.cpp_extension import BuildExtension, CppExtension

    extensions = [
        CppExtension(
            CPU,
            [str(SOURCES / "cpu.cpp")],
            extra_compile_args=["-O2", "-g0", "-fvisibility=hidden"],
        )
    ]
    for one in extensions:
        one.libraries = _LIBRARIES[one.name]  # else all of torch is linked, and loaded, for them
    command = BuildExtension.with_options(use_ninja=False, no_python_abi_suffix=True)
    distribution = Distribution({"name": "memprof-native", "ext_modules": extensions})
    with tempfile.TemporaryDirectory() as scratch:
        build = command(distribution)
        build.build_lib = str(folder)
        build.build_temp = scratch
        build.ensure_finalized()
        build.run()


if __name__ == "__main__":
    compile_into(Path(sys.argv[1]))
