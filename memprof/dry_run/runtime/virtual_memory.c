/* The driver's virtual memory, on which torch builds expandable segments.
 *
 * A range of addresses is reserved, which costs nothing; memory is created, which is charged, and
 * mapped into the range. Mapping itself has nothing to do here: every address can be read. */
#include "stand_in.h"

typedef struct {
    size_t bytes;
    int device;
} Physical;

CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *properties,
                                       CUmemAllocationGranularity_flags option) {
    return *bytes = PAGE, CUDA_SUCCESS;
}
CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t bytes, size_t alignment, CUdeviceptr wished,
                             unsigned long long flags) {
    void *found = take_addresses(current_device(), bytes, 0);
    *pointer = (CUdeviceptr)found;
    return found ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult cuMemAddressFree(CUdeviceptr pointer, size_t bytes) {
    return give_addresses_back((void *)pointer) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *properties,
                     unsigned long long flags) {
    /* Memory of the host, which torch's pinned allocator may create as well, is no device's. */
    int device = properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE ? properties->location.id : -1;
    if (device >= device_count()) return CUDA_ERROR_INVALID_DEVICE;
    if (device >= 0 && !charge(device, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    Physical *physical = malloc(sizeof *physical);
    if (!physical) return CUDA_ERROR_OUT_OF_MEMORY;
    *physical = (Physical){bytes, device};
    return *handle = (CUmemGenericAllocationHandle)(uintptr_t)physical, CUDA_SUCCESS;
}
CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    Physical *physical = (Physical *)(uintptr_t)handle;
    if (physical->device >= 0) discharge(physical->device, physical->bytes);
    return free(physical), CUDA_SUCCESS;
}
CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
    return CUDA_SUCCESS;
}
CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes) {
    return forget_values((void *)pointer, bytes), CUDA_SUCCESS;
}
CUresult cuMemSetAccess(CUdeviceptr pointer, size_t bytes, const CUmemAccessDesc *access, size_t number) {
    return CUDA_SUCCESS;
}
