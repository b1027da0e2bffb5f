/* cuDNN's interface without graphs: descriptors of tensors, and sizes that norms, dropout, CTC loss
 * and the old convolutions ask for. It needs a handle of a real device, so sizes are not asked of
 * the library: where recordings of cards show one it is that, else it is 0 bytes and told. */
#include "stand_in.h"

#if __has_include(<cudnn.h>)
#include <cudnn.h>

/* -- descriptors ----------------------------------------------------------------------------------- */

/* Most are memory of their own that nobody looks into. */
static cudnnStatus_t new_descriptor(void **descriptor, size_t bytes) {
    *descriptor = calloc(1, bytes);
    return *descriptor ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_ALLOC_FAILED;
}
#define DESCRIPTOR(name, bytes) \
    cudnnStatus_t cudnnCreate##name(cudnn##name##_t *made) { return new_descriptor((void **)made, bytes); } \
    cudnnStatus_t cudnnDestroy##name(cudnn##name##_t gone) { return free(gone), CUDNN_STATUS_SUCCESS; }
DESCRIPTOR(FilterDescriptor, sizeof(TensorShape))
DESCRIPTOR(TensorDescriptor, sizeof(TensorShape))
DESCRIPTOR(ConvolutionDescriptor, 64)
DESCRIPTOR(ActivationDescriptor, 64)
DESCRIPTOR(DropoutDescriptor, 64)
DESCRIPTOR(PoolingDescriptor, 64)
DESCRIPTOR(CTCLossDescriptor, 64)
DESCRIPTOR(SpatialTransformerDescriptor, 64)

