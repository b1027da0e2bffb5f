/* Values: what the program copied to a device can be copied back; everything else reads as zeros.
 *
 * No kernel runs, so what a kernel would have written is not there. Memory that the allocator hands
 * out again still holds what was copied into it before, and a count that is read from there would
 * size tensors by nonsense. Therefore a copy is known until torch hands out its block anew. Every
 * reading that a kernel may have had a hand in is told to a listener: there the program depends on
 * values.
 */
#include "stand_in.h"

#include <limits.h>

#define MOST_COPIES 4096
/* A larger copy is weights or data, whose values are not read back; it would cost the host as much
 * memory as the card. */
#define LARGEST MIB
#define BYTES (-1)
#define NEVER ULLONG_MAX /* of what is taken to be so, and was not copied in */
/* A flag that a program waits for is a number, or a few. */
#define LARGEST_POLLED 64
#define MOST_POLLS 100000
#define CUBLAS_EXECUTION_FAILED 13

typedef struct {
    const char *start;
    size_t bytes;
    unsigned long long kernels; /* launched before */
    int fill;                   /* the byte that it was set to, or BYTES: they lie at its address */
} Copy;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Copy copies[MOST_COPIES]; /* a ring: the oldest is forgotten */
static size_t copies_made;
static unsigned long long kernels;
enum { ZEROS, COPIED_IN, TAKEN_FOR_TRUE }; /* library.py has the same numbers */
static void (*listener)(size_t bytes, int source);

/* Called by the process that is run, through ctypes. `listener` hears of each copy to the host of
 * `bytes` that a kernel may have written, and what they are given as: as the host once wrote
 * them, as a condition that holds, or as zeros. Any thread may call it, with or without the
 * interpreter's lock. */
void memprof_dry_run_listen(void (*function)(size_t bytes, int source)) { listener = function; }

void note_kernel(void) { __atomic_fetch_add(&kernels, 1, __ATOMIC_RELAXED); }
unsigned long long kernels_launched(void) { return __atomic_load_n(&kernels, __ATOMIC_RELAXED); }

/* Numbers, as their bits, that the thread's next readings of a single one get instead of a zero that
 * nobody computed: what the user assumes of them. Called through ctypes before and after an operator;
 * it says how many of those before were not asked for. */
#define MOST_ASSUMED 8
static __thread uint64_t assumed[MOST_ASSUMED];
static __thread int assumed_first, assumed_end;
int memprof_dry_run_assume(const uint64_t *numbers, int number) {
    int left = assumed_end - assumed_first;
    assumed_first = 0, assumed_end = number < MOST_ASSUMED ? number : MOST_ASSUMED;
    for (int i = 0; i < assumed_end; i++) assumed[i] = numbers[i];
    return left;
}
/* The same for an operator of torch's, from within the library, as long as the caller's `mark` stands
 * on the stack: an error of C++ leaves the operator without its end. */
static __thread const uint64_t *checks;
static __thread size_t checks_left;
static __thread const volatile uint64_t *checks_mark;
static __thread uint64_t checks_made;
void expect_checks(const uint64_t *answers, size_t number, volatile uint64_t *mark) {
    checks = answers, checks_left = number, checks_mark = mark;
    if (mark) *mark = (uint64_t)(uintptr_t)&checks ^ ++checks_made << 48;
}
static int is_checking(void) {
    volatile char here = 0; /* the stack grows downwards */
    return checks_left && (uintptr_t)&here < (uintptr_t)checks_mark &&
           *checks_mark == ((uint64_t)(uintptr_t)&checks ^ checks_made << 48);
}

/* Numbers have their little end first. */
static int is_assumed(void *to, size_t bytes) {
    if (bytes > sizeof(uint64_t)) return 0;
    if (assumed_first != assumed_end) {
        memcpy(to, &assumed[assumed_first++], bytes);
        return 1;
    }
    if (!is_checking()) return 0;
    memcpy(to, checks, bytes);
    checks_left--;
    return *checks++ != 0; /* a zero is what would be read without it, and is listed as that */
}

/* -- what is known, under the lock --------------------------------------------------------------- */

static size_t copies_kept(void) { return copies_made < MOST_COPIES ? copies_made : MOST_COPIES; }

static void forget_locked(const char *start, size_t bytes) {
    for (size_t i = 0; i < copies_kept(); i++)
        if (copies[i].start < start + bytes && start < copies[i].start + copies[i].bytes) copies[i].bytes = 0;
}
static void remember_locked(const char *start, size_t bytes, int fill) {
    forget_locked(start, bytes);
    copies[copies_made++ % MOST_COPIES] = (Copy){start, bytes, kernels_launched(), fill};
}
/* The copy that a range can be read from, or NULL. */
static const Copy *copy_behind_locked(const char *start, size_t bytes) {
    for (size_t i = 0; i < copies_kept(); i++)
        if (copies[i].start <= start && start + bytes <= copies[i].start + copies[i].bytes) return &copies[i];
    return NULL;
}

