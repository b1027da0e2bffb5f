"""What the texts of out-of-memory errors say, as torch, CUDA and its libraries print them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from memprof.units import parse_bytes

__all__ = ["OomText", "read"]

_HOST = re.compile(r"DefaultCPUAllocator: (?:can't|not enough) .*?(\d+) bytes")
_REQUESTED_SIZE = re.compile(r"Tried to allocate ([0-9.]+ [KMGT]?i?B)")
_DEVICE = re.compile(r"GPU (\d+) has a total capacity of ([0-9.]+ \w+) of which ([0-9.]+ \w+)")
_REJECTED = re.compile(r"Allocation was preemptively rejected")
_REJECTED_SIZE = re.compile(r"Requested size: ([0-9.]+) ?([KMGT]?i?B|bytes)?")
_CALL = re.compile(r"when calling `:*([^`]+)`")
_ASYNCHRONOUS = "asynchronously reported"
"""What torch adds to errors of CUDA that an earlier call may have caused."""

_BESIDE: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("cuBLAS", re.compile(r"CUBLAS_STATUS_ALLOC_FAILED")),
    (
        "cuDNN",
        re.compile(
            r"CUDNN_STATUS_\w*ALLOC(?:ATION)?_FAILED"
            r"|CUDA ran out of memory outside PyTorch's allocator"
        ),
    ),
    ("cuSOLVER", re.compile(r"CUSOLVER_STATUS_ALLOC_FAILED")),
    (
        "cuSPARSE",
        re.compile(
            r"CUSPARSE_STATUS_(?:ALLOC_FAILED|INSUFFICIENT_RESOURCES)"
            r"|CUDA error: [\w ]*(?:out of memory|allocation failed|insufficient resources)"
            r" when calling `:*cusparse"
        ),
    ),
    ("cuFFT", re.compile(r"CUFFT_ALLOC_FAILED")),
    ("NCCL", re.compile(r"(?s)(?:\bNCCL\b|\bnccl[A-Z]\w+).*'?out of memory'?")),
    ("Triton", re.compile(r"Triton Error \[CUDA\]: out of memory")),
    ("the CUDA driver", re.compile(r"CUDA driver error: out of memory|CUDA_ERROR_OUT_OF_MEMORY")),
    ("CUDA", re.compile(r"CUDA error: out of memory|cudaErrorMemoryAllocation")),
)
"""Who asks the driver for memory beside torch's allocator, the most telling first."""


@dataclass(frozen=True, slots=True)
class OomText:
    """What the message of an out-of-memory error says."""

    device: str = ""
    """``cpu`` or ``cuda:0``; empty where the text does not say which of CUDA's."""
    requested: int = 0
    """Bytes; 0 where the text does not say."""
    total: int = 0
    """Bytes of the device; 0 where the text does not say, as the next."""
    free: int = 0
    beside: str = ""
    """Who could not allocate, where it was not torch's allocator: ``cuBLAS``."""
    call: str = ""
    """The function that failed: ``cublasCreate(handle)``; empty where the text does not say."""
    asynchronous: bool = False
    """An earlier call may have caused it: the line that raised it only reports it."""
    rejected: bool = False
    """torch refused before it asked the driver, because of the share that it may have."""

    @property
    def is_torch(self) -> bool:
        """Whether torch's own allocator failed, of which its observer tells."""
        return not self.beside and not self.rejected


def read(text: str) -> OomText | None:
    """What a message says; None where it is of no lack of memory."""
    host = _HOST.search(text)
    if host is not None:
        return OomText("cpu", int(host[1]))
    where = _DEVICE.search(text)
    device = f"cuda:{where[1]}" if where is not None else ""
    total, free = (parse_bytes(where[2]), parse_bytes(where[3])) if where is not None else (0, 0)
    if _REJECTED.search(text) is not None:
        size = _REJECTED_SIZE.search(text)
        request = _bytes(size[1], size[2] or "") if size is not None else 0
        return OomText(device, request, total, free, rejected=True)
    asked_of_torch = _REQUESTED_SIZE.search(text)
    if "out of memory" in text and asked_of_torch is not None:
        return OomText(device, parse_bytes(asked_of_torch[1]), total, free)
    if "CUDA out of memory" in text:
        return OomText(device, 0, total, free)
    for beside, pattern in _BESIDE:
        if pattern.search(text) is not None:
            call = _CALL.search(text)
            return OomText(
                beside=beside,
                call=" ".join(call[1].split()) if call is not None else "",
                asynchronous=_ASYNCHRONOUS in text,
            )
    return None


def _bytes(number: str, unit: str) -> int:
    return parse_bytes(f"{number} {unit}") if unit not in ("", "bytes") else int(float(number))
