"""The native part of the recorder: code in C++, built for the torch that is there.

It is never needed. Without it the CPU is watched by a dispatch mode, and CUDA through snapshots of
torch's recorder. It is built when it is first asked for, kept in a folder of the user's for each
version of torch and Python, and used from then on wherever it is found.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from memprof.errors import MissingError, SettingsError

__all__ = ["available", "build", "folder", "has_cuda", "is_loaded", "is_wanted", "load"]

NAME = "memprof_native"
_SOURCES = Path(__file__).parent
_LONGEST_S = 300
_ON, _OFF = ("1", "on", "true", "yes"), ("0", "off", "false", "no")

_loaded: dict[str, ModuleType] = {}


def is_wanted(setting: bool | None = None) -> bool | None:
    """Whether the native part is to be used: True also builds it, None uses what is built.

    ``setting`` is what the caller chose; else the variable ``MEMPROF_NATIVE`` decides.

    Raises:
        SettingsError: the variable says neither yes nor no.
    """
    if setting is not None:
        return setting
    value = os.environ.get("MEMPROF_NATIVE", "").strip().lower()
    if not value:
        return None
    if value in _ON:
        return True
    if value in _OFF:
        return False
    raise SettingsError(f"MEMPROF_NATIVE={value!r} says neither yes nor no", "give 1 or 0")


def folder() -> Path:
    """Where the build for this torch and this Python lies, or would lie.

    Under ``MEMPROF_CACHE``, or the user's folder for caches.
    """
    import torch

    parts = [torch.__version__, str(torch.version.git_version), str(torch.version.cuda)]
    parts.append(str(importlib.machinery.EXTENSION_SUFFIXES[0]))  # Python's version, the platform
    digest = hashlib.sha256("\0".join(parts).encode())
    # By their ends: to match names against a pattern takes three milliseconds of a first start.
    sources = [path for path in _SOURCES.iterdir() if path.name.endswith((".cpp", ".h"))]
    for source in sorted([*sources, _SOURCES / "build.py"]):
        digest.update(source.read_bytes())
    return _all_builds() / digest.hexdigest()[:16]


def _all_builds() -> Path:
    caches = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    root = os.environ.get("MEMPROF_CACHE") or str(Path(caches) / "memprof")
    return Path(root) / "native"


def available(name: str = NAME) -> bool:
    """Whether a part is built for this torch."""
    return name in _loaded or _library(name) is not None


def load(name: str = NAME) -> ModuleType | None:
    """A part that is built, loaded; None where it is not.

    Raises:
        ImportError: it is built, and this process cannot load it.
    """
    if name not in _loaded:
        path = _library(name)
        if path is None:
            return None
        import torch  # noqa: F401 - its libraries are what the part is linked with

        loader = importlib.machinery.ExtensionFileLoader(name, str(path))
        spec = importlib.util.spec_from_file_location(name, path, loader=loader)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
        _loaded[name] = module
    return _loaded[name]


def is_loaded() -> bool:
    """Whether this process has loaded the part."""
    return NAME in _loaded


def has_cuda() -> bool:
    """Whether the part that is built also records CUDA; False where none is built."""
    part = load()
    return part is not None and hasattr(part, "cuda_attach")


def build() -> Path:
    """Compile the native part, unless it was before; the folder that it lies in.

    It takes ten to twenty seconds, in a process of its own: nothing is imported here.

    Raises:
        MissingError: there is no compiler, no setuptools, or torch's headers do not compile.
    """
    place = folder()
    if available():
        return place
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _alone(place), tempfile.TemporaryDirectory(dir=place) as scratch:
        if available():  # another process of the job was first
            return place
        command = [sys.executable, str(_SOURCES / "build.py"), scratch]
        try:
            process = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=_LONGEST_S,
                check=False,
                # The child is to record nothing, whatever this process records.
                env={**os.environ, "MEMPROF": "0"},
            )
            output = process.stderr or process.stdout
        except (OSError, subprocess.TimeoutExpired) as error:
            output = str(error)
        for library in Path(scratch).glob("*.so"):
            library.replace(place / library.name)
    if not available():
        raise MissingError(
            f"the native part could not be built: {_last_line(output)}",
            "it takes a C++ compiler (g++ or clang++), Python's headers and setuptools; "
            "without it memprof records through torch's own hooks",
        )
    return place


@contextmanager
def _alone(place: Path) -> Iterator[None]:
    """Inside, no other process builds the same: the ranks of a job all begin at once."""
    try:
        import fcntl
    except ImportError:  # not on Windows: there each builds its own, the last one stays
        yield
        return
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _library(name: str) -> Path | None:
    if not _all_builds().is_dir():
        return None  # as on most machines: to name the one for this torch takes two milliseconds
    path = folder() / f"{name}.so"
    try:
        owner = path.stat().st_uid
    except OSError:
        return None
    # A library runs as whoever loads it: what somebody else put there is not loaded.
    return path if not hasattr(os, "getuid") or owner in (os.getuid(), 0) else None


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or ["the compiler said nothing"])[0][:300]
