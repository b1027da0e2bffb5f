/* Devices: how many, which one is current, their properties and attributes. */
#include "stand_in.h"

#include <stdio.h>

static __thread int current = 0;

int current_device(void) { return current; }

cudaError_t cudaGetDeviceCount(int *number) {
    *number = device_count();
    return *number ? cudaSuccess : fail(cudaErrorNoDevice);
}
cudaError_t cudaGetDevice(int *device) { return *device = current, cudaSuccess; }
cudaError_t cudaSetDevice(int device) {
    if (device < 0 || device >= device_count()) return fail(cudaErrorInvalidDevice);
    current = device;
    return cudaSuccess;
}
cudaError_t cudaInitDevice(int device, unsigned int device_flags, unsigned int flags) {
    return device < 0 || device >= device_count() ? fail(cudaErrorInvalidDevice) : cudaSuccess;
}

/* Fields that every CUDA from 11 to 13 has; the struct's layout is that of the headers beside torch. */
void fill_properties(struct cudaDeviceProp *p, int device) {
    const Card *card = the_card();
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "%s", card->name);
    memcpy(p->uuid.bytes, "memprof dry run", 15);
    p->uuid.bytes[15] = (char)device;
    p->totalGlobalMem = card->total_bytes;
    p->major = card->major;
    p->minor = card->minor;
    p->multiProcessorCount = card->multiprocessors;
    p->maxThreadsPerMultiProcessor = card->threads_per_multiprocessor;
    p->maxBlocksPerMultiProcessor = card->blocks_per_multiprocessor;
    p->regsPerMultiprocessor = card->registers_per_multiprocessor;
    p->regsPerBlock = 65536;
    p->sharedMemPerMultiprocessor = card->shared_bytes_per_multiprocessor;
    p->sharedMemPerBlockOptin = card->shared_bytes_per_block_optin;
    p->reservedSharedMemPerBlock = card->shared_bytes_reserved_per_block;
    p->sharedMemPerBlock = 48 << 10;
    p->l2CacheSize = (int)card->l2_bytes;
    p->integrated = card->integrated;
    p->warpSize = 32;
    p->maxThreadsPerBlock = 1024;
    p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024, p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = 2147483647, p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->memPitch = 2147483647;
    p->totalConstMem = 65536;
    p->textureAlignment = 512;
    p->texturePitchAlignment = 32;
    p->canMapHostMemory = p->concurrentKernels = p->unifiedAddressing = 1;
    p->managedMemory = p->concurrentManagedAccess = p->computePreemptionSupported = 1;
    p->cooperativeLaunch = p->streamPrioritiesSupported = 1;
    p->globalL1CacheSupported = p->localL1CacheSupported = 1;
    p->asyncEngineCount = 2;
    p->pciBusID = device + 1;
}
#undef cudaGetDeviceProperties
cudaError_t cudaGetDeviceProperties_v2(struct cudaDeviceProp *properties, int device) {
    if (device < 0 || device >= device_count()) return fail(cudaErrorInvalidDevice);
    fill_properties(properties, device);
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device) {
    return cudaGetDeviceProperties_v2(properties, device);
}

int device_attribute(int which, int device) {
    struct cudaDeviceProp p;
    fill_properties(&p, device);
    switch (which) {
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: return p.maxThreadsPerBlock;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X: return p.maxThreadsDim[0];
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y: return p.maxThreadsDim[1];
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z: return p.maxThreadsDim[2];
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X: return p.maxGridSize[0];
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y: return p.maxGridSize[1];
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z: return p.maxGridSize[2];
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: return (int)p.sharedMemPerBlock;
    case CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY: return (int)p.totalConstMem;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: return p.warpSize;
    case CU_DEVICE_ATTRIBUTE_MAX_PITCH: return (int)p.memPitch;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK: return p.regsPerBlock;
    case CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT: return (int)p.textureAlignment;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: return p.multiProcessorCount;
    case CU_DEVICE_ATTRIBUTE_INTEGRATED: return p.integrated;
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY: return 1;
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS: return 1;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: return p.pciBusID;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: return p.l2CacheSize;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: return p.maxThreadsPerMultiProcessor;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT: return p.asyncEngineCount;
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING: return 1;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: return p.major;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: return p.minor;
    case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED: return 1;
    case CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED: return 1;
    case CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED: return 1;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: return (int)p.sharedMemPerMultiprocessor;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR: return p.regsPerMultiprocessor;
    case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY: return 1;
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS: return 1;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED: return 1;
    case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH: return 1;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: return (int)p.sharedMemPerBlockOptin;
    case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED: return 1;
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: return 1;
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED: return 1;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR: return p.maxBlocksPerMultiProcessor;
    case CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK: return (int)p.reservedSharedMemPerBlock;
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED: return 1;
    default: return 0; /* what a card may have and this one has not */
    }
}
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr which, int device) {
    if (device < 0 || device >= device_count()) return fail(cudaErrorInvalidDevice);
    return *value = device_attribute((int)which, device), cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char *text, int bytes, int device) {
    return snprintf(text, (size_t)bytes, "0000:%02x:00.0", device + 1), cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    return *least = 0, *greatest = -5, cudaSuccess;
}
cudaError_t cudaDeviceGetLimit(size_t *value, enum cudaLimit limit) {
    return *value = limit == cudaLimitStackSize ? 1024 : limit == cudaLimitMallocHeapSize ? 8 * MIB : 0, cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) { return *can = device != peer, cudaSuccess; }

