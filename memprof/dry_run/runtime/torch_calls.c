/* Functions of torch's own, which are called here first: where torch hands out memory, and where it or
 * the program puts a condition to values that nobody computed.
 *
 * Being loaded before torch, the library is asked for them in torch's place, and calls torch's. Their
 * names are those of C++: a Tensor, an optional and a Generator come as an address, and a Tensor is
 * given back at an address that comes first. A Tensor is one pointer, to what never moves.
 */
#include "stand_in.h"

#include <dlfcn.h>
#include <stdio.h>

/* torch's are not CUDA's, so crashes.c is not to name them; and C++'s errors pass through them. */
#define TORCHS __attribute__((no_instrument_function))

static void *torchs_own(const char *library, const char *name) {
    void *loaded = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
    void *function = dlsym(loaded ? loaded : RTLD_NEXT, name);
    if (loaded) dlclose(loaded);
    return function;
}
/* Whoever calls it was linked with it, so it is there. */
TORCHS static void *operator_of_torch(const char *name) {
    void *function = torchs_own("libtorch_cpu.so", name);
    if (function) return function;
    fprintf(stderr, "memprof dry-run: torch has no %s\n", name);
    abort();
}
#define OPERATOR(name) \
    static void *torchs_function; \
    if (!torchs_function) torchs_function = operator_of_torch(name)

/* -- the blocks that an operator was handed out -------------------------------------------------- */

#define MOST_BLOCKS 32
/* Those that the thread's operator still holds, the latest last. */
static __thread struct {
    const void *start;
    size_t bytes;
} blocks[MOST_BLOCKS];
static __thread int blocks_held, is_operator_running;

TORCHS static void operator_begins(void) { blocks_held = 0, is_operator_running = 1; }
TORCHS static void block_is_handed_out(const void *start, size_t bytes) {
    if (!is_operator_running || blocks_held == MOST_BLOCKS) return;
    blocks[blocks_held].start = start, blocks[blocks_held++].bytes = bytes;
}
TORCHS static void block_is_given_back(const void *start) {
    if (!is_operator_running) return;
    for (int i = blocks_held; i-- > 0;)
        if (blocks[i].start == start) {
            memmove(&blocks[i], &blocks[i + 1], (size_t)(--blocks_held - i) * sizeof *blocks);
            return;
        }
}

/* -- conditions that are taken to hold ------------------------------------------------------------- */

/* Values are taken to be finite: a program that works on a card ends where one is not. So what
 * isfinite() gives is true, and so is what all() and "and" make of that. */
#define MOST_TRUE 256
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    const void *tensor, *block;
} true_tensors[MOST_TRUE]; /* a ring: the oldest is forgotten */
static unsigned true_made;

TORCHS static int is_true(const void *tensor) {
    int found = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MOST_TRUE && !found; i++) found = true_tensors[i].block && true_tensors[i].tensor == tensor;
    pthread_mutex_unlock(&lock);
    return found;
}
/* The thread's operator has given `tensor`, which lies in the last block that it still holds. */
TORCHS static void note_true(const void *tensor) {
    is_operator_running = 0;
    if (!blocks_held) return; /* it was none on a device */
    const void *block = blocks[blocks_held - 1].start;
    take_for_true((void *)(uintptr_t)block, blocks[blocks_held - 1].bytes);
    pthread_mutex_lock(&lock);
    unsigned place = true_made % MOST_TRUE;
    true_tensors[place].tensor = tensor, true_tensors[place].block = block;
    __atomic_store_n(&true_made, true_made + 1, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&lock);
}
TORCHS static void forget_true(const void *block) {
    if (!__atomic_load_n(&true_made, __ATOMIC_RELAXED)) return;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MOST_TRUE; i++)
        if (true_tensors[i].block == block) true_tensors[i].block = NULL;
    pthread_mutex_unlock(&lock);
}

#define TENSOR_AT(place) (*(const void *const *)(place))

