"""Owners of code, told by a file's path alone: the user, a library, torch, native code."""

from __future__ import annotations

import enum
import re
import sys
from functools import lru_cache

__all__ = ["FrameKind", "frame_kind"]

_PACKAGES = re.compile(r"/(?:site|dist)-packages/([^/]+)")
_STDLIB = re.compile(r"/lib(?:64)?/python\d[^/]*/(?!site-packages|dist-packages)")
_WINDOWS_STDLIB = re.compile(r"/[Ll]ib/([A-Za-z_]\w*)(?:\.py$|/)")
_TORCH_TREE = re.compile(r"/torch/(?:[a-z_]+/)*_?[a-z]\w*\.py$")
# What lay elsewhere, recordings of earlier versions name.
_OWN = re.compile(
    r"/memprof/(?:(?:record|sources|referrers|cpython|testing|holding)/(?:\w+/)*\w+"
    r"|launch|tracker|autostart|sampler)\.py$|/memprof_cli/"
)
_NATIVE_FILE = re.compile(r"\.(?:cpp|cc|cxx|c|cu|cuh|h|hpp|inc|S|o|so[.\d]*)$")
_HIDDEN = ("<frozen ", "<__array_function__")


class FrameKind(enum.IntEnum):
    """Distance of a frame from the person who reads the report; higher is nearer."""

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
    """The kind of code that a file is, by its path alone."""
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
