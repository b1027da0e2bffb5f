/* NVML, the library behind nvidia-smi, as far as torch and memprof's sampler ask it. */
#include "stand_in.h"

#include <stdio.h>

enum { NVML_SUCCESS = 0, NVML_ERROR_INVALID_ARGUMENT = 2, NVML_ERROR_NOT_SUPPORTED = 3 };
typedef struct {
    unsigned long long total, free, used;
} Memory;

/* A device's handle is its number and one, so that none is NULL. */
static int device_behind(void *handle) { return (int)(uintptr_t)handle - 1; }

int nvmlInit_v2(void) { return NVML_SUCCESS; }
int nvmlInitWithFlags(unsigned int flags) { return NVML_SUCCESS; }
int nvmlShutdown(void) { return NVML_SUCCESS; }
const char *nvmlErrorString(int error) { return error ? "not there in a dry run" : "Success"; }
int nvmlSystemGetDriverVersion(char *version, unsigned int bytes) {
    return snprintf(version, bytes, "dry run"), NVML_SUCCESS;
}
int nvmlDeviceGetCount_v2(unsigned int *number) { return *number = (unsigned)device_count(), NVML_SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **handle) {
    if (index >= (unsigned)device_count()) return NVML_ERROR_INVALID_ARGUMENT;
    return *handle = (void *)(uintptr_t)(index + 1), NVML_SUCCESS;
}
int nvmlDeviceGetIndex(void *handle, unsigned int *index) { return *index = (unsigned)device_behind(handle), NVML_SUCCESS; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **handle) {
    unsigned domain = 0, bus = 0;
    if (sscanf(id, "%x:%x", &domain, &bus) != 2 || !bus || bus > (unsigned)device_count())
        return NVML_ERROR_INVALID_ARGUMENT;
    return *handle = (void *)(uintptr_t)bus, NVML_SUCCESS;
}
int nvmlDeviceGetName(void *handle, char *name, unsigned int bytes) {
    return snprintf(name, bytes, "%s", the_card()->name), NVML_SUCCESS;
}
int nvmlDeviceGetUUID(void *handle, char *uuid, unsigned int bytes) {
    struct cudaDeviceProp properties;
    fill_properties(&properties, device_behind(handle));
    const unsigned char *u = (const unsigned char *)properties.uuid.bytes;
    snprintf(uuid, bytes, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1], u[2],
             u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
    return NVML_SUCCESS;
}
int nvmlDeviceGetMemoryInfo(void *handle, Memory *memory) {
    int device = device_behind(handle);
    if (device < 0 || device >= device_count()) return NVML_ERROR_INVALID_ARGUMENT;
    memory->total = the_card()->total_bytes;
    memory->free = free_bytes(device);
    memory->used = memory->total - memory->free;
    return NVML_SUCCESS;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned int *number, void *processes) {
    return *number = 0, NVML_SUCCESS;
}
int nvmlDeviceGetComputeRunningProcesses(void *handle, unsigned int *number, void *processes) {
    return *number = 0, NVML_SUCCESS;
}
int nvmlSystemGetCudaDriverVersion_v2(int *version) { return *version = CUDA_VERSION, NVML_SUCCESS; }
/* The devices are not connected. */
int nvmlDeviceGetNvLinkRemoteDeviceType(void *handle, unsigned int link, void *type) { return NVML_ERROR_NOT_SUPPORTED; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *handle, unsigned int link, void *pci) { return NVML_ERROR_NOT_SUPPORTED; }
int nvmlDeviceGetGpuFabricInfoV(void *handle, void *information) { return NVML_ERROR_NOT_SUPPORTED; }
