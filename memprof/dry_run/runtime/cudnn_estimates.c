/* What a convolution would ask for as workspace, where no cuDNN can be asked.
 *
 * A rule after what cuDNN 9.19 answers for 17 convolutions of usual nets, each forward and backward, on
 * an A100 and an H100. Kernels for tensor cores want NHWC with channels in groups of eight, so what lies
 * otherwise is copied: in half precision both images, and none that lies right. In single precision
 * (TF32) what is read is converted, and in the order of NCHW the gradients lie in both. docs/dry-run.md
 * says how far it is from the answers. Without TF32 (before 8.0), in single precision on the cards of
 * 8.6 and 8.9, in groups, and in double precision there is no rule. */
#include "stand_in.h"

#if __has_include(<cudnn.h>)
#include <cudnn.h>

enum { NONE, FORWARD, OF_DATA, OF_FILTER };
typedef struct {
    TensorShape tensor; /* itself, of a tensor */
    int direction;      /* of the convolution that it is, or that it was made for */
    TensorShape x, w, y;
} Description;

void *new_description(void) { return calloc(1, sizeof(Description)); }

static void note_sizes(const Description *from, TensorShape *to) { *to = from->tensor; }

/* The convolution of an operation, of a graph of some, or of what was made from a graph. */
void inherit_description(void *to, const void *from) {
    const Description *made_from = from;
    Description *made = to;
    if (!made || !made_from || !made_from->direction) return;
    made->direction = made_from->direction;
    made->x = made_from->x, made->w = made_from->w, made->y = made_from->y;
}

static void note_numbers(int to[], const void *elements, int64_t number) {
    for (int64_t i = 0; i < number && i < MOST_DIMENSIONS; i++) to[i] = (int)((const int64_t *)elements)[i];
}

static int note_operand(Description *one, cudnnBackendAttributeName_t name, const Description *tensor) {
    switch (name) {
    case CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X: one->direction = FORWARD, note_sizes(tensor, &one->x); break;
    case CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W: note_sizes(tensor, &one->w); break;
    case CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y: note_sizes(tensor, &one->y); break;
    case CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX: one->direction = OF_DATA, note_sizes(tensor, &one->x); break;
    case CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W: note_sizes(tensor, &one->w); break;
    case CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY: note_sizes(tensor, &one->y); break;
    case CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X: one->direction = OF_FILTER, note_sizes(tensor, &one->x); break;
    case CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW: note_sizes(tensor, &one->w); break;
    case CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY: note_sizes(tensor, &one->y); break;
    default: return 0;
    }
    return 1;
}

void note_attribute(void *descriptor, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                    int64_t number, const void *elements) {
    Description *one = descriptor;
    if (name == CUDNN_ATTR_TENSOR_DATA_TYPE) {
        one->tensor.type = *(const int *)elements;
    } else if (name == CUDNN_ATTR_TENSOR_DIMENSIONS) {
        one->tensor.dimensions = (int)(number < MOST_DIMENSIONS ? number : MOST_DIMENSIONS);
        note_numbers(one->tensor.sizes, elements, number);
    } else if (name == CUDNN_ATTR_TENSOR_STRIDES) {
        note_numbers(one->tensor.strides, elements, number);
    } else if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
        for (int64_t i = 0; i < number; i++) {
            const Description *part = ((const Description *const *)elements)[i];
            if (part && !note_operand(one, name, part)) inherit_description(one, part);
        }
    }
}

/* -- the rule ---------------------------------------------------------------------------------------- */

static int64_t up_to_8(int64_t channels) { return (channels + 7) / 8 * 8; }
static int64_t elements_of(const TensorShape *tensor) {
    int64_t elements = 1;
    for (int i = 0; i < tensor->dimensions; i++) elements *= tensor->sizes[i];
    return elements;
}
static int64_t padded(const TensorShape *tensor) {
    return elements_of(tensor) / tensor->sizes[1] * up_to_8(tensor->sizes[1]);
}
static int is_channels_last(const TensorShape *tensor) { return tensor->strides[1] == 1 && tensor->sizes[1] > 1; }
static int lies_right(const TensorShape *tensor) { return is_channels_last(tensor) && tensor->sizes[1] % 8 == 0; }

/* -1 where there is no rule. */
int64_t estimated_workspace(const void *descriptor) {
    const Description *one = descriptor;
    const TensorShape *x = &one->x, *w = &one->w, *y = &one->y;
    int capability = the_card()->major * 10 + the_card()->minor;
    if (!one->direction || x->dimensions < 3 || w->dimensions < 3 || y->dimensions < 3) return -1;
    if (x->sizes[1] <= 0 || y->sizes[1] <= 0 || w->sizes[1] != x->sizes[1] || capability < 80) return -1;
    if (x->sizes[1] == 1) return 0; /* images of one colour are read as they lie */
    if (x->type == CUDNN_DATA_HALF || x->type == CUDNN_DATA_BFLOAT16) {
        int64_t elements = lies_right(x) ? 0 : padded(x);
        elements += lies_right(y) ? 0 : padded(y);
        return 2 * (elements + (is_channels_last(x) ? 0 : elements_of(w)));
    }
    if (x->type != CUDNN_DATA_FLOAT || capability == 86 || capability == 89) return -1;
    int64_t of_x = elements_of(x), of_w = elements_of(w), of_y = elements_of(y);
    int moves_all = !is_channels_last(x);
    if (one->direction == FORWARD) return 4 * (of_x + of_w + (moves_all && x->sizes[1] % 4 ? of_y : 0));
    if (one->direction == OF_DATA) return 4 * (of_y + of_w + (moves_all ? of_x : 0));
    return 4 * (of_x + of_y + of_w);
}
#endif
