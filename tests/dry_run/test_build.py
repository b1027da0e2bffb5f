"""What the library is built from, and what is said where something is missing."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from memprof.dry_run import build as building
from memprof.dry_run.build import Torch, build, compiler, find_torch
from memprof.dry_run.elf import undefined_symbols
from memprof.errors import MissingError


def torch_in(folder: Path, monkeypatch, *, cuda: bool) -> Path:
    """A folder that is taken for torch's."""
    (folder / "torch" / "lib").mkdir(parents=True)
    (folder / "torch" / "version.py").write_text("__version__ = '2.99.0+cu130'\n")
    if cuda:
        (folder / "torch" / "lib" / "libtorch_cuda.so").write_bytes(b"")
    spec = ModuleSpec("torch", None, origin=str(folder / "torch" / "__init__.py"))
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: spec if name == "torch" else found(name)
    )
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv("CUDA_HOME", raising=False)
    return folder


def test_a_torch_without_cuda_is_told_with_what_to_install(tmp_path, monkeypatch):
    torch_in(tmp_path, monkeypatch, cuda=False)
    with pytest.raises(MissingError, match="built without CUDA") as caught:
        find_torch()
    assert "pip install torch 'cuda-memprof[dry-run]'" in caught.value.hint
    assert "memprof run records what it takes on the CPU" in caught.value.hint


def test_without_any_torch_the_same_is_said(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(sys, "platform", "linux")
    with pytest.raises(MissingError, match="no torch beside memprof") as caught:
        find_torch()
    assert "pip install torch" in caught.value.hint


def test_only_linux_has_dry_runs(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(MissingError, match="Linux only"):
        find_torch()


@pytest.mark.skipif(Path("/usr/local/cuda/include/cuda.h").exists(), reason="has a CUDA toolkit")
def test_headers_that_are_missing_are_named(tmp_path, monkeypatch):
    torch_in(tmp_path, monkeypatch, cuda=True)
    with pytest.raises(MissingError, match=r"cuda_runtime_api\.h") as caught:
        find_torch()
    assert "nvidia-cuda-runtime" in caught.value.hint


def test_headers_beside_torch_are_found(tmp_path, monkeypatch):
    torch_in(tmp_path, monkeypatch, cuda=True)
    include = tmp_path / "nvidia" / "cu13" / "include"
    include.mkdir(parents=True)
    for name in ("cuda_runtime_api.h", "cuda.h", "cuda_occupancy.h"):
        (include / name).write_text("")
    torch = find_torch()
    assert torch.version == "2.99.0+cu130"
    assert torch.includes[0] == include


def test_the_compiler_of_ziglang_comes_first(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: ModuleSpec("ziglang", None))
    monkeypatch.setenv("CC", "mycc")
    assert compiler()[:4] == (sys.executable, "-m", "ziglang", "cc")


def test_a_chosen_compiler_comes_before_those_that_are_found(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    monkeypatch.setenv("CC", "ccache clang")
    assert compiler() == ("ccache", "clang")


def test_without_a_compiler_the_package_that_brings_one_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(MissingError) as caught:
        compiler()
    assert "cuda-memprof[dry-run]" in caught.value.hint


def test_a_compiler_that_fails_is_quoted_and_leaves_nothing(tmp_path, monkeypatch):
    failing = tmp_path / "cc"
    failing.write_text("#!/bin/sh\necho 'x.c:1: error: no such luck' >&2\nexit 1\n")
    failing.chmod(0o755)
    monkeypatch.setattr(building, "compiler", lambda: (str(failing),))
    monkeypatch.setattr(building, "functions_asked_for", lambda _: {"cudaNothing"})
    monkeypatch.setenv("MEMPROF_CACHE", str(tmp_path / "cache"))
    with pytest.raises(MissingError, match="error: no such luck"):
        build(Torch(tmp_path, "2.99", ()))
    assert [
        path
        for path in (tmp_path / "cache").rglob("*")
        if path.name == "libcuda.so.1" and path.is_file()
    ] == []


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_the_symbols_that_a_library_asks_for_are_those_that_it_does_not_define(tmp_path):
    source, library = tmp_path / "a.c", tmp_path / "liba.so"
    source.write_text("int cudaFoo(void); int own(void) { return cudaFoo(); }\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    asked = undefined_symbols(library)
    assert "cudaFoo" in asked
    assert "own" not in asked


def test_a_file_that_is_no_library_is_refused(tmp_path):
    text = tmp_path / "libtext.so"
    text.write_text("INPUT(-lcuda)" * 20)
    with pytest.raises(ValueError, match="no shared library"):
        undefined_symbols(text)