TORCHS void *_ZN2at4_ops8isfinite4callERKNS_6TensorE(void *result, const void *values) {
    OPERATOR("_ZN2at4_ops8isfinite4callERKNS_6TensorE");
    operator_begins();
    ((void *(*)(void *, const void *))torchs_function)(result, values);
    note_true(TENSOR_AT(result));
    return result;
}
TORCHS void *_ZN2at4_ops3all4callERKNS_6TensorE(void *result, const void *values) {
    OPERATOR("_ZN2at4_ops3all4callERKNS_6TensorE");
    int holds = is_true(TENSOR_AT(values));
    operator_begins();
    ((void *(*)(void *, const void *))torchs_function)(result, values);
    if (holds) note_true(TENSOR_AT(result));
    return result;
}
TORCHS void *_ZN2at4_ops7all_dim4callERKNS_6TensorElb(void *result, const void *values, int64_t dimension, _Bool keep) {
    OPERATOR("_ZN2at4_ops7all_dim4callERKNS_6TensorElb");
    int holds = is_true(TENSOR_AT(values));
    operator_begins();
    ((void *(*)(void *, const void *, int64_t, _Bool))torchs_function)(result, values, dimension, keep);
    if (holds) note_true(TENSOR_AT(result));
    return result;
}
#define BOTH(name) \
    TORCHS void *name(void *result, const void *one, const void *other) { \
        OPERATOR(#name); \
        int hold = is_true(TENSOR_AT(one)) && is_true(TENSOR_AT(other)); \
        operator_begins(); \
        ((void *(*)(void *, const void *, const void *))torchs_function)(result, one, other); \
        if (hold) note_true(TENSOR_AT(result)); \
        return result; \
    }
BOTH(_ZN2at4_ops14__and___Tensor4callERKNS_6TensorES4_)
BOTH(_ZN2at4_ops18bitwise_and_Tensor4callERKNS_6TensorES4_)
BOTH(_ZN2at4_ops11logical_and4callERKNS_6TensorES4_)

/* Operators that read from the device whether their arguments are allowed, and fail if not: weights
 * and deviations that are not negative. In a program that works on a card they are. */
#define CHECKED(name, answers, result_kind, parameters, arguments) \
    TORCHS result_kind name parameters { \
        static const uint64_t all_answers[] = answers; \
        volatile uint64_t mark; \
        OPERATOR(#name); \
        expect_checks(all_answers, sizeof all_answers / sizeof *all_answers, &mark); \
        result_kind given = ((result_kind(*) parameters)torchs_function)arguments; \
        expect_checks(NULL, 0, NULL); \
        mark = 0; \
        return given; \
    }
#define ANSWERS(...) {__VA_ARGS__}
CHECKED(_ZN2at4_ops23normal_float_Tensor_out4callEdRKNS_6TensorESt8optionalINS_9GeneratorEERS2_, ANSWERS(1, 1), void *,
        (double mean, const void *deviation, void *generator, void *out), (mean, deviation, generator, out))
CHECKED(_ZN2at4_ops19normal_float_Tensor4callEdRKNS_6TensorESt8optionalINS_9GeneratorEE, ANSWERS(1, 1), void *,
        (void *result, double mean, const void *deviation, void *generator), (result, mean, deviation, generator))
CHECKED(_ZN2at4_ops24normal_Tensor_Tensor_out4callERKNS_6TensorES4_St8optionalINS_9GeneratorEERS2_, ANSWERS(1, 1), void *,
        (const void *mean, const void *deviation, void *generator, void *out), (mean, deviation, generator, out))
CHECKED(_ZN2at4_ops20normal_Tensor_Tensor4callERKNS_6TensorES4_St8optionalINS_9GeneratorEE, ANSWERS(1, 1), void *,
        (void *result, const void *mean, const void *deviation, void *generator), (result, mean, deviation, generator))
CHECKED(_ZN2at4_ops3cov4callERKNS_6TensorElRKSt8optionalIS2_ES8_, ANSWERS(1, 1, 1), void *,
        (void *result, const void *values, int64_t correction, const void *frequencies, const void *weights),
        (result, values, correction, frequencies, weights))
/* torch 2.4's: all are above 0, and their sum is not; later ones leave that to a kernel. */
CHECKED(_ZN2at4_ops11multinomial4callERKNS_6TensorElbSt8optionalINS_9GeneratorEE, ANSWERS(1), void *,
        (void *result, const void *weights, int64_t number, _Bool replace, void *generator),
        (result, weights, number, replace, generator))
/* The sum of all repeats, then that none is negative. */
CHECKED(_ZN2at4_ops24repeat_interleave_Tensor4callERKNS_6TensorESt8optionalIN3c106SymIntEE, ANSWERS(0, 1), void *,
        (void *result, const void *repeats, void *size), (result, repeats, size))

/* -- torch's allocator --------------------------------------------------------------------------- */

/* It calls this for each block that it hands out (bytes above 0) or takes back; torch's passes the call
 * on to a profiler, if one runs. What lay in a block is forgotten when it is handed out. A Device is two
 * bytes, which are passed as a number. */
TORCHS void _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE(void *block, int64_t bytes, size_t allocated,
                                                                  size_t reserved, uint16_t device) {
    static void (*torchs)(void *, int64_t, size_t, size_t, uint16_t);
    if (device_of(block) >= 0) {
        if (bytes > 0) {
            forget_values(block, (size_t)bytes);
            block_is_handed_out(block, (size_t)bytes);
        } else {
            forget_true(block);
            block_is_given_back(block);
        }
    }
    if (!torchs) torchs = torchs_own("libc10.so", "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE");
    if (torchs) torchs(block, bytes, allocated, reserved, device);
}
