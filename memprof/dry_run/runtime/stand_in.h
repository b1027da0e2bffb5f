/* What the parts of the stand-in for CUDA share: the card, the devices, their memory.
 *
 * The library takes the place of libcuda.so.1 and, being loaded before torch, of every CUDA library
 * that torch asks for: runtime, driver, cuBLAS and the others. It accounts for memory as the
 * driver would and runs no kernel. Each file holds one area; what is called and is nowhere here gets
 * a function that answers "success" or "not supported" (answers.py decides, build.py makes them).
 *
 * The card and the settings come from the environment, which launch.py writes and children of
 * the process inherit:
 *
 *   MEMPROF_DRY_RUN_CARD         the card as lines of "name=value"; the names are those of struct Card
 *   MEMPROF_DRY_RUN_GPUS         how many of it there are (1)
 *   MEMPROF_DRY_RUN_OTHER_BYTES  bytes of each that other processes hold (0); asked each time
 *   MEMPROF_DRY_RUN_MOST_POLLS   readings of one value in a row until they fail (100,000); asked each time
 *   MEMPROF_DRY_RUN_CUDNN        a cuDNN that is asked in the place of torch's, if that cannot be
 *   MEMPROF_DRY_RUN_EVENT_LAG    queries after which an event has happened (0); asked each time
 *   MEMPROF_DRY_RUN_MESSAGES     a file to which is added what the library has to say, besides stderr
 */
#ifndef MEMPROF_STAND_IN_H
#define MEMPROF_STAND_IN_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MOST_DEVICES 16
#define MIB ((size_t)1 << 20)
/* What the driver hands out at once: a request of 2 MiB or more takes whole pages of that size. */
#define PAGE (2 * MIB)

/* The library is linked from several files; only what CUDA has may be seen outside it. */
#define INTERNAL __attribute__((visibility("hidden")))

typedef struct {
    char name[128];
    size_t total_bytes;   /* as cudaMemGetInfo reports them */
    size_t context_bytes; /* taken by the context, before any allocation */
    int major, minor;     /* compute capability */
    int multiprocessors;
    int threads_per_multiprocessor;
    int blocks_per_multiprocessor;
    int registers_per_multiprocessor;
    size_t shared_bytes_per_multiprocessor;
    size_t shared_bytes_per_block_optin;
    size_t shared_bytes_reserved_per_block;
    size_t l2_bytes;
    int integrated; /* shares its memory with the host, as a Jetson does */
    int nccl_channels; /* of NCCL among several of them, as they are usually connected */
} Card;

/* card.c */
INTERNAL const Card *the_card(void);
INTERNAL int device_count(void);
/* A number in the environment, read each time, so that tests may change it in a running process. */
INTERNAL size_t setting(const char *name, size_t otherwise);

/* devices.c */
INTERNAL int current_device(void);
INTERNAL void fill_properties(struct cudaDeviceProp *properties, int device);
/* One table for both APIs: cudaDeviceAttr and CUdevice_attribute number attributes alike. */
INTERNAL int device_attribute(int which, int device);

/* errors.c */
INTERNAL cudaError_t fail(cudaError_t error);

/* memory.c */
INTERNAL size_t free_bytes(int device);
/* Counts bytes as taken on a device; 0 where it has not as many left. */
INTERNAL int charge(int device, size_t bytes);
INTERNAL void discharge(int device, size_t bytes);
/* Addresses of a device, with (`charged`) or without memory behind them; NULL where it has none. */
INTERNAL void *take_addresses(int device, size_t bytes, int charged);
INTERNAL int give_addresses_back(void *pointer);
/* The bytes of what was handed out at once at or around an address; 0 where nothing was. */
INTERNAL size_t piece_bytes(const void *pointer);
/* Whose memory an address is; -1 of none. */
INTERNAL int device_of(const void *pointer);
INTERNAL int has_context(int device);

/* values.c */
/* Fails where a program has read the same place again and again. */
INTERNAL cudaError_t copy_values(void *to, const void *from, size_t bytes);
/* The same piece to `times` places, one after another, of which the piece may be one. */
INTERNAL void repeat_values(void *to, const void *piece, size_t bytes, size_t times);
INTERNAL void set_values(void *to, int value, size_t bytes);
INTERNAL void forget_values(const void *start, size_t bytes);
INTERNAL void take_for_true(void *start, size_t bytes);
/* What the thread's next readings of a single number are, instead of zeros, while a `mark` of the caller's
 * is on the stack; none with 0 of them. */
INTERNAL void expect_checks(const uint64_t *answers, size_t number, volatile uint64_t *mark);
INTERNAL void note_kernel(void);
INTERNAL unsigned long long kernels_launched(void);

/* estimates.c */
/* Notes that the size of some memory for `what` was asked for: `bytes` by estimate, or not known
 * (`known` is 0) and counted as 0. `what` lives as long as the library. */
INTERNAL void note_estimate(const char *what, size_t bytes, int known);

/* refusals.c; the table is generated */
typedef struct {
    const char *name, *code; /* the code's own name */
    long refusal;            /* 0: it answers "success" */
} Answer;
INTERNAL extern const Answer answers[];
INTERNAL extern const size_t answers_made;
INTERNAL extern unsigned char answers_called[];
INTERNAL long answer(unsigned number);
INTERNAL long answer_without_size(unsigned number);
/* A line for the user. */
INTERNAL void say(const char *text);

/* crashes.c */
/* The thread called a function that has no code here. */
INTERNAL void note_call(const char *name);

/* cudnn_layers.c */
#define MOST_DIMENSIONS 8
typedef struct {
    int type, dimensions;
    int sizes[MOST_DIMENSIONS], strides[MOST_DIMENSIONS];
} TensorShape;

/* cudnn_estimates.c, of descriptors where no library is asked; `estimated_workspace` is -1 where there is no rule */
INTERNAL void *new_description(void);
INTERNAL void inherit_description(void *to, const void *from);
INTERNAL int64_t estimated_workspace(const void *descriptor);

#endif
