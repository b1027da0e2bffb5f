/* Memory and events that one process gives to another.
 *
 * A handle carries what the other process needs to know: it gets addresses of its own, of the same
 * size, for memory that stays charged to the process that allocated it. Values are not shared. */
#include "stand_in.h"

typedef struct {
    size_t bytes;
    int device;
} Shared; /* at the beginning of the 64 bytes of a handle */

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *pointer) {
    Shared shared = {piece_bytes(pointer), device_of(pointer)};
    if (!shared.bytes) return fail(cudaErrorInvalidValue);
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &shared, sizeof shared);
    return cudaSuccess;
}
cudaError_t cudaIpcOpenMemHandle(void **pointer, cudaIpcMemHandle_t handle, unsigned int flags) {
    Shared shared;
    memcpy(&shared, &handle, sizeof shared);
    if (!shared.bytes || shared.device < 0 || shared.device >= device_count()) return fail(cudaErrorInvalidValue);
    *pointer = take_addresses(shared.device, shared.bytes, 0);
    return *pointer ? cudaSuccess : fail(cudaErrorMemoryAllocation);
}
cudaError_t cudaIpcCloseMemHandle(void *pointer) {
    return give_addresses_back(pointer) ? cudaSuccess : fail(cudaErrorInvalidValue);
}
cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t *handle, cudaEvent_t event) {
    return memset(handle, 0, sizeof *handle), cudaSuccess;
}
/* What the other process asked of its streams has happened. */
cudaError_t cudaIpcOpenEventHandle(cudaEvent_t *event, cudaIpcEventHandle_t handle) {
    return cudaEventCreateWithFlags(event, 0);
}
