/* Kernels, which do not run: whether the card could run them, and how many blocks of one would fit.
 *
 * nvcc's code registers each "fat binary" (one for each of a library's object files, with machine
 * code for several architectures) and each kernel in it. Which machine code a card would get
 * decides the algorithms that CUB takes, and with them sizes of scratch memory; where there is none
 * a launch fails as it would on the card. */
#include "stand_in.h"

#include <cuda_occupancy.h>

/* -- fat binaries --------------------------------------------------------------------------------- */

#define FATBIN_MAGIC 0xBA55ED50u
enum { PTX = 1, MACHINE_CODE = 2 };

typedef struct {
    int magic, version;
    const unsigned char *data;
    void *prelinked;
} Wrapper; /* __fatBinC_Wrapper_t of fatbinary_section.h */

typedef struct {
    const unsigned char *data;
    int architecture; /* of the code that the card gets, 86 for 8.6; -1 none; 0 not looked for yet */
} Binary;

static Binary *known(const unsigned char *data) {
    Binary *made = calloc(1, sizeof *made);
    if (made) made->data = data;
    return made;
}
static uint32_t u32(const unsigned char *at) { return at[0] | at[1] << 8 | at[2] << 16 | (uint32_t)at[3] << 24; }

/* Machine code of the card's own major version and no later minor one is taken before PTX, which
 * every later card can compile. Without a header that is understood all code is taken to fit. */
static int architecture_for(const unsigned char *data, int card) {
    if (u32(data) != FATBIN_MAGIC) return card;
    uint64_t bytes;
    memcpy(&bytes, data + 8, sizeof bytes);
    const unsigned char *at = data + (data[6] | data[7] << 8), *end = at + bytes;
    int code = -1, ptx = -1;
    while (at + 64 <= end) {
        int kind = at[0] | at[1] << 8, architecture = (int)u32(at + 28);
        uint64_t payload;
        memcpy(&payload, at + 8, sizeof payload);
        if (kind == MACHINE_CODE && architecture / 10 == card / 10 && architecture <= card && architecture > code)
            code = architecture;
        if (kind == PTX && architecture <= card && architecture > ptx) ptx = architecture;
        uint64_t step = u32(at + 4) + payload;
        if (!step || step > (uint64_t)(end - at)) break;
        at += step;
    }
    return code > 0 ? code : ptx;
}
static int architecture_of(Binary *binary) {
    if (!binary->architecture)
        binary->architecture = architecture_for(binary->data, the_card()->major * 10 + the_card()->minor);
    return binary->architecture;
}

void **__cudaRegisterFatBinary(void *wrapper) { return (void **)known(((Wrapper *)wrapper)->data); }
char __cudaInitModule(void **binary) { return 1; }

/* -- functions ------------------------------------------------------------------------------------ */

/* An open hash table: torch registers some hundred thousand kernels when it is loaded. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    const void *function;
    Binary *binary;
} *table;
static size_t slots, filled;

static size_t slot_of(const void *function) {
    size_t at = ((uintptr_t)function * 0x9E3779B97F4A7C15ull) >> 20 & (slots - 1);
    while (table[at].function && table[at].function != function) at = (at + 1) & (slots - 1);
    return at;
}
static void grow(void) {
    size_t before = slots, larger = slots ? slots * 2 : 1 << 16;
    __typeof__(table) old = table, made = calloc(larger, sizeof *made);
    if (!made) return;
    table = made, slots = larger;
    for (size_t i = 0; i < before; i++)
        if (old[i].function) table[slot_of(old[i].function)] = old[i];
    free(old);
}
void __cudaRegisterFunction(void **binary, const char *function, char *device_function, const char *name, int threads,
                            uint3 *thread, uint3 *block, dim3 *block_size, dim3 *grid_size, int *warp_size) {
    pthread_mutex_lock(&lock);
    if (filled * 2 >= slots) grow();
    if (filled + 1 < slots) {
        size_t at = slot_of(function);
        filled += table[at].function == NULL;
        table[at].function = function;
        table[at].binary = (Binary *)binary;
    }
    pthread_mutex_unlock(&lock);
}
/* As `architecture_of`; the card's own of what was never registered. */
static int architecture_of_function(const void *function) {
    int card = the_card()->major * 10 + the_card()->minor;
    pthread_mutex_lock(&lock);
    Binary *binary = slots ? table[slot_of(function)].binary : NULL;
    int architecture = binary ? architecture_of(binary) : card;
    pthread_mutex_unlock(&lock);
    return architecture;
}

