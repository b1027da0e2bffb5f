"""What functions of CUDA without code of the library's own answer, and how a crash is told."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from memprof.dry_run.answers import HARMLESS, is_harmless, refusal_of
from memprof.dry_run.build import build, find_torch, functions_linked
from memprof.dry_run.prototypes import HANDS_OUT_SIZES

NOT_STOOD_IN_FOR = {
    # GPUDirect Storage, nodes of graphs that decide, libraries of kernels, NCCL's device API
    "cuFileBufRegister",
    "cuFileHandleRegister",
    "cuFileRead",
    "cuFileWrite",
    "cudaGraphAddNode",
    "cudaGraphConditionalHandleCreate",
    "cudaGraphDebugDotPrint",
    "cudaLibraryGetGlobal",
    "cudaLibraryGetKernel",
    "cudaLibraryGetKernelCount",
    "cudaLibraryGetManaged",
    "cudaLibraryGetUnifiedFunction",
    "cudaLibraryLoadData",
    "cudaLibraryLoadFromFile",
    "cudaStreamBeginCaptureToGraph",
    "cudaStreamUpdateCaptureDependencies",
    "ncclDevCommCreate",
    "ncclGetLsaMultimemDevicePointer",
    "ncclGetPeerDevicePointer",
    "ncclWinGetUserPtr",
}
"""Of those that torch links with, all that a program is told of when it calls them."""

SYMBOL = re.compile(r" T (\w+)$", re.MULTILINE)
"""Weak ones, which have no code of their own, are marked W."""


def symbols_of(library: Path) -> str:
    words = ["nm", "-D", "--defined-only", str(library)]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


PROGRAM = """\
import ctypes, sys
import torch

torch.ones(3, device="cuda")
cuda = ctypes.CDLL(None)
for name in sys.argv[1:]:
    if name == "crash":
        ctypes.string_at(8)
    elif name == "cudaMemGetInfo":
        cuda.cudaMemGetInfo(None, None)
    else:
        print(getattr(cuda, name)(0), getattr(cuda, name)(0))
"""


@pytest.mark.parametrize(
    "name",
    [
        *("cublasSgemm_v2", "cublasGemmEx", "cublasLtMatmul", "cusolverDnSgetrf", "cusparseSpMM"),
        *("cudnnRNNForward", "cudnnSetStream", "cudaFuncSetAttribute", "cudaGraphDestroy"),
        *("cufftXtExec", "__cudaRegisterFatBinaryEnd", "cudaProfilerStart", "cuModuleUnload"),
    ],
)
def test_what_computes_sets_or_ends_may_answer_success(name):
    assert is_harmless(name)


@pytest.mark.parametrize(
    "name",
    [
        *("cublasGetStream_v2", "cublasCreate_v2", "cusolverDnXgesvdjGetSweeps", "cudnnGetStream"),
        *("cudaGetSymbolAddress", "cudaIpcGetMemHandle", "cuMemAlloc_v2", "cuMemFree_v2"),
        *("cuModuleGetGlobal_v2", "cudaGraphAddNode", "cuFileRead", "ncclGetPeerDevicePointer"),
    ],
)
def test_what_its_caller_reads_something_from_may_not(name):
    assert not is_harmless(name)


def test_each_library_refuses_in_its_own_code():
    assert refusal_of("cudnnFoo") == ("CUDNN_STATUS_NOT_SUPPORTED", 3000)
    assert refusal_of("cublasFoo") == ("CUBLAS_STATUS_NOT_SUPPORTED", 15)
    assert refusal_of("cudaFoo") == ("cudaErrorNotSupported", 801)
    assert refusal_of("__cudaFoo") == ("cudaErrorNotSupported", 801)
    assert refusal_of("cuFileFoo") == ("CU_FILE_DRIVER_NOT_INITIALIZED", 5001)
    assert refusal_of("cuFoo") == ("CUDA_ERROR_NOT_SUPPORTED", 801)


def test_each_group_says_why_success_is_the_whole_answer():
    assert all(len(reason.split()) > 2 for reason in HARMLESS)


@pytest.mark.skipif(shutil.which("nm") is None, reason="needs nm")
def test_every_function_that_torch_links_with_has_code_or_a_reason(environment):
    torch = find_torch()
    own = set(SYMBOL.findall(symbols_of(build(torch))))
    rest = {
        name
        for name in functions_linked(torch) - own
        if not is_harmless(name) and not HANDS_OUT_SIZES.match(name)
    }
    assert rest - NOT_STOOD_IN_FOR == set()
    assert "cudaMalloc" in own


def test_a_function_that_is_not_stood_in_for_says_its_name_once(dry_run, tmp_path):
    (tmp_path / "calls.py").write_text(PROGRAM)
    words = ["--gpu", "t4", "--no-record", sys.executable, "calls.py", "cudaGraphAddEmptyNode"]
    done = dry_run(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["801", "801"]
    assert done.stderr == (
        "memprof dry-run: cudaGraphAddEmptyNode is not stood in for: it answers cudaErrorNotSupported\n"
    )


def test_the_report_and_the_answer_name_it_too(dry_run, tmp_path):
    (tmp_path / "calls.py").write_text(PROGRAM + "raise SystemExit(4)\n")
    words = ["--gpu", "t4", "-o", "run.json", "--json", "calls.py", "cudaGraphAddEmptyNode"]
    done = dry_run(*words, cwd=tmp_path)
    assert done.returncode == 4, done.stderr
    told = json.loads(done.stdout[done.stdout.index("{") :])
    assert told["not_stood_in_for"] == [
        "cudaGraphAddEmptyNode is not stood in for: it answers cudaErrorNotSupported"
    ]
    assert any(
        "not stood in for" in line and "cudaGraphAddEmptyNode" in line for line in told["not_seen"]
    )
    done = dry_run(
        "--gpu", "t4", "-o", "run.json", "calls.py", "cudaGraphAddEmptyNode", cwd=tmp_path
    )
    said = " ".join(done.stdout.split())
    assert "the program ended with status 4; cudaGraphAddEmptyNode is not stood in for" in said


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["cudaGraphAddEmptyNode", "crash"],
            "call of CUDA was cudaGraphAddEmptyNode, which is not st",
        ),
        (
            ["cudaMemGetInfo"],
            "the library that stands in for CUDA crashed (SIGSEGV) in cudaMemGetI",
        ),
    ],
)
def test_a_crash_is_an_error_that_names_the_last_function_of_cuda(dry_run, tmp_path, words, told):
    (tmp_path / "calls.py").write_text(PROGRAM)
    done = dry_run("--gpu", "t4", "-o", "run.json", "calls.py", *words, cwd=tmp_path)
    assert done.returncode == 1
    assert told in " ".join(done.stderr.split("error:")[-1].split())
    assert "please report it" in " ".join(done.stderr.split())


def test_a_crash_far_from_cuda_is_the_programs_own(dry_run, tmp_path):
    (tmp_path / "crash.py").write_text("import ctypes\nctypes.string_at(8)\n")
    words = ["--gpu", "t4", "--no-record", sys.executable, "crash.py"]
    done = dry_run(*words, cwd=tmp_path)
    assert done.returncode == -11
    assert "memprof" not in done.stderr
