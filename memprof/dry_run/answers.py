"""What functions of CUDA answer that the library has no code for: "success", or a refusal by name.

"Success" is given only where that is all there is to be done: each such group has its reason here.
What else a program calls gets its library's code for "not supported", and its name is said: a
caller that took an answer for success would go on with whatever lay where it should have been
written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["HARMLESS", "is_harmless", "refusal_of"]

HARMLESS: Mapping[str, str] = MappingProxyType(
    {
        # Products, factors, transforms, layers: kernels write all of the result on the device.
        "computes on the device": r"""
            cublas(?!Create)(?:[SDCZH][a-z]\w*|I[sdcz]am(?:ax|in)\w*|(?:Gemm|Dot|Dotc|Nrm2|Axpy|Scal|Rot)\w*Ex)
            cublasLtMatmul|cublasLtMatrixTransform|cublasUint8gemmBias
            cusolver(?:Dn|Sp|Rf)[SDCZX](?!gesvdjGet)[a-z]\w*
            cusparse[SDCZX](?:bsr|csr|coo|csc|ge)\w*|cusparseXcsrsort|cusparseCreateIdentityPermutation
            cusparse(?:Sp|SD)(?:MM|MV|SM|SV|DMM|GEMM)(?:_(?:preprocess|analysis|solve|compute|copy|updateMatrix))?
            cusparse(?:SparseToDense|DenseToSparse)_(?:convert|analysis)|cusparse(?:Axpby|Gather|Scatter|Rot|SpVV)
            cusparseLtMatmul|cusparseLtMatmulSearch|cusparseLtSpMMA?(?:Compress|Prune)2?
            cufft(?:Xt)?Exec\w*
            cudnn\w+(?:Forward|Backward)\w*|cudnnCTCLoss(?:_v8)?|cudnn(?:AddTensor|OpTensor|ReduceTensor|
            ScaleTensor|SetTensor|TransformTensor|TransformFilter|Im2Col)
            curandGenerate\w*
            ncclPutSignal|ncclSignal|ncclWaitSignal
        """,
        # Handles' and descriptors' settings, for which the functions that get them do not ask.
        "sets what decides nothing here": r"""
            (?:cublas|cusolver|cusparse|cufft|cudnn|curand)\w*Set\w*|cusolverDnXgesvdjSet\w+
            cudaFuncSet\w+|cudaDeviceSet(?:CacheConfig|Limit|SharedMemConfig|GraphMemAttribute)|cudaCtxResetPersistingL2Cache
            cudaDeviceEnablePeerAccess|cudaDeviceDisablePeerAccess|cudaMemPoolSetAccess|cudaMemPoolTrimTo
            cudaStreamSetAttribute|cudaStreamCopyAttributes|cudaKernelSetAttributeForDevice
            cudaMemAdvise\w*|cudaMemPrefetchAsync\w*|cudaThreadExchangeStreamCaptureMode|cudaStreamAttachMemAsync
            cuFuncSet\w+|cuKernelSet\w+|cuCtxSet(?:Limit|CacheConfig|SharedMemConfig|Flags)|cuCtxEnablePeerAccess
            cuCtxDisablePeerAccess|cuStreamSetAttribute|cuMemPoolSetA\w+|cuMemPoolTrimTo|cuMemAdvise\w*
            cuDevicePrimaryCtxSetFlags\w*|cuThreadExchangeStreamCaptureMode
            cuLaunchCooperativeKernel|cuLinkAdd(?:Data|File)\w*|cuTensorMap(?:Encode|Replace)\w+
        """,
        # A handle or a descriptor that is only handed back to functions which do not look into it.
        "makes what nobody looks into": r"""
            (?:cublasLt|cusolver|cusparse|cufft|curand)\w*(?:Create|CreateDescr|create[A-Z]\w*)\w*
            cublasLt(?:MatmulDesc|MatrixLayout|MatmulPreference|MatrixTransformDesc)Init\w*
            cublasLtMatmulAlgo(?:Init|Check)
            cuLogs(?:Unr|R)egisterCallback
            cusparseLt\w*Init|cudnn(?:Restore\w+|SetRNN\w+)
        """,
        # What the host keeps for it is nothing, or stays until the process ends.
        "ends what holds nothing": r"""
            (?:cublas|cusolver|cusparse|cufft|cudnn|curand)\w*(?:Destroy|destroy)\w*
            cuda(?:Graph|GraphExec|Array|MipmappedArray|ExternalMemory|ExternalSemaphore)Destroy|cudaUserObjectRelease
            cudaGraphRetainUserObject|cudaLibraryUnload|cudaIpcCloseMemHandle|cudaProfiler(?:Start|Stop)|cuProfiler(?:Start|Stop)
            cuModuleUnload|cuLibraryUnload|cuLinkDestroy|cuDevicePrimaryCtx(?:Release|Reset)\w*|cuCtxSynchronize\w*
            cuGraph(?:Exec)?Destroy|cuUserObjectRelease|cuGraphRetainUserObject
            ncclCommDeregister|ncclCommWindowDeregister|ncclDevCommDestroy|ncclRedOpDestroy
            nvmlShutdown|cuFile(?:Buf|Handle)Deregister
        """,
        # nvcc's code registers what a program has; kernels are registered elsewhere.
        "is registered and never asked for": r"""
            __cudaRegister(?:FatBinaryEnd|ManagedVar|Surface|Texture|HostVar)|__cudaUnregisterFatBinary
        """,
    }
)
"""Patterns of names, by the reason why "success" is the whole answer."""

_HARMLESS = re.compile("|".join("|".join(text.split()) for text in HARMLESS.values()))

_REFUSALS = (
    (re.compile(r"cudnn"), "CUDNN_STATUS_NOT_SUPPORTED", 3000),
    (re.compile(r"cublas"), "CUBLAS_STATUS_NOT_SUPPORTED", 15),
    (re.compile(r"cusolver"), "CUSOLVER_STATUS_NOT_SUPPORTED", 9),
    (re.compile(r"cusparse"), "CUSPARSE_STATUS_NOT_SUPPORTED", 10),
    (re.compile(r"cufft"), "CUFFT_NOT_SUPPORTED", 16),
    (re.compile(r"curand"), "CURAND_STATUS_INTERNAL_ERROR", 999),
    (re.compile(r"cupti"), "CUPTI_ERROR_NOT_SUPPORTED", 27),
    (re.compile(r"cuFile"), "CU_FILE_DRIVER_NOT_INITIALIZED", 5001),
    (re.compile(r"nvrtc"), "NVRTC_ERROR_INTERNAL_ERROR", 11),
    (re.compile(r"nvml"), "NVML_ERROR_NOT_SUPPORTED", 3),
    (re.compile(r"nccl"), "ncclInvalidUsage", 5),
    (re.compile(r"(?:__)?cuda"), "cudaErrorNotSupported", 801),
    (re.compile(r""), "CUDA_ERROR_NOT_SUPPORTED", 801),
)


def is_harmless(name: str) -> bool:
    """Whether a function that does nothing and answers "success" does all that its caller needs."""
    return _HARMLESS.fullmatch(name) is not None


def refusal_of(name: str) -> tuple[str, int]:
    """How the function's library says "not supported": the name of the code, and its number."""
    return next((code, number) for pattern, code, number in _REFUSALS if pattern.match(name))
