/* cuDNN's recurrent nets: where their weights lie, and how much memory they take.
 *
 * The weights are exact: they are all there is in their space, all matrices before all biases (JAX
 * computes the same, jax/experimental/rnn.py). What is kept for the backward pass and the workspace
 * only the library knows, and it says so of a real device only: by what an H200 took of 96 nets, the
 * former is exact and the latter is estimated. */
#include "stand_in.h"

#if __has_include(<cudnn.h>)
#include <cudnn.h>

typedef struct {
    cudnnRNNMode_t cell;
    cudnnRNNBiasMode_t bias;
    int64_t directions, layers, input, hidden, projected; /* `projected` is 0 where the output is the hidden state */
    size_t element_bytes;
    int drops;
} Net;
typedef struct {
    int64_t steps;   /* of all sequences together */
    int64_t batch;
} Sequences;

static size_t bytes_of(cudnnDataType_t type) {
    return type == CUDNN_DATA_DOUBLE ? 8 : type == CUDNN_DATA_FLOAT ? 4 : 2;
}
cudnnStatus_t cudnnCreateRNNDescriptor(cudnnRNNDescriptor_t *made) {
    *made = calloc(1, sizeof(Net));
    return *made ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_ALLOC_FAILED;
}
cudnnStatus_t cudnnDestroyRNNDescriptor(cudnnRNNDescriptor_t gone) { return free(gone), CUDNN_STATUS_SUCCESS; }
cudnnStatus_t cudnnSetRNNDescriptor_v8(cudnnRNNDescriptor_t descriptor, cudnnRNNAlgo_t algorithm, cudnnRNNMode_t cell,
                                       cudnnRNNBiasMode_t bias, cudnnDirectionMode_t directions,
                                       cudnnRNNInputMode_t input_mode, cudnnDataType_t type, cudnnDataType_t precision,
                                       cudnnMathType_t math, int32_t input, int32_t hidden, int32_t projected,
                                       int32_t layers, cudnnDropoutDescriptor_t dropout, uint32_t flags) {
    *(Net *)descriptor = (Net){
        .cell = cell,
        .bias = bias,
        .directions = directions == CUDNN_BIDIRECTIONAL ? 2 : 1,
        .layers = layers,
        .input = input,
        .hidden = hidden,
        .projected = projected == hidden ? 0 : projected,
        .element_bytes = bytes_of(type),
        .drops = dropout && *(const float *)dropout > 0,
    };
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnCreateRNNDataDescriptor(cudnnRNNDataDescriptor_t *made) {
    *made = calloc(1, sizeof(Sequences));
    return *made ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_ALLOC_FAILED;
}
cudnnStatus_t cudnnDestroyRNNDataDescriptor(cudnnRNNDataDescriptor_t gone) { return free(gone), CUDNN_STATUS_SUCCESS; }
cudnnStatus_t cudnnSetRNNDataDescriptor(cudnnRNNDataDescriptor_t descriptor, cudnnDataType_t type,
                                        cudnnRNNDataLayout_t layout, int longest, int batch, int features,
                                        const int lengths[], void *padding) {
    Sequences *sequences = (Sequences *)descriptor;
    *sequences = (Sequences){.batch = batch};
    for (int i = 0; i < batch; i++) sequences->steps += lengths[i];
    return CUDNN_STATUS_SUCCESS;
}

/* -- weights --------------------------------------------------------------------------------------- */

static int64_t gates(const Net *net) { return net->cell == CUDNN_LSTM ? 4 : net->cell == CUDNN_GRU ? 3 : 1; }
static int64_t output(const Net *net) { return net->projected ? net->projected : net->hidden; }
static int64_t biases_of_gate(const Net *net) {
    return net->bias == CUDNN_RNN_NO_BIAS ? 0 : net->bias == CUDNN_RNN_DOUBLE_BIAS ? 2 : 1;
}
/* A pseudo-layer is one direction of a layer. */
static int64_t input_of_layer(const Net *net, int64_t pseudo_layer) {
    return pseudo_layer < net->directions ? net->input : output(net) * net->directions;
}
static int64_t matrix_elements(const Net *net, int64_t pseudo_layer) {
    int64_t of_gate = net->hidden * (input_of_layer(net, pseudo_layer) + output(net));
    return gates(net) * of_gate + net->projected * net->hidden;
}
static int64_t matrices_before(const Net *net, int64_t pseudo_layer) {
    int64_t elements = 0;
    for (int64_t layer = 0; layer < pseudo_layer; layer++) elements += matrix_elements(net, layer);
    return elements;
}
cudnnStatus_t cudnnGetRNNWeightSpaceSize(cudnnHandle_t handle, cudnnRNNDescriptor_t descriptor, size_t *bytes) {
    const Net *net = (const Net *)descriptor;
    int64_t pseudo_layers = net->layers * net->directions;
    int64_t biases = pseudo_layers * gates(net) * biases_of_gate(net) * net->hidden;
    *bytes = (size_t)(matrices_before(net, pseudo_layers) + biases) * net->element_bytes;
    return CUDNN_STATUS_SUCCESS;
}

static void describe(cudnnTensorDescriptor_t descriptor, const Net *net, int64_t rows, int64_t columns) {
    int sizes[3] = {1, (int)rows, (int)columns}, strides[3] = {(int)(rows * columns), (int)columns, 1};
    cudnnDataType_t type = net->element_bytes == 8 ? CUDNN_DATA_DOUBLE
                           : net->element_bytes == 4 ? CUDNN_DATA_FLOAT
                                                     : CUDNN_DATA_HALF;
    cudnnSetTensorNdDescriptor(descriptor, type, 3, sizes, strides);
}
/* The matrices and biases of a pseudo-layer are numbered: those of the input, a gate each, then
 * those of the recurrence, then the projection, which has a matrix only. A caller who wants only
 * the one or the other gives NULL for the rest. */
cudnnStatus_t cudnnGetRNNWeightParams(cudnnHandle_t handle, cudnnRNNDescriptor_t descriptor, int32_t pseudo_layer,
                                      size_t bytes, const void *weights, int32_t number,
                                      cudnnTensorDescriptor_t matrix, void **matrix_at, cudnnTensorDescriptor_t bias,
                                      void **bias_at) {
    const Net *net = (const Net *)descriptor;
    int64_t of_input = number < gates(net), is_projection = number >= 2 * gates(net);
    int64_t input = input_of_layer(net, pseudo_layer), at = matrices_before(net, pseudo_layer);
    int64_t rows = is_projection ? net->projected : net->hidden;
    int64_t columns = is_projection ? net->hidden : of_input ? input : output(net);
    if (of_input) at += number * net->hidden * input;
    else at += gates(net) * net->hidden * input + (number - gates(net)) * net->hidden * output(net);
    int has_matrix = !is_projection || net->projected;
    if (matrix_at) *matrix_at = has_matrix ? (char *)weights + (size_t)at * net->element_bytes : NULL;
    if (matrix && has_matrix) describe(matrix, net, rows, columns);

    int has_bias = !is_projection && (biases_of_gate(net) == 2 || biases_of_gate(net) == of_input);
    int64_t biases_at = matrices_before(net, net->layers * net->directions);
    biases_at += (pseudo_layer * gates(net) * biases_of_gate(net) + number) * net->hidden;
    if (bias_at) *bias_at = has_bias ? (char *)weights + (size_t)biases_at * net->element_bytes : NULL;
    if (bias && has_bias) describe(bias, net, net->hidden, 1);
    return CUDNN_STATUS_SUCCESS;
}

/* -- memory besides the weights --------------------------------------------------------------------- */

/* What an H200 took with cuDNN 9.19 of 96 nets in single precision, 1 to 4 layers of 64 to 1,024 units,
 * one direction and both, up to 200 steps and 64 sequences. In reserve: to the byte 5 (LSTM), 6 (GRU)
 * or 1 (RNN) values for each unit, layer and step and one between layers, 256 bytes, and a bit for
 * each value that may be dropped between layers. (cuDNN 7 on a P100 took the same of an LSTM and a
 * GRU but for the 256 bytes, pytorch#2895.) Workspace: 8 MiB for each direction of a layer, and a sum
 * of values for each unit and step, for each unit and sequence, and of the weights, which is within a
 * third of what was taken in training, half of it within 8 %; inference takes less, but for an LSTM. */
cudnnStatus_t cudnnGetRNNTempSpaceSizes(cudnnHandle_t handle, cudnnRNNDescriptor_t descriptor, cudnnForwardMode_t mode,
                                        cudnnRNNDataDescriptor_t x, size_t *workspace, size_t *reserve) {
    enum { OF_DIRECTION = 8 << 20, BEFORE_RESERVE = 256, OF_MASK = 32 };
    static const double of_weights[] = {0.0, 0.05, 0.19}, of_steps[] = {2.38, 2.68, 3.03};
    static const double of_sequences[] = {147, 177, 198};
    const Net *net = (const Net *)descriptor;
    const Sequences *sequences = (const Sequences *)x;
    int cell = net->cell == CUDNN_LSTM ? 2 : net->cell == CUDNN_GRU ? 1 : 0;
    int64_t kept = cell == 2 ? 5 : cell == 1 ? 6 : 1;
    int64_t width = net->hidden * net->directions, between = net->layers - 1;
    double values = of_steps[cell] * (double)(sequences->steps * width * net->layers);
    values += of_sequences[cell] * (double)(sequences->batch * width * net->layers);
    values += of_weights[cell] * (double)matrices_before(net, net->layers * net->directions);
    *workspace = (size_t)(net->layers * net->directions * OF_DIRECTION) + (size_t)values * net->element_bytes;
    size_t kept_bytes = 0;
    if (mode == CUDNN_FWD_MODE_TRAINING) {
        kept_bytes = (size_t)(sequences->steps * width * (kept * net->layers + between)) * net->element_bytes;
        size_t mask = net->drops ? (size_t)(between * sequences->steps * width) / 8 : 0;
        kept_bytes += BEFORE_RESERVE + (mask + OF_MASK - 1) / OF_MASK * OF_MASK;
    }
    if (reserve) *reserve = kept_bytes;
    note_estimate("recurrent nets of cuDNN", *workspace + kept_bytes, 1);
    return CUDNN_STATUS_SUCCESS;
}
#endif