cudnnStatus_t cudnnSetTensorNdDescriptor(cudnnTensorDescriptor_t descriptor, cudnnDataType_t type, int dimensions,
                                         const int sizes[], const int strides[]) {
    TensorShape *shape = (TensorShape *)descriptor;
    if (dimensions < 0 || dimensions > MOST_DIMENSIONS) return CUDNN_STATUS_NOT_SUPPORTED;
    shape->type = type, shape->dimensions = dimensions;
    memcpy(shape->sizes, sizes, (size_t)dimensions * sizeof *sizes);
    memcpy(shape->strides, strides, (size_t)dimensions * sizeof *strides);
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetTensorNdDescriptor(const cudnnTensorDescriptor_t descriptor, int requested,
                                         cudnnDataType_t *type, int *dimensions, int sizes[], int strides[]) {
    const TensorShape *shape = (const TensorShape *)descriptor;
    int number = requested < shape->dimensions ? requested : shape->dimensions;
    *type = (cudnnDataType_t)shape->type, *dimensions = shape->dimensions;
    memcpy(sizes, shape->sizes, (size_t)number * sizeof *sizes);
    memcpy(strides, shape->strides, (size_t)number * sizeof *strides);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetFilterNdDescriptor(cudnnFilterDescriptor_t descriptor, cudnnDataType_t type,
                                         cudnnTensorFormat_t format, int dimensions, const int sizes[]) {
    TensorShape *shape = (TensorShape *)descriptor;
    if (dimensions < 0 || dimensions > MOST_DIMENSIONS) return CUDNN_STATUS_NOT_SUPPORTED;
    shape->type = type, shape->dimensions = dimensions, shape->strides[0] = format;
    memcpy(shape->sizes, sizes, (size_t)dimensions * sizeof *sizes);
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetFilterNdDescriptor(const cudnnFilterDescriptor_t descriptor, int requested, cudnnDataType_t *type,
                                         cudnnTensorFormat_t *format, int *dimensions, int sizes[]) {
    const TensorShape *shape = (const TensorShape *)descriptor;
    int number = requested < shape->dimensions ? requested : shape->dimensions;
    *type = (cudnnDataType_t)shape->type, *dimensions = shape->dimensions;
    *format = (cudnnTensorFormat_t)shape->strides[0];
    return memcpy(sizes, shape->sizes, (size_t)number * sizeof *sizes), CUDNN_STATUS_SUCCESS;
}
/* All streams are alike. */
cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t *stream) {
    return *stream = NULL, CUDNN_STATUS_SUCCESS;
}

/* -- norms, dropout, CTC loss ---------------------------------------------------------------------- */

static cudnnStatus_t not_known(const char *what, size_t *bytes) {
    note_estimate(what, 0, 0);
    return *bytes = 0, CUDNN_STATUS_SUCCESS;
}
/* Trained in the order of NCHW a batch norm takes neither workspace nor anything in reserve: public
 * snapshots of nets with BatchNorm3d (torch 2.1 and 2.4) show 140 of them, none with either. In
 * channels_last an H200 (cuDNN 9.19) took, of 18 sizes in single and half precision, nothing in
 * reserve, and workspace that is within 3 % of this where a million values are normed. */
static cudnnStatus_t of_batch_norm(cudnnBatchNormMode_t mode, const cudnnTensorDescriptor_t x, int is_backward,
                                   size_t *bytes) {
    if (mode != CUDNN_BATCHNORM_SPATIAL_PERSISTENT) return *bytes = 0, CUDNN_STATUS_SUCCESS;
    const TensorShape *shape = (const TensorShape *)x;
    size_t values = 1, channels = shape->dimensions > 1 ? (size_t)shape->sizes[1] : 1;
    for (int i = 0; i < shape->dimensions; i++) values *= (size_t)shape->sizes[i];
    *bytes = is_backward                          ? values / 12 + 11 * channels / 2 + 1000
             : shape->type == CUDNN_DATA_FLOAT ? values * 129 / 1024 + 1100
                                               : values * 129 / 2560 + 1200;
    note_estimate("batch norms in channels_last", *bytes, 1);
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t operations, const cudnnTensorDescriptor_t x,
    const cudnnTensorDescriptor_t z, const cudnnTensorDescriptor_t y, const cudnnTensorDescriptor_t scale,
    const cudnnActivationDescriptor_t activation, size_t *bytes) {
    return of_batch_norm(mode, x, 0, bytes);
}
cudnnStatus_t cudnnGetBatchNormalizationBackwardExWorkspaceSize(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t operations, const cudnnTensorDescriptor_t x,
    const cudnnTensorDescriptor_t y, const cudnnTensorDescriptor_t dy, const cudnnTensorDescriptor_t dz,
    const cudnnTensorDescriptor_t dx, const cudnnTensorDescriptor_t scale,
    const cudnnActivationDescriptor_t activation, size_t *bytes) {
    return of_batch_norm(mode, x, 1, bytes);
}
cudnnStatus_t cudnnGetBatchNormalizationTrainingExReserveSpaceSize(cudnnHandle_t handle, cudnnBatchNormMode_t mode,
                                                                   cudnnBatchNormOps_t operations,
                                                                   const cudnnActivationDescriptor_t activation,
                                                                   const cudnnTensorDescriptor_t x, size_t *bytes) {
    return *bytes = 0, CUDNN_STATUS_SUCCESS;
}
/* A generator for each thread that the card runs at once: 6,488,064 bytes on an H200. */
cudnnStatus_t cudnnDropoutGetStatesSize(cudnnHandle_t handle, size_t *bytes) {
    enum { OF_GENERATOR = 24 };
    const Card *card = the_card();
    *bytes = (size_t)card->multiprocessors * (size_t)card->threads_per_multiprocessor * OF_GENERATOR;
    note_estimate("the states of cuDNN's dropout", *bytes, 1);
    return CUDNN_STATUS_SUCCESS;
}
/* Whether anything is dropped is all that is kept. */
cudnnStatus_t cudnnSetDropoutDescriptor(cudnnDropoutDescriptor_t descriptor, cudnnHandle_t handle, float share,
                                        void *states, size_t bytes, unsigned long long seed) {
    *(float *)descriptor = share;
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnRestoreDropoutDescriptor(cudnnDropoutDescriptor_t descriptor, cudnnHandle_t handle, float share,
                                            void *states, size_t bytes, unsigned long long seed) {
    return cudnnSetDropoutDescriptor(descriptor, handle, share, states, bytes, seed);
}
cudnnStatus_t cudnnGetCTCLossWorkspaceSize(cudnnHandle_t handle, const cudnnTensorDescriptor_t probabilities,
                                           const cudnnTensorDescriptor_t gradients, const int *labels,
                                           const int *label_lengths, const int *input_lengths,
                                           cudnnCTCLossAlgo_t algorithm, cudnnCTCLossDescriptor_t loss, size_t *bytes) {
    return not_known("CTC losses", bytes);
}
cudnnStatus_t cudnnGetCTCLossWorkspaceSize_v8(cudnnHandle_t handle, cudnnCTCLossAlgo_t algorithm,
                                              cudnnCTCLossDescriptor_t loss,
                                              const cudnnTensorDescriptor_t probabilities,
                                              const cudnnTensorDescriptor_t gradients, size_t *bytes) {
    return not_known("CTC losses", bytes);
}

/* -- convolutions without graphs (TORCH_CUDNN_V8_API_DISABLED=1) ------------------------------------ */

/* One algorithm is found, which takes nothing. */
static cudnnStatus_t one_algorithm(int *number, void *results, size_t bytes) {
    memset(results, 0, bytes);
    note_estimate("convolutions without cuDNN's graphs", 0, 0);
    return *number = 1, CUDNN_STATUS_SUCCESS;
}
#define FINDS(name, first, second, third, Performance) \
    cudnnStatus_t cudnnGetConvolution##name##Algorithm_v7( \
        cudnnHandle_t handle, const first##_t a, const second##_t b, const cudnnConvolutionDescriptor_t convolution, \
        const third##_t c, const int requested, int *number, Performance *results) { \
        return one_algorithm(number, results, sizeof *results); \
    } \
    cudnnStatus_t cudnnGetConvolution##name##WorkspaceSize(cudnnHandle_t handle, const first##_t a, \
                                                           const second##_t b, \
                                                           const cudnnConvolutionDescriptor_t convolution, \
                                                           const third##_t c, AlgorithmOf##name algorithm, \
                                                           size_t *bytes) { \
        return not_known("convolutions without cuDNN's graphs", bytes); \
    }
typedef cudnnConvolutionFwdAlgo_t AlgorithmOfForward;
typedef cudnnConvolutionBwdDataAlgo_t AlgorithmOfBackwardData;
typedef cudnnConvolutionBwdFilterAlgo_t AlgorithmOfBackwardFilter;
FINDS(Forward, cudnnTensorDescriptor, cudnnFilterDescriptor, cudnnTensorDescriptor, cudnnConvolutionFwdAlgoPerf_t)
FINDS(BackwardData, cudnnFilterDescriptor, cudnnTensorDescriptor, cudnnTensorDescriptor, cudnnConvolutionBwdDataAlgoPerf_t)
FINDS(BackwardFilter, cudnnTensorDescriptor, cudnnTensorDescriptor, cudnnFilterDescriptor, cudnnConvolutionBwdFilterAlgoPerf_t)

cudnnStatus_t cudnnFindConvolutionForwardAlgorithmEx(
    cudnnHandle_t handle, const cudnnTensorDescriptor_t x, const void *x_data, const cudnnFilterDescriptor_t w,
    const void *w_data, const cudnnConvolutionDescriptor_t convolution, const cudnnTensorDescriptor_t y, void *y_data,
    const int requested, int *number, cudnnConvolutionFwdAlgoPerf_t *results, void *workspace, size_t bytes) {
    return one_algorithm(number, results, sizeof *results);
}
cudnnStatus_t cudnnFindConvolutionBackwardDataAlgorithmEx(
    cudnnHandle_t handle, const cudnnFilterDescriptor_t w, const void *w_data, const cudnnTensorDescriptor_t dy,
    const void *dy_data, const cudnnConvolutionDescriptor_t convolution, const cudnnTensorDescriptor_t dx,
    void *dx_data, const int requested, int *number, cudnnConvolutionBwdDataAlgoPerf_t *results, void *workspace,
    size_t bytes) {
    return one_algorithm(number, results, sizeof *results);
}
cudnnStatus_t cudnnFindConvolutionBackwardFilterAlgorithmEx(
    cudnnHandle_t handle, const cudnnTensorDescriptor_t x, const void *x_data, const cudnnTensorDescriptor_t dy,
    const void *dy_data, const cudnnConvolutionDescriptor_t convolution, const cudnnFilterDescriptor_t dw,
    void *dw_data, const int requested, int *number, cudnnConvolutionBwdFilterAlgoPerf_t *results, void *workspace,
    size_t bytes) {
    return one_algorithm(number, results, sizeof *results);
}
#endif
