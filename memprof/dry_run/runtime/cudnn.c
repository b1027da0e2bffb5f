/* cuDNN: descriptors, plans and sizes, as far as convolutions, norms and attention need them.
 *
 * How much workspace the real library takes depends on the engine that its heuristics choose for a
 * card, which only the library knows: here every plan takes none. How often that was asked is
 * counted, so that a report can say that peaks may be higher. Recurrent nets, whose weights the
 * library itself lays out, are refused. */
#include "stand_in.h"

/* cuDNN's headers lie beside every torch with CUDA from 2.1 on; without them it is not there. */
#if __has_include(<cudnn.h>)
#include <cudnn.h>

static unsigned long long sizes_asked;
unsigned long long memprof_dry_run_cudnn_sizes(void) { return sizes_asked; }

static cudnnStatus_t unknown_size(size_t *bytes) {
    __atomic_fetch_add(&sizes_asked, 1, __ATOMIC_RELAXED);
    return *bytes = 0, CUDNN_STATUS_SUCCESS;
}

size_t cudnnGetVersion(void) { return CUDNN_VERSION; }
cudnnStatus_t cudnnGetProperty(libraryPropertyType which, int *value) {
    *value = which == MAJOR_VERSION ? CUDNN_MAJOR : which == MINOR_VERSION ? CUDNN_MINOR : CUDNN_PATCHLEVEL;
    return CUDNN_STATUS_SUCCESS;
}
size_t cudnnGetCudartVersion(void) { return CUDART_VERSION; }
const char *cudnnGetErrorString(cudnnStatus_t status) {
    if (status == CUDNN_STATUS_SUCCESS) return "CUDNN_STATUS_SUCCESS";
    return "not simulated in a dry run: recurrent nets of cuDNN (set torch.backends.cudnn.enabled = False)";
}
void cudnnGetLastErrorString(char *message, size_t bytes) {
    if (bytes) message[0] = '\0';
}

/* -- descriptors ----------------------------------------------------------------------------------- */

/* Each is memory of its own that nobody looks into. */
static cudnnStatus_t new_descriptor(void **descriptor) {
    *descriptor = calloc(1, 64);
    return *descriptor ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_ALLOC_FAILED;
}
#define DESCRIPTOR(name) \
    cudnnStatus_t cudnnCreate##name(cudnn##name##_t *made) { return new_descriptor((void **)made); } \
    cudnnStatus_t cudnnDestroy##name(cudnn##name##_t gone) { return free(gone), CUDNN_STATUS_SUCCESS; }
DESCRIPTOR(TensorDescriptor)
DESCRIPTOR(FilterDescriptor)
DESCRIPTOR(ConvolutionDescriptor)
DESCRIPTOR(ActivationDescriptor)
DESCRIPTOR(DropoutDescriptor)
DESCRIPTOR(PoolingDescriptor)
DESCRIPTOR(RNNDescriptor)
DESCRIPTOR(RNNDataDescriptor)
DESCRIPTOR(CTCLossDescriptor)
DESCRIPTOR(SpatialTransformerDescriptor)

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t kind, cudnnBackendDescriptor_t *made) {
    return new_descriptor((void **)made);
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t gone) {
    return free(gone), CUDNN_STATUS_SUCCESS;
}

/* The heuristics find one engine for everything; of the rest, numbers are 0 and lists are empty. */
cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t requested, int64_t *number,
                                       void *elements) {
    int is_found = type == CUDNN_TYPE_BACKEND_DESCRIPTOR && name != CUDNN_ATTR_ENGINECFG_KNOB_CHOICES;
    int is_number = requested == 1 && elements && (type == CUDNN_TYPE_INT64 || type == CUDNN_TYPE_INT32);
    if (is_number) memset(elements, 0, type == CUDNN_TYPE_INT64 ? sizeof(int64_t) : sizeof(int32_t));
    if (name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE) __atomic_fetch_add(&sizes_asked, 1, __ATOMIC_RELAXED);
    if (number) *number = is_found || is_number;
    return CUDNN_STATUS_SUCCESS;
}

/* -- sizes ----------------------------------------------------------------------------------------- */

cudnnStatus_t cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t operations, const cudnnTensorDescriptor_t x,
    const cudnnTensorDescriptor_t z, const cudnnTensorDescriptor_t y, const cudnnTensorDescriptor_t scale,
    const cudnnActivationDescriptor_t activation, size_t *bytes) {
    return unknown_size(bytes);
}
cudnnStatus_t cudnnGetBatchNormalizationBackwardExWorkspaceSize(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t operations, const cudnnTensorDescriptor_t x,
    const cudnnTensorDescriptor_t y, const cudnnTensorDescriptor_t dy, const cudnnTensorDescriptor_t dz,
    const cudnnTensorDescriptor_t dx, const cudnnTensorDescriptor_t scale,
    const cudnnActivationDescriptor_t activation, size_t *bytes) {
    return unknown_size(bytes);
}
cudnnStatus_t cudnnGetBatchNormalizationTrainingExReserveSpaceSize(cudnnHandle_t handle, cudnnBatchNormMode_t mode,
                                                                   cudnnBatchNormOps_t operations,
                                                                   const cudnnActivationDescriptor_t activation,
                                                                   const cudnnTensorDescriptor_t x, size_t *bytes) {
    return unknown_size(bytes);
}
cudnnStatus_t cudnnDropoutGetStatesSize(cudnnHandle_t handle, size_t *bytes) { return unknown_size(bytes); }
cudnnStatus_t cudnnGetCTCLossWorkspaceSize(cudnnHandle_t handle, const cudnnTensorDescriptor_t probabilities,
                                           const cudnnTensorDescriptor_t gradients, const int *labels,
                                           const int *label_lengths, const int *input_lengths,
                                           cudnnCTCLossAlgo_t algorithm, cudnnCTCLossDescriptor_t loss, size_t *bytes) {
    return unknown_size(bytes);
}
cudnnStatus_t cudnnGetCTCLossWorkspaceSize_v8(cudnnHandle_t handle, cudnnCTCLossAlgo_t algorithm,
                                              cudnnCTCLossDescriptor_t loss,
                                              const cudnnTensorDescriptor_t probabilities,
                                              const cudnnTensorDescriptor_t gradients, size_t *bytes) {
    return unknown_size(bytes);
}

/* -- what is refused ------------------------------------------------------------------------------- */

cudnnStatus_t cudnnGetRNNWeightSpaceSize(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, size_t *bytes) {
    return CUDNN_STATUS_NOT_SUPPORTED;
}
cudnnStatus_t cudnnGetRNNTempSpaceSizes(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, cudnnForwardMode_t mode,
                                        cudnnRNNDataDescriptor_t x, size_t *workspace, size_t *reserve) {
    return CUDNN_STATUS_NOT_SUPPORTED;
}
#endif
