"""Parameters by which functions of CUDA's libraries say how much memory a caller should allocate.

They are read from the libraries' headers. A function that only answered "success" would leave the
size as it was: whatever lay on the caller's stack, which it would then allocate.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

__all__ = ["HANDS_OUT_SIZES", "with_sizes_of_zero"]

HANDS_OUT_SIZES = re.compile(
    r"cu(?:solver|sparse|fft|blas)\w*(?:size|getworkspace|makeplan)", re.IGNORECASE
)
"""Names of such functions: ``cusolverDnSgetrf_bufferSize``, ``cufftXtMakePlanMany``."""
_HEADERS = ("cusolverDn.h", "cusparse.h", "cusparseLt.h", "cufftXt.h", "cublasLt.h")
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_PROTOTYPE = re.compile(r"(\w+)\s*\(([^;{}()]*)\)\s*;")
_SIZE = re.compile(r"(int|size_t)\s*\*\s*(?:\w*(?:lwork|size|workspace|buffer)\w*)?", re.IGNORECASE)
_BY_VALUE = re.compile(r"(?:const\s+)?(float|double|cu\w*Complex)\s+\w+")
_MOST_TEXT = 8 << 20


def with_sizes_of_zero(names: Iterable[str], packages: Path) -> Mapping[str, str]:
    """C code of those of the functions that hand out sizes, each 0 bytes, by name.

    A parameter that is no size is taken as a number of 64 bits, which is how a pointer, an integer
    and an enumeration are passed alike. ``packages`` is the folder that torch is installed in.
    """
    size_functions = {name for name in names if HANDS_OUT_SIZES.match(name)}
    prototypes: dict[str, str] = {}
    for name, parameters in _prototypes(packages):
        if name in size_functions and name not in prototypes:
            code = _parameters_and_body(parameters)
            if code is not None:
                prototypes[name] = code
    return prototypes


def _prototypes(packages: Path) -> Iterator[tuple[str, list[str]]]:
    for header in _HEADERS:
        for path in sorted((packages / "nvidia").rglob(header)):
            text = _COMMENT.sub(" ", path.read_text(errors="replace")[:_MOST_TEXT])
            for name, parameters in _PROTOTYPE.findall(text):
                yield name, [" ".join(one.split()) for one in parameters.split(",")]


def _parameters_and_body(parameters: list[str]) -> str | None:
    """``(long p0, long p1) { *(int *)p1 = 0;``; None without a size, or of floating numbers."""
    sizes = []
    for number, parameter in enumerate(parameters):
        if _BY_VALUE.fullmatch(parameter):
            return None
        size = _SIZE.fullmatch(parameter)
        if size:
            sizes.append(f"if (p{number}) *({size.group(1)} *)p{number} = 0;")
    if not sizes:
        return None
    declared = ", ".join(f"long p{number}" for number in range(len(parameters)))
    return f"({declared}) {{ {' '.join(sizes)}"
