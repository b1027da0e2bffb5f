"""Whose line a stack belongs to: the user's own frame first, torch's and other libraries' folded.

Only names and paths are looked at, so stacks recorded on another machine or system read the same.
"""

from __future__ import annotations

import enum
import re
import sys
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from memprof.trace import Frame, Tables

__all__ = ["NO_SITE", "FrameKind", "Sites", "frame_kind", "short_path", "site_name", "sites"]

NO_SITE = Frame("", "", 0)
"""The site of an event whose stack was not recorded."""

_PACKAGES = re.compile(r"/(?:site|dist)-packages/([^/]+)")
_STDLIB = re.compile(r"/lib(?:64)?/python\d[^/]*/(?!site-packages|dist-packages)")
_WINDOWS_STDLIB = re.compile(r"/[Ll]ib/([A-Za-z_]\w*)(?:\.py$|/)")
_TORCH_TREE = re.compile(r"/torch/(?:[a-z_]+/)*_?[a-z]\w*\.py$")
_OWN = re.compile(
    r"/memprof/(?:launch|tracker|autostart|sampler|holding/\w+|sources/\w+|testing/\w+)\.py$|/memprof_cli/"
)
_NATIVE_FILE = re.compile(r"\.(?:cpp|cc|cxx|c|cu|cuh|h|hpp|inc|S|o|so[.\d]*)$")
_NATIVE_NOISE = re.compile(
    r"unwind|CapturedTraceback|gather_with_cpp|CachingAllocator|::malloc|raw_alloc|"
    r"^c10::|StorageImpl|at::detail::empty|empty_generic|_empty_|empty_cuda|empty_strided|"
    r"wrap_kernel|wrapper_CUDA|KernelFunction|Dispatcher|::redispatch|^_?_?(start|libc)|^\[unknown\]|"
    r"execute_native_thread_routine|clone_obey_contract"
)
_NATIVE_TELLING = re.compile(r"^torch::autograd::generated::\w+::|^at::_ops::\w+::call")
_ARGUMENTS = re.compile(r"\((?!anonymous).*$")
_EXECUTED = "<string>"
"""Text given to `exec` (and what dataclasses make): the line that runs it can be read."""
_HIDDEN = ("<frozen ", "<__array_function__")


class FrameKind(enum.IntEnum):
    """How near a frame is to the person who reads the report; higher is nearer."""

    HIDDEN = 0
    """Import machinery and memprof itself."""
    NATIVE = 1
    """C++ and CUDA."""
    STDLIB = 2
    TORCH = 3
    LIBRARY = 4
    """Another installed package."""
    USER = 5


@lru_cache(maxsize=65536)
def frame_kind(filename: str) -> FrameKind:
    """What kind of code a file is, by its path alone."""
    path = filename.replace("\\", "/")
    if not path or path == "??" or _NATIVE_FILE.search(path):
        return FrameKind.NATIVE
    if path.startswith(_HIDDEN) or _OWN.search(path):
        return FrameKind.HIDDEN
    package = _PACKAGES.search(path)
    if package:
        return FrameKind.TORCH if package[1] in ("torch", "functorch") else FrameKind.LIBRARY
    if path.startswith("<eval_with_key>") or "/torchinductor_" in path or _TORCH_TREE.search(path):
        return FrameKind.TORCH
    return FrameKind.STDLIB if _is_stdlib(path) else FrameKind.USER


def _is_stdlib(path: str) -> bool:
    if _STDLIB.search(path):
        return True
    windows = _WINDOWS_STDLIB.search(path)
    return windows is not None and windows[1] in sys.stdlib_module_names


@dataclass(frozen=True, slots=True, eq=False)
class Sites:
    """The distinct sites of a run's stacks."""

    frames: tuple[Frame, ...]
    """Entry 0 is `NO_SITE`."""
    of_stack: npt.NDArray[np.int32]
    """Index into ``frames`` for every stack of the tables."""


def sites(tables: Tables) -> Sites:
    """The site of every stack: its innermost user frame, else the best of what is not hidden."""
    rows = np.zeros(len(tables.stacks), dtype=np.int32)
    index: dict[Frame, int] = {NO_SITE: 0}
    kinds = [_rank(frame) for frame in tables.frames]
    for number, stack in enumerate(tables.stacks):
        # max() keeps the first of equals: the innermost
        best = max(stack, key=kinds.__getitem__) if stack else None
        if best is not None and kinds[best] > FrameKind.HIDDEN:
            rows[number] = index.setdefault(tables.frames[best], len(index))
    return Sites(tuple(index), rows)


def _rank(frame: Frame) -> float:
    kind = frame_kind(frame.filename)
    if kind is FrameKind.NATIVE:
        if _NATIVE_TELLING.search(frame.name):
            return 1.5
        return 0.5 if _NATIVE_NOISE.search(frame.name) else 1.0
    if frame.filename == _EXECUTED:
        return kind - 0.5
    return float(kind)


def short_path(filename: str, parts: int = 2) -> str:
    """The last components of a path of either system: ``models/gpt.py``."""
    return "/".join(filename.replace("\\", "/").split("/")[-parts:])


def site_name(frame: Frame) -> str:
    """``train.py:31 in main``; for C++ the function alone; for no stack ``(no stack recorded)``."""
    if frame == NO_SITE:
        return "(no stack recorded)"
    if frame_kind(frame.filename) is FrameKind.NATIVE:
        return _ARGUMENTS.sub("", frame.name) or "(native code)"
    return f"{short_path(frame.filename)}:{frame.line} in {frame.name}"
