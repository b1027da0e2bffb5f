"""The texts of out-of-memory errors, as torch 2.4 to 2.15 and the libraries under it print them."""

from __future__ import annotations

import pytest

from memprof.sources.cuda.oom_messages import OomText, read

LATER = (
    "\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace "
    "below might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\nCompile with "
    "`TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
)
SEARCH = (
    "\nSearch for `cudaErrorMemoryAllocation' in https://docs.nvidia.com/cuda/cuda-runtime-api/"
    "group__CUDART__TYPES.html for more information."
)
NCCL = (
    "NCCL error in: /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:3699, unhandled cuda "
    "error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.3\n"
    "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\n"
    "Cuda failure 2 'out of memory'"
)
TEXTS = {
    "CUDA error: out of memory" + LATER: OomText(beside="CUDA", asynchronous=True),
    "CUDA error: out of memory" + SEARCH + LATER: OomText(beside="CUDA", asynchronous=True),
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`": OomText(
        beside="cuBLAS", call="cublasCreate(handle)"
    ),
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasSgemm( handle, opa, opb)`": OomText(
        beside="cuBLAS", call="cublasSgemm( handle, opa, opb)"
    ),
    "cuDNN error: CUDNN_STATUS_ALLOC_FAILED": OomText(beside="cuDNN"),
    "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED": OomText(beside="cuDNN"),
    "CUDA ran out of memory outside PyTorch's allocator. If this workload uses many dynamic shapes, "
    "cuDNN may need additional device memory": OomText(beside="cuDNN"),
    "cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`": OomText(
        beside="cuSOLVER", call="cusolverDnCreate(handle)"
    ),
    "CUDA error: allocation failed when calling `cusparseCreate(handle)`": OomText(
        beside="cuSPARSE", call="cusparseCreate(handle)"
    ),
    "cuFFT error: CUFFT_ALLOC_FAILED": OomText(beside="cuFFT"),
    NCCL: OomText(beside="NCCL"),
    "Triton Error [CUDA]: out of memory": OomText(beside="Triton"),
    "CUDA driver error: out of memory": OomText(beside="the CUDA driver"),
    "cuMemCreate failed: CUDA_ERROR_OUT_OF_MEMORY": OomText(beside="the CUDA driver"),
    "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 3 has a total capacity of 79.11 GiB of "
    "which 1.50 GiB is free.": OomText("cuda:3", 5 << 29, round(79.11 * (1 << 30)), 3 << 29),
    "CUDA out of memory. Allocation was preemptively rejected because it would exceed "
    "per_process_memory_fraction limit. Requested size: 1073741824 bytes": OomText(
        requested=1 << 30, rejected=True
    ),
    "CUDA out of memory. Tried to allocate more than 1EB memory.": OomText(),
    "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 bytes. "
    "Error code 12 (Cannot allocate memory)": OomText("cpu", 4096),
}


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_says_who_could_not_allocate_and_what(text):
    assert read(text) == TEXTS[text]


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: an illegal memory access was encountered" + LATER,
        "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx(handle)`",
        "CUDA error: device-side assert triggered" + LATER,
        "NCCL error in: x.cpp:1, remote process exited or there was a network error",
        "mat1 and mat2 shapes cannot be multiplied (12x7 and 8x3)",
        "the queue of the NCL reader is out of memory slots",
        "",
    ],
)
def test_other_errors_are_no_lack_of_memory(text):
    assert read(text) is None


def test_only_torchs_own_allocator_tells_its_observer():
    assert read("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0").is_torch
    assert not read("CUDA error: out of memory").is_torch
    assert not read("CUDA out of memory. Allocation was preemptively rejected").is_torch