/* -- launches ------------------------------------------------------------------------------------- */

static __thread struct {
    dim3 grid, block;
    size_t shared;
    void *stream;
} configuration;
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream) {
    configuration.grid = grid, configuration.block = block;
    configuration.shared = shared, configuration.stream = stream;
    return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
    *grid = configuration.grid, *block = configuration.block;
    *shared = configuration.shared, *(void **)stream = configuration.stream;
    return cudaSuccess;
}
static cudaError_t launch(const void *function) {
    note_kernel();
    return architecture_of_function(function) < 0 ? fail(cudaErrorNoKernelImageForDevice) : cudaSuccess;
}
cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared,
                             cudaStream_t stream) {
    return launch(function);
}
cudaError_t cudaLaunchCooperativeKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared,
                                        cudaStream_t stream) {
    return launch(function);
}
/* What CUDA 13's compiler makes of a launch: the kernel's handle is asked for once and kept. Here
 * the handle is the function's address. */
cudaError_t __cudaGetKernel(void **kernel, const void *function) { return *kernel = (void *)function, cudaSuccess; }
cudaError_t __cudaLaunchKernel(void *kernel, dim3 grid, dim3 block, void **arguments, size_t shared,
                               cudaStream_t stream) {
    return launch(kernel);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *function, void **arguments) {
    return launch(function);
}

/* -- attributes and occupancy ---------------------------------------------------------------------- */

/* Registers of a kernel stand in its machine code, which is compressed and is not read. 32 is
 * what lets every card fill a multiprocessor; the scratch memory of CUB's reductions, a few KiB,
 * may so be larger than the card's. */
#define REGISTERS 32

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *function) {
    int architecture = architecture_of_function(function);
    if (architecture < 0) return fail(cudaErrorNoKernelImageForDevice);
    memset(attributes, 0, sizeof *attributes);
    attributes->maxThreadsPerBlock = 1024;
    attributes->numRegs = REGISTERS;
    attributes->binaryVersion = attributes->ptxVersion = architecture;
    attributes->maxDynamicSharedSizeBytes = 48 << 10;
    return cudaSuccess;
}