void forget_values(const void *start, size_t bytes) {
    pthread_mutex_lock(&lock);
    forget_locked(start, bytes);
    pthread_mutex_unlock(&lock);
}

/* A block whose bytes are all taken to be true, although no kernel said so. */
void take_for_true(void *start, size_t bytes) {
    pthread_mutex_lock(&lock);
    remember_locked(start, bytes, 1);
    copies[(copies_made - 1) % MOST_COPIES].kernels = NEVER;
    pthread_mutex_unlock(&lock);
}

/* -- copies -------------------------------------------------------------------------------------- */

/* A program that waits until a value changes would wait for ever. It reads a few bytes from one
 * place again and again, and copies nothing to a device meanwhile, as a training loop does. */
static struct {
    const void *place;
    size_t bytes, times;
} polls;

static int is_endless_locked(const void *place, size_t bytes) {
    if (polls.place != place || polls.bytes != bytes) {
        polls.place = place, polls.bytes = bytes, polls.times = 0;
    }
    return bytes <= LARGEST_POLLED && ++polls.times > setting("MEMPROF_DRY_RUN_MOST_POLLS", MOST_POLLS);
}

static void copy_in(void *to, const void *from, size_t bytes) {
    pthread_mutex_lock(&lock);
    polls.place = NULL;
    if (bytes <= LARGEST) {
        remember_locked(to, bytes, BYTES);
        memcpy(to, from, bytes);
    } else {
        forget_locked(to, bytes);
    }
    pthread_mutex_unlock(&lock);
}
static cudaError_t copy_out(void *to, const void *from, size_t bytes) {
    pthread_mutex_lock(&lock);
    int is_endless = is_endless_locked(from, bytes);
    const Copy *behind = copy_behind_locked(from, bytes);
    int certain = behind && behind->kernels == kernels_launched();
    int copied_in = behind && behind->fill == BYTES;
    int source = copied_in ? COPIED_IN : behind && behind->kernels == NEVER ? TAKEN_FOR_TRUE : ZEROS;
    if (copied_in) memcpy(to, from, bytes);
    else memset(to, behind ? behind->fill : 0, bytes);
    pthread_mutex_unlock(&lock);
    if (!certain && !copied_in && is_assumed(to, bytes)) return cudaSuccess;
    void (*function)(size_t, int) = listener;
    if (!certain && function) function(bytes, source);
    return is_endless ? fail(cudaErrorLaunchTimeout) : cudaSuccess;
}
static void copy_between(void *to, const void *from, size_t bytes) {
    pthread_mutex_lock(&lock);
    const Copy *behind = bytes <= LARGEST ? copy_behind_locked(from, bytes) : NULL;
    if (behind) {
        unsigned long long before = behind->kernels;
        int fill = behind->fill;
        if (fill == BYTES) memmove(to, from, bytes);
        remember_locked(to, bytes, fill);
        copies[(copies_made - 1) % MOST_COPIES].kernels = before; /* no fresher than what it was made from */
    } else {
        forget_locked(to, bytes);
    }
    pthread_mutex_unlock(&lock);
}
cudaError_t copy_values(void *to, const void *from, size_t bytes) {
    int to_device = device_of(to) >= 0, from_device = device_of(from) >= 0;
    if (!bytes) return cudaSuccess;
    if (from_device && !to_device) return copy_out(to, from, bytes);
    if (to_device && from_device) copy_between(to, from, bytes);
    else if (to_device) copy_in(to, from, bytes);
    else memmove(to, from, bytes);
    return cudaSuccess;
}

void repeat_values(void *to, const void *piece, size_t bytes, size_t times) {
    pthread_mutex_lock(&lock);
    const Copy *behind = bytes * times <= LARGEST ? copy_behind_locked(piece, bytes) : NULL;
    if (behind) {
        unsigned long long before = behind->kernels;
        int fill = behind->fill;
        if (fill == BYTES)
            for (size_t i = 0; i < times; i++) memmove((char *)to + i * bytes, piece, bytes);
        remember_locked(to, bytes * times, fill);
        copies[(copies_made - 1) % MOST_COPIES].kernels = before;
    } else {
        forget_locked(to, bytes * times);
    }
    pthread_mutex_unlock(&lock);
}

/* Nothing is written: the byte is remembered instead, so that zeroed gradients cost no memory. */
void set_values(void *to, int value, size_t bytes) {
    if (!bytes) return;
    if (device_of(to) < 0) {
        memset(to, value, bytes);
        return;
    }
    pthread_mutex_lock(&lock);
    remember_locked(to, bytes, value & 0xff);
    pthread_mutex_unlock(&lock);
}

