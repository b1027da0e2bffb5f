"""Owners of code, told by where a file lies: the user, a library, torch, native code."""

from __future__ import annotations

import enum
import os
import re
import sys
from collections.abc import Sequence
from functools import lru_cache
from itertools import islice

from memprof.trace import Frame

__all__ = ["FrameKind", "frame_kind", "is_copy_module", "is_installed", "is_of_library"]

_PACKAGES = re.compile(r"/(?:site|dist)-packages/([^/]+)")
_STDLIB = re.compile(r"/lib(?:64)?/python\d[^/]*/(?!site-packages|dist-packages)")
_COPY_MODULE = re.compile(r"/lib(?:64)?/(?:python\d[^/]*/)?copy\.py$", re.IGNORECASE)
_WINDOWS_STDLIB = re.compile(r"/[Ll]ib/([A-Za-z_]\w*)(?:\.py$|/)")
_TORCH_TREE = re.compile(r"/torch/(?:[a-z_]+/)*_?[a-z]\w*\.py$")
# What lay elsewhere, recordings of earlier versions name.
_OWN = re.compile(
    r"/memprof/(?:(?:record|dry_run|sources|referrers|cpython|testing|holding)/(?:\w+/)*\w+"
    r"|launch|tracker|autostart|sampler)\.py$|/memprof_cli/"
)
_WRITTEN = re.compile(
    r"/torch_geometric\.[\w.]+\.py$"
    r"|/(?:[Tt][Ee]?[Mm][Pp]|T)/[\w.]+_(?:propagate|edge_updater)_[a-z0-9_]{8}\.py$"
)
"""What PyG writes for each layer, the user's too, into a temporary folder
(``torch_geometric/template.py``): module, class and method, and what `tempfile` adds to a name."""
_NATIVE_FILE = re.compile(r"\.(?:cpp|cc|cxx|c|cu|cuh|h|hpp|inc|S|o|so[.\d]*)$")
_HIDDEN = ("<frozen ", "<__array_function__")
_MOST_ENTRIES = 10_000
"""Of a folder; one with more is full of data, and a job must not wait until all are listed."""


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
    """The kind of code that a file is: by its path, and by what was installed into its folder."""
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
    if _is_stdlib(path):
        return FrameKind.STDLIB
    return FrameKind.LIBRARY if is_installed(path) else FrameKind.USER


def is_installed(path: str) -> bool:
    """Whether an installer put the file there, in a folder of any name (``pip install --target``).

    So counts what an installed library wrote since.

    Told by its list of files beside the package, as far as that lies on this machine. ``path`` has
    slashes, on any machine.
    """
    if _WRITTEN.search(path):
        return True
    folder, _, name = path.rpartition("/")
    while folder:
        lists = _lists_in(folder)
        if lists and _is_listed(name, folder, lists):
            return True
        folder, _, name = folder.rpartition("/")
    return False


@lru_cache(maxsize=4096)
def _lists_in(folder: str) -> tuple[str, ...]:
    """The folders in a folder in which installers wrote down what else they put there."""
    try:
        with os.scandir(folder) as entries:
            first = islice(entries, _MOST_ENTRIES)
            # Not a tuple of a generator: CPython gives up one that grows while another thread has
            # a list of all objects, as a search for holders does.
            names = [one.name for one in first if one.name.endswith(".dist-info")]
            return tuple(names)
    except (OSError, ValueError):  # not here, or not to be read: the path alone has to tell
        return ()


@lru_cache(maxsize=4096)
def _is_listed(name: str, folder: str, lists: tuple[str, ...]) -> bool:
    """Whether a package or a single file is one that was put there; most have its name."""
    plain = name.removesuffix(".py").lower()
    if any(one.partition("-")[0].lower() == plain for one in lists):
        return True
    for one in lists:
        try:
            with open(f"{folder}/{one}/RECORD", encoding="utf-8", errors="replace") as lines:  # noqa: PTH123
                if any(line.startswith((f"{name}/", f"{name},")) for line in lines):
                    return True
        except OSError:
            continue  # a list that is missing lists nothing
    return False


def _is_stdlib(path: str) -> bool:
    if _STDLIB.search(path):
        return True
    windows = _WINDOWS_STDLIB.search(path)
    return windows is not None and windows[1] in sys.stdlib_module_names


def is_copy_module(filename: str) -> bool:
    """Whether a file is Python's own module for copies, in which `deepcopy` runs."""
    return _COPY_MODULE.search(filename.replace("\\", "/")) is not None


def is_of_library(frames: Sequence[Frame]) -> bool:
    """Whether the innermost frame that is not torch's is a library's."""
    kinds = (frame_kind(frame.filename) for frame in frames)
    return next((kind for kind in kinds if kind is not FrameKind.TORCH), None) is FrameKind.LIBRARY