static int active_blocks(int threads, size_t dynamic_shared) {
    const Card *card = the_card();
    struct cudaOccDeviceProp properties = {
        .computeMajor = card->major,
        .computeMinor = card->minor,
        .maxThreadsPerBlock = 1024,
        .maxThreadsPerMultiprocessor = card->threads_per_multiprocessor,
        .regsPerBlock = 65536,
        .regsPerMultiprocessor = card->registers_per_multiprocessor,
        .warpSize = 32,
        .sharedMemPerBlock = 48 << 10,
        .sharedMemPerMultiprocessor = card->shared_bytes_per_multiprocessor,
        .numSms = card->multiprocessors,
        .sharedMemPerBlockOptin = card->shared_bytes_per_block_optin,
        .reservedSharedMemPerBlock = card->shared_bytes_reserved_per_block,
    };
    struct cudaOccFuncAttributes function = {
        .maxThreadsPerBlock = 1024,
        .numRegs = REGISTERS,
        .partitionedGCConfig = PARTITIONED_GC_OFF,
        .shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN,
        .maxDynamicSharedSizeBytes = card->shared_bytes_per_block_optin,
        .numBlockBarriers = 1,
    };
    struct cudaOccDeviceState state = {0};
    struct cudaOccResult result;
    if (threads > 0 && cudaOccMaxActiveBlocksPerMultiprocessor(&result, &properties, &function, &state, threads,
                                                               dynamic_shared) == CUDA_OCC_SUCCESS)
        return result.activeBlocksPerMultiprocessor;
    /* A card that the headers beside this torch are too old for. */
    int by_threads = threads > 0 ? card->threads_per_multiprocessor / threads : 0;
    return by_threads < card->blocks_per_multiprocessor ? by_threads : card->blocks_per_multiprocessor;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function, int threads,
                                                          size_t dynamic_shared) {
    return *blocks = active_blocks(threads, dynamic_shared), cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function, int threads,
                                                                   size_t dynamic_shared, unsigned int flags) {
    return *blocks = active_blocks(threads, dynamic_shared), cudaSuccess;
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int threads,
                                                     size_t dynamic_shared) {
    return *blocks = active_blocks(threads, dynamic_shared), CUDA_SUCCESS;
}
cudaError_t cudaOccupancyMaxActiveClusters(int *clusters, const void *function, const cudaLaunchConfig_t *config) {
    return *clusters = the_card()->multiprocessors / 16 ? the_card()->multiprocessors / 16 : 1, cudaSuccess;
}

/* -- what Triton loads its kernels by --------------------------------------------------------------- */

static char the_module;

CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    return *module = (CUmodule)&the_module, CUDA_SUCCESS;
}
CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int options, CUjit_option *names,
                            void **values) {
    return *module = (CUmodule)&the_module, CUDA_SUCCESS;
}
CUresult cuModuleLoad(CUmodule *module, const char *path) { return *module = (CUmodule)&the_module, CUDA_SUCCESS; }
CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image) {
    return *module = (CUmodule)&the_module, CUDA_SUCCESS;
}
CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode) { return *mode = CU_MODULE_LAZY_LOADING, CUDA_SUCCESS; }
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    return *function = (CUfunction)&the_module, CUDA_SUCCESS;
}
CUresult cuFuncGetAttribute(int *value, CUfunction_attribute which, CUfunction function) {
    *value = which == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : which == CU_FUNC_ATTRIBUTE_NUM_REGS ? REGISTERS : 0;
    return CUDA_SUCCESS;
}
CUresult cuOccupancyMaxActiveClusters(int *clusters, CUfunction function, const CUlaunchConfig *config) {
    return *clusters = the_card()->multiprocessors / 16 ? the_card()->multiprocessors / 16 : 1, CUDA_SUCCESS;
}
CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                        unsigned bz, unsigned shared, CUstream stream, void **arguments, void **extra) {
    return note_kernel(), CUDA_SUCCESS;
}
CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **arguments, void **extra) {
    return note_kernel(), CUDA_SUCCESS;
}
CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                   unsigned bz, unsigned shared, CUstream stream, void **arguments) {
    return note_kernel(), CUDA_SUCCESS;
}

/* A library is a module that belongs to no context. */
#if CUDA_VERSION >= 12000
CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *options, void **values,
                           unsigned int number, CUlibraryOption *of_library, void **its_values,
                           unsigned int its_number) {
    return *library = (CUlibrary)&the_module, CUDA_SUCCESS;
}
CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, CUjit_option *options, void **values,
                               unsigned int number, CUlibraryOption *of_library, void **its_values,
                               unsigned int its_number) {
    return *library = (CUlibrary)&the_module, CUDA_SUCCESS;
}
CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library) { return *module = (CUmodule)library, CUDA_SUCCESS; }
CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name) {
    return *kernel = (CUkernel)&the_module, CUDA_SUCCESS;
}
CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel) {
    return *function = (CUfunction)kernel, CUDA_SUCCESS;
}
CUresult cuKernelGetAttribute(int *value, CUfunction_attribute which, CUkernel kernel, CUdevice device) {
    return cuFuncGetAttribute(value, which, (CUfunction)kernel);
}
#endif

