/* How functions of the driver are found by their name. */
#include "stand_in.h"

#include <dlfcn.h>
#include <stdio.h>

static int answer_success(void) { return 0; }

/* Of a function with several versions the newest is meant, as the headers beside torch have it. */
static void *function_of(const char *name) {
    char versioned[128];
    for (int version = 4; version > 1; version--) {
        snprintf(versioned, sizeof versioned, "%s_v%d", name, version);
        void *found = dlsym(RTLD_DEFAULT, versioned);
        if (found) return found;
    }
    void *found = dlsym(RTLD_DEFAULT, name);
    return found ? found : (void *)answer_success;
}

static cudaError_t entry_point(const char *name, void **function, enum cudaDriverEntryPointQueryResult *status) {
    if (status) *status = cudaDriverEntryPointSuccess;
    return *function = function_of(name), cudaSuccess;
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
    if (status) *status = CU_GET_PROC_ADDRESS_SUCCESS;
    return *function = function_of(name), CUDA_SUCCESS;
}
#endif
#undef cuGetProcAddress
CUresult cuGetProcAddress(const char *name, void **function, int version, cuuint64_t flags) {
    return *function = function_of(name), CUDA_SUCCESS;
}

/* Tables of functions that the runtime within other libraries of NVIDIA shares with their driver. They are not
 * documented and are not there: such a runtime finds no device, and its library does without one. */
CUresult cuGetExportTable(const void **table, const CUuuid *identifier) {
    return *table = NULL, CUDA_ERROR_NOT_SUPPORTED;
}