/* -- the runtime's names ------------------------------------------------------------------------- */

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    return copy_values(to, from, bytes);
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
    return copy_values(to, from, bytes);
}
cudaError_t cudaMemcpyPeer(void *to, int device, const void *from, int other, size_t bytes) {
    return copy_values(to, from, bytes);
}
cudaError_t cudaMemcpyPeerAsync(void *to, int device, const void *from, int other, size_t bytes, cudaStream_t stream) {
    return copy_values(to, from, bytes);
}
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, enum cudaMemcpyKind kind, cudaStream_t stream) {
    cudaError_t error = cudaSuccess;
    for (size_t row = 0; row < height && error == cudaSuccess; row++)
        error = copy_values((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width);
    return error;
}
/* cuBLAS copies too, matrices a column after another. */
static int copy_columns(size_t rows, size_t columns, size_t element, const void *from, size_t from_step, void *to,
                        size_t to_step) {
    cudaError_t error = cudaSuccess;
    for (size_t column = 0; column < columns && error == cudaSuccess; column++)
        error = copy_values((char *)to + column * to_step * element, (const char *)from + column * from_step * element,
                            rows * element);
    return error == cudaSuccess ? 0 : CUBLAS_EXECUTION_FAILED;
}
#define COPIES_MATRIX(name) \
    int name(int rows, int columns, int element, const void *from, int from_step, void *to, int to_step) { \
        return copy_columns((size_t)rows, (size_t)columns, (size_t)element, from, (size_t)from_step, to, \
                            (size_t)to_step); \
    } \
    int name##Async(int rows, int columns, int element, const void *from, int from_step, void *to, int to_step, \
                    cudaStream_t stream) { \
        return name(rows, columns, element, from, from_step, to, to_step); \
    }
/* A vector is a matrix of one row, unless its elements lie one after another. */
#define COPIES_VECTOR(name) \
    int name(int number, int element, const void *from, int from_step, void *to, int to_step) { \
        int is_dense = from_step == 1 && to_step == 1; \
        return copy_columns(is_dense ? (size_t)number : 1, is_dense ? 1 : (size_t)number, (size_t)element, from, \
                            (size_t)from_step, to, (size_t)to_step); \
    } \
    int name##Async(int number, int element, const void *from, int from_step, void *to, int to_step, \
                    cudaStream_t stream) { \
        return name(number, element, from, from_step, to, to_step); \
    }
COPIES_MATRIX(cublasSetMatrix)
COPIES_MATRIX(cublasGetMatrix)
COPIES_VECTOR(cublasSetVector)
COPIES_VECTOR(cublasGetVector)

cudaError_t cudaMemset(void *to, int value, size_t bytes) { return set_values(to, value, bytes), cudaSuccess; }
cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
    return set_values(to, value, bytes), cudaSuccess;
}

/* -- the driver's ---------------------------------------------------------------------------------- */

static CUresult driver_copy(void *to, const void *from, size_t bytes) {
    return copy_values(to, from, bytes) == cudaSuccess ? CUDA_SUCCESS : CUDA_ERROR_LAUNCH_TIMEOUT;
}
CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    return driver_copy((void *)to, (const void *)from, bytes);
}
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return driver_copy((void *)to, (const void *)from, bytes);
}
CUresult cuMemcpyHtoD(CUdeviceptr to, const void *from, size_t bytes) { return driver_copy((void *)to, from, bytes); }
CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
    return driver_copy((void *)to, from, bytes);
}
CUresult cuMemcpyDtoH(void *to, CUdeviceptr from, size_t bytes) { return driver_copy(to, (const void *)from, bytes); }
CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return driver_copy(to, (const void *)from, bytes);
}
CUresult cuMemcpyDtoD(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    return driver_copy((void *)to, (const void *)from, bytes);
}
CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return driver_copy((void *)to, (const void *)from, bytes);
}
/* A word of several bytes that are not alike reads as zeros afterwards. */
static CUresult driver_set(CUdeviceptr to, unsigned int word, size_t element, size_t number) {
    unsigned int byte = word & 0xff, all_alike = byte * (element == 4 ? 0x1010101u : element == 2 ? 0x101u : 1u);
    return set_values((void *)to, word == all_alike ? (int)byte : 0, element * number), CUDA_SUCCESS;
}
CUresult cuMemsetD8(CUdeviceptr to, unsigned char value, size_t number) { return driver_set(to, value, 1, number); }
CUresult cuMemsetD16(CUdeviceptr to, unsigned short value, size_t number) { return driver_set(to, value, 2, number); }
CUresult cuMemsetD32(CUdeviceptr to, unsigned int value, size_t number) { return driver_set(to, value, 4, number); }
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t number, CUstream stream) {
    return driver_set(to, value, 1, number);
}
CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t number, CUstream stream) {
    return driver_set(to, value, 2, number);
}
CUresult cuMemsetD32Async(CUdeviceptr to, unsigned int value, size_t number, CUstream stream) {
    return driver_set(to, value, 4, number);
}
