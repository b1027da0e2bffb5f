/* How functions of the driver are found by their name. */
#include "stand_in.h"

#include <dlfcn.h>
#include <stdio.h>

/* Of a function with several versions the newest is meant, as the headers beside torch have it. NULL of one that
 * these headers do not have: a driver of their age would not know it either. */
static void *function_of(const char *name) {
    char versioned[128];
    for (int version = 4; version > 1; version--) {
        snprintf(versioned, sizeof versioned, "%s_v%d", name, version);
        void *found = dlsym(RTLD_DEFAULT, versioned);
        if (found) return found;
    }
    return dlsym(RTLD_DEFAULT, name);
}

static cudaError_t entry_point(const char *name, void **function, enum cudaDriverEntryPointQueryResult *status) {
    *function = function_of(name);
    if (status) *status = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return *function || status ? cudaSuccess : fail(cudaErrorSymbolNotFound);
}
#undef cudaGetDriverEntryPoint
cudaError_t cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags,
                                    enum cudaDriverEntryPointQueryResult *status) {
    return entry_point(name, function, status);
}
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned int version,
                                             unsigned long long flags, enum cudaDriverEntryPointQueryResult *status) {
    return entry_point(name, function, status);
}
/* CUDA 12 gave the driver's a fifth parameter and a new name for it; the bare name kept four. */
#if CUDA_VERSION >= 12000
CUresult cuGetProcAddress_v2(const char *name, void **function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status) {
    *function = function_of(name);
    if (status) *status = *function ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
#endif
#undef cuGetProcAddress
CUresult cuGetProcAddress(const char *name, void **function, int version, cuuint64_t flags) {
    *function = function_of(name);
    return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/* Tables of functions that the runtime within other libraries of NVIDIA shares with their driver. They are not
 * documented and are not there: such a runtime finds no device, and its library does without one. */
CUresult cuGetExportTable(const void **table, const CUuuid *identifier) {
    return *table = NULL, CUDA_ERROR_NOT_SUPPORTED;
}