/* -- code that is linked while the program runs ------------------------------------------------------- */

static char nothing_linked[1];
CUresult cuLinkCreate(unsigned int number, CUjit_option *options, void **values, CUlinkState *state) {
    return *state = (CUlinkState)&the_module, CUDA_SUCCESS;
}
CUresult cuLinkComplete(CUlinkState state, void **code, size_t *bytes) {
    *code = nothing_linked;
    if (bytes) *bytes = sizeof nothing_linked;
    return CUDA_SUCCESS;
}

/* -- variables of the device ---------------------------------------------------------------------------
 *
 * They are part of what a context takes. Each gets addresses when it is first asked for. */

typedef struct Variable {
    const void *symbol;
    size_t bytes;
    void *at[MOST_DEVICES];
    struct Variable *next;
} Variable;
static Variable *variables;

void __cudaRegisterVar(void **binary, char *symbol, char *device_symbol, const char *name, int external, size_t bytes,
                       int constant, int global) {
    Variable *one = malloc(sizeof *one);
    if (!one) return;
    pthread_mutex_lock(&lock);
    *one = (Variable){.symbol = symbol, .bytes = bytes, .next = variables};
    variables = one;
    pthread_mutex_unlock(&lock);
}
static void *address_of_variable(const void *symbol, size_t *bytes) {
    int device = current_device();
    void *at = NULL;
    pthread_mutex_lock(&lock);
    for (Variable *one = variables; one && !at; one = one->next) {
        if (one->symbol != symbol) continue;
        if (!one->at[device]) one->at[device] = take_addresses(device, one->bytes ? one->bytes : 1, 0);
        at = one->at[device];
        if (bytes) *bytes = one->bytes;
    }
    pthread_mutex_unlock(&lock);
    return at;
}
#undef cudaGetSymbolAddress
cudaError_t cudaGetSymbolAddress(void **pointer, const void *symbol) {
    *pointer = address_of_variable(symbol, NULL);
    return *pointer ? cudaSuccess : fail(cudaErrorInvalidSymbol);
}
#undef cudaGetSymbolSize
cudaError_t cudaGetSymbolSize(size_t *bytes, const void *symbol) {
    return address_of_variable(symbol, bytes) ? cudaSuccess : fail(cudaErrorInvalidSymbol);
}
#undef cudaMemcpyToSymbol
cudaError_t cudaMemcpyToSymbol(const void *symbol, const void *from, size_t bytes, size_t offset,
                               enum cudaMemcpyKind kind) {
    char *at = address_of_variable(symbol, NULL);
    return at ? copy_values(at + offset, from, bytes) : fail(cudaErrorInvalidSymbol);
}
#undef cudaMemcpyToSymbolAsync
cudaError_t cudaMemcpyToSymbolAsync(const void *symbol, const void *from, size_t bytes, size_t offset,
                                    enum cudaMemcpyKind kind, cudaStream_t stream) {
    return cudaMemcpyToSymbol(symbol, from, bytes, offset, kind);
}
#undef cudaMemcpyFromSymbol
cudaError_t cudaMemcpyFromSymbol(void *to, const void *symbol, size_t bytes, size_t offset, enum cudaMemcpyKind kind) {
    const char *at = address_of_variable(symbol, NULL);
    return at ? copy_values(to, at + offset, bytes) : fail(cudaErrorInvalidSymbol);
}
#undef cudaMemcpyFromSymbolAsync
cudaError_t cudaMemcpyFromSymbolAsync(void *to, const void *symbol, size_t bytes, size_t offset,
                                      enum cudaMemcpyKind kind, cudaStream_t stream) {
    return cudaMemcpyFromSymbol(to, symbol, bytes, offset, kind);
}