cudaError_t cudaDriverGetVersion(int *version) { return *version = CUDA_VERSION, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int *version) { return *version = CUDART_VERSION, cudaSuccess; }

/* -- the driver's names for the same ------------------------------------------------------------- */

CUresult cuInit(unsigned int flags) { return device_count() ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE; }
CUresult cuDriverGetVersion(int *version) { return *version = CUDA_VERSION, CUDA_SUCCESS; }
CUresult cuDeviceGetCount(int *number) { return *number = device_count(), CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice *device, int number) {
    if (number < 0 || number >= device_count()) return CUDA_ERROR_INVALID_DEVICE;
    return *device = number, CUDA_SUCCESS;
}
CUresult cuDeviceGetName(char *name, int bytes, CUdevice device) {
    return snprintf(name, (size_t)bytes, "%s", the_card()->name), CUDA_SUCCESS;
}
CUresult cuDeviceTotalMem(size_t *bytes, CUdevice device) { return *bytes = the_card()->total_bytes, CUDA_SUCCESS; }
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute which, CUdevice device) {
    if (device < 0 || device >= device_count()) return CUDA_ERROR_INVALID_DEVICE;
    return *value = device_attribute((int)which, device), CUDA_SUCCESS;
}

/* One context a device, the primary one: its handle is the device's number and one. */
CUresult cuCtxGetCurrent(CUcontext *context) {
    return *context = (CUcontext)(uintptr_t)(current + 1), CUDA_SUCCESS;
}
CUresult cuCtxGetDevice(CUdevice *device) { return *device = current, CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext context) {
    uintptr_t number = (uintptr_t)context;
    if (number && number <= (uintptr_t)device_count()) current = (int)number - 1;
    return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    if (device < 0 || device >= device_count()) return CUDA_ERROR_INVALID_DEVICE;
    return *context = (CUcontext)(uintptr_t)(device + 1), CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active) {
    return *flags = 0, *active = has_context(device), CUDA_SUCCESS;
}
CUresult cuDeviceGetPCIBusId(char *text, int bytes, CUdevice device) {
    return cudaDeviceGetPCIBusId(text, bytes, device), CUDA_SUCCESS;
}
CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device) {
    struct cudaDeviceProp p;
    fill_properties(&p, device);
    return memcpy(uuid->bytes, p.uuid.bytes, sizeof uuid->bytes), CUDA_SUCCESS;
}
CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device) {
    return *major = the_card()->major, *minor = the_card()->minor, CUDA_SUCCESS;
}
CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) { return *can = device != peer, CUDA_SUCCESS; }

/* The contexts that a thread has put aside. */
#define MOST_ASIDE 64
static __thread int aside[MOST_ASIDE], number_aside;
CUresult cuCtxPushCurrent(CUcontext context) {
    if (number_aside == MOST_ASIDE) return CUDA_ERROR_OUT_OF_MEMORY;
    aside[number_aside++] = current;
    return cuCtxSetCurrent(context);
}
CUresult cuCtxPopCurrent(CUcontext *context) {
    if (!number_aside) return CUDA_ERROR_INVALID_CONTEXT;
    if (context) *context = (CUcontext)(uintptr_t)(current + 1);
    return current = aside[--number_aside], CUDA_SUCCESS;
}
CUresult cuCtxGetFlags(unsigned int *flags) { return *flags = 0, CUDA_SUCCESS; }
CUresult cuCtxGetApiVersion(CUcontext context, unsigned int *version) { return *version = 3020, CUDA_SUCCESS; }
CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    return *least = 0, *greatest = -5, CUDA_SUCCESS;
}
CUresult cuCtxGetLimit(size_t *value, CUlimit limit) {
    return cudaDeviceGetLimit(value, (enum cudaLimit)limit), CUDA_SUCCESS;
}
