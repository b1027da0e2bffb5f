/* The CUDA runtime and driver as far as torch's allocator needs them, on the memory of the host.
 *
 * Memory is accounted for exactly: a device has so many bytes, a request beyond them fails as on a
 * real one. No kernel runs, no library computes: tensors hold zeros or whatever was copied in.
 * What is not here returns success and does nothing (see __main__.py).
 *
 *   STUB_CUDA_DEVICES  how many devices (1)
 *   STUB_CUDA_BYTES    bytes of each (8 GiB), of which half a GiB is the context's
 *   STUB_CUDA_OTHERS   bytes of each that other processes hold (0)
 *   STUB_CUDA_LAG      queries after which an event has happened (0)
 */
#define _GNU_SOURCE
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define MOST_DEVICES 16
#define PAGE ((size_t)2 << 20)
#define CONTEXT ((size_t)512 << 20)
#define VIEW ((size_t)1 << 40)

typedef struct Piece {
    size_t first, pages;
    size_t bytes; /* charged */
    struct Piece *next;
} Piece;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    char *view;
    Piece *pieces; /* by address */
    size_t used;
} devices[MOST_DEVICES];
static __thread int current = 0;
static __thread cudaError_t last = cudaSuccess;

static size_t number(const char *name, size_t otherwise) {
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}
static int count(void) {
    size_t n = number("STUB_CUDA_DEVICES", 1);
    return n > MOST_DEVICES ? MOST_DEVICES : (int)n;
}
static size_t capacity(void) { return number("STUB_CUDA_BYTES", (size_t)8 << 30); }
static size_t free_bytes(int d) {
    size_t gone = devices[d].used + CONTEXT + number("STUB_CUDA_OTHERS", 0);
    return gone > capacity() ? 0 : capacity() - gone;
}
static cudaError_t failed(cudaError_t error) { return last = error; }

static char *view_of(int d) {
    if (!devices[d].view) {
        void *at = mmap((void *)(0x7000000000000ull - (d + 1) * VIEW * 2), VIEW, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at == MAP_FAILED)
            at = mmap(NULL, VIEW, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        devices[d].view = at == MAP_FAILED ? NULL : (char *)(((uintptr_t)at + PAGE - 1) & ~(PAGE - 1));
    }
    return devices[d].view;
}

/* First fit, in pages of 2 MiB. `charged` counts towards the device's bytes. */
static void *take(int d, size_t size, int charged) {
    void *found = NULL;
    pthread_mutex_lock(&lock);
    size_t pages = (size + PAGE - 1) / PAGE, at = 0;
    if (view_of(d) && (!charged || pages * PAGE <= free_bytes(d))) {
        Piece **link = &devices[d].pieces;
        while (*link && (*link)->first < at + pages) {
            at = (*link)->first + (*link)->pages;
            link = &(*link)->next;
        }
        Piece *made = malloc(sizeof *made);
        *made = (Piece){at, pages, charged ? pages * PAGE : 0, *link};
        *link = made;
        devices[d].used += made->bytes;
        found = devices[d].view + at * PAGE;
    }
    pthread_mutex_unlock(&lock);
    return found;
}
static int give_back(void *pointer) {
    int done = 0;
    pthread_mutex_lock(&lock);
    for (int d = 0; d < count() && !done; d++)
        for (Piece **link = &devices[d].pieces; *link; link = &(*link)->next)
            if (devices[d].view + (*link)->first * PAGE == (char *)pointer) {
                Piece *gone = *link;
                *link = gone->next;
                devices[d].used -= gone->bytes;
                madvise(pointer, gone->pages * PAGE, MADV_DONTNEED);
                free(gone);
                done = 1;
                break;
            }
    pthread_mutex_unlock(&lock);
    return done;
}
static int device_of(const void *pointer) {
    for (int d = 0; d < count(); d++)
        if (devices[d].view && (char *)pointer >= devices[d].view && (char *)pointer < devices[d].view + VIEW)
            return d;
    return -1;
}

/* -- memory ------------------------------------------------------------------------------------ */

cudaError_t cudaMalloc(void **pointer, size_t size) {
    *pointer = take(current, size, 1);
    return *pointer ? cudaSuccess : failed(cudaErrorMemoryAllocation);
}
cudaError_t cudaFree(void *pointer) {
    return !pointer || give_back(pointer) ? cudaSuccess : failed(cudaErrorInvalidValue);
}
cudaError_t cudaMallocAsync(void **pointer, size_t size, cudaStream_t stream) { return cudaMalloc(pointer, size); }
cudaError_t cudaFreeAsync(void *pointer, cudaStream_t stream) { return cudaFree(pointer); }
cudaError_t cudaMemGetInfo(size_t *unused, size_t *total) {
    *unused = free_bytes(current), *total = capacity();
    return cudaSuccess;
}
cudaError_t cudaHostAlloc(void **pointer, size_t size, unsigned int flags) {
    return posix_memalign(pointer, 4096, size ? size : 1) ? failed(cudaErrorMemoryAllocation) : cudaSuccess;
}
cudaError_t cudaMallocHost(void **pointer, size_t size) { return cudaHostAlloc(pointer, size, 0); }
cudaError_t cudaFreeHost(void *pointer) { return free(pointer), cudaSuccess; }
cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned int flags) {
    return *device = host, cudaSuccess;
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t size, enum cudaMemcpyKind kind) {
    return memmove(to, from, size), cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, enum cudaMemcpyKind kind, cudaStream_t stream) {
    return memmove(to, from, size), cudaSuccess;
}
cudaError_t cudaMemcpyPeerAsync(void *to, int d, const void *from, int e, size_t size, cudaStream_t stream) {
    return memmove(to, from, size), cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *told, const void *pointer) {
    int d = device_of(pointer);
    memset(told, 0, sizeof *told);
    told->type = d < 0 ? cudaMemoryTypeUnregistered : cudaMemoryTypeDevice;
    told->device = d < 0 ? 0 : d;
    told->devicePointer = d < 0 ? NULL : (void *)pointer;
    return cudaSuccess;
}

/* -- devices ----------------------------------------------------------------------------------- */

cudaError_t cudaGetDeviceCount(int *n) { return *n = count(), cudaSuccess; }
cudaError_t cudaGetDevice(int *d) { return *d = current, cudaSuccess; }
cudaError_t cudaSetDevice(int d) {
    if (d < 0 || d >= count()) return failed(cudaErrorInvalidDevice);
    current = d;
    return cudaSuccess;
}
#undef cudaGetDeviceProperties
static cudaError_t properties(struct cudaDeviceProp *told, int d) {
    memset(told, 0, sizeof *told);
    snprintf(told->name, sizeof told->name, "Stub of a CUDA device");
    memcpy(told->uuid.bytes, "stub device    ", 15);
    told->uuid.bytes[15] = (char)d;
    told->totalGlobalMem = capacity();
    told->major = 9;
    told->multiProcessorCount = 16;
    told->warpSize = 32;
    told->maxThreadsPerBlock = 1024;
    told->maxThreadsPerMultiProcessor = 2048;
    told->maxThreadsDim[0] = told->maxThreadsDim[1] = 1024, told->maxThreadsDim[2] = 64;
    told->maxGridSize[0] = 2147483647, told->maxGridSize[1] = told->maxGridSize[2] = 65535;
    told->sharedMemPerBlock = 49152;
    told->sharedMemPerBlockOptin = 232448;
    told->sharedMemPerMultiprocessor = 233472;
    told->regsPerBlock = told->regsPerMultiprocessor = 65536;
    told->l2CacheSize = 50 << 20;
    told->pciBusID = d + 1;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties_v2(struct cudaDeviceProp *told, int d) { return properties(told, d); }
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *told, int d) { return properties(told, d); }
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr which, int d) {
    struct cudaDeviceProp told;
    properties(&told, d);
    switch (which) {
    case cudaDevAttrMultiProcessorCount: *value = told.multiProcessorCount; break;
    case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = 49152; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 232448; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
    case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
    case cudaDevAttrMaxGridDimX: *value = 2147483647; break;
    case cudaDevAttrMaxGridDimY: case cudaDevAttrMaxGridDimZ: *value = 65535; break;
    default: *value = 1;
    }
    return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char *text, int size, int d) {
    return snprintf(text, size, "0000:%02x:00.0", d + 1), cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int *can, int d, int e) { return *can = 1, cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    return *least = 0, *greatest = -5, cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int *version) { return *version = CUDA_VERSION, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int *version) { return *version = CUDA_VERSION, cudaSuccess; }
cudaError_t cudaGetLastError(void) {
    cudaError_t error = last;
    last = cudaSuccess;
    return error;
}
cudaError_t cudaPeekAtLastError(void) { return last; }
const char *cudaGetErrorString(cudaError_t error) {
    return error == cudaSuccess ? "no error" : error == cudaErrorMemoryAllocation ? "out of memory" : "an error of the stub";
}
const char *cudaGetErrorName(cudaError_t error) { return cudaGetErrorString(error); }

/* -- streams and events ------------------------------------------------------------------------ */

typedef struct {
    int device, capturing;
    unsigned long long id;
} Stream;
typedef struct {
    struct timespec at;
    int queries;
} Event;
static unsigned long long captures = 0;
static Stream standard;
static void *graphs[64]; /* of all: nothing is in one, and nothing is given back */

static Stream *stream_of(cudaStream_t stream) { return (uintptr_t)stream < 16 ? &standard : (Stream *)stream; }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned int flags, int priority) {
    Stream *made = calloc(1, sizeof *made);
    made->device = current;
    return *stream = (cudaStream_t)made, cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags) {
    return cudaStreamCreateWithPriority(stream, flags, 0);
}
cudaError_t cudaStreamCreate(cudaStream_t *stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }
cudaError_t cudaStreamDestroy(cudaStream_t stream) { return free(stream), cudaSuccess; }
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) { return *priority = 0, cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t stream) { return cudaSuccess; }
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
    stream_of(stream)->capturing = 1;
    stream_of(stream)->id = ++captures;
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
    stream_of(stream)->capturing = 0;
    return *graph = (cudaGraph_t)graphs, cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
    *status = stream_of(stream)->capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
static cudaError_t capture_info(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id) {
    if (id) *id = stream_of(stream)->id;
    return cudaStreamIsCapturing(stream, status);
}
#undef cudaStreamGetCaptureInfo
#undef cudaStreamGetCaptureInfo_v2
cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                                        unsigned long long *id, cudaGraph_t *graph,
                                        const cudaGraphNode_t **needed, size_t *n) {
    if (graph) *graph = NULL;
    if (n) *n = 0;
    return capture_info(stream, status, id);
}
#if CUDART_VERSION >= 13000
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                                     unsigned long long *id, cudaGraph_t *graph,
                                     const cudaGraphNode_t **needed, const cudaGraphEdgeData **edges, size_t *n) {
    if (graph) *graph = NULL;
    if (n) *n = 0;
    return capture_info(stream, status, id);
}
#endif
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *made, cudaGraph_t graph, unsigned long long flags) {
    return *made = (cudaGraphExec_t)graphs, cudaSuccess;
}
#undef cudaGraphInstantiate
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *made, cudaGraph_t graph, unsigned long long flags) {
    return *made = (cudaGraphExec_t)graphs, cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *n) { return *n = 1, cudaSuccess; }

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags) {
    return *event = (cudaEvent_t)calloc(1, sizeof(Event)), cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) { return free(event), cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    ((Event *)event)->queries = 0;
    return clock_gettime(CLOCK_MONOTONIC, &((Event *)event)->at), cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned int flags) {
    return cudaEventRecord(event, stream);
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
    if ((size_t)((Event *)event)->queries++ < number("STUB_CUDA_LAG", 0)) return failed(cudaErrorNotReady);
    return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t first, cudaEvent_t second) {
    struct timespec a = ((Event *)first)->at, b = ((Event *)second)->at;
    return *ms = (b.tv_sec - a.tv_sec) * 1e3f + (b.tv_nsec - a.tv_nsec) / 1e6f, cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t call, void *data) { return call(data), cudaSuccess; }
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t call, void *data, unsigned int flags) {
    return call(stream, cudaSuccess, data), cudaSuccess;
}

/* -- kernels, which do not run ----------------------------------------------------------------- */

static __thread struct {
    dim3 grid, block;
    size_t shared;
    void *stream;
} launch;
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream) {
    launch.grid = grid, launch.block = block, launch.shared = shared, launch.stream = stream;
    return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
    *grid = launch.grid, *block = launch.block, *shared = launch.shared, *(void **)stream = launch.stream;
    return cudaSuccess;
}
static void *nothing[64];
void **__cudaRegisterFatBinary(void *binary) { return nothing; }
char __cudaInitModule(void **binary) { return 1; }
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *told, const void *function) {
    memset(told, 0, sizeof *told);
    told->maxThreadsPerBlock = 1024;
    told->binaryVersion = told->ptxVersion = 90;
    return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n, const void *f, int size, size_t shared) {
    return *n = 1, cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n, const void *f, int size, size_t shared,
                                                                   unsigned int flags) {
    return *n = 1, cudaSuccess;
}
#define HANDLE(name) int name(void **handle) { return *handle = nothing, 0; }
HANDLE(cublasCreate_v2)
HANDLE(cublasLtCreate)
HANDLE(cudnnCreate)
HANDLE(cusparseCreate)
HANDLE(cusolverDnCreate)
int cublasLtMatmulAlgoGetHeuristic(void *h, void *op, void *a, void *b, void *c, void *d, void *preference,
                                   int wanted, void *results, int *n) {
    return *n = 1, 0;
}

/* -- the driver -------------------------------------------------------------------------------- */

CUresult cuInit(unsigned int flags) { return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int *version) { return *version = CUDA_VERSION, CUDA_SUCCESS; }
CUresult cuDeviceGetCount(int *n) { return *n = count(), CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice *device, int d) { return *device = d, CUDA_SUCCESS; }
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute which, CUdevice d) {
    switch (which) {
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: *value = 1; break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        return cudaDeviceGetAttribute(value, (enum cudaDeviceAttr)which, d), CUDA_SUCCESS;
    default: *value = 0;
    }
    return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxGetState(CUdevice d, unsigned int *flags, int *active) {
    return *flags = 0, *active = devices[d].view != NULL, CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext *context) { return *context = (CUcontext)nothing, CUDA_SUCCESS; }
CUresult cuGetErrorString(CUresult error, const char **text) { return *text = "an error of the stub", CUDA_SUCCESS; }

/* What Triton loads its kernels by, and asks before it launches one. */
CUresult cuModuleLoadData(CUmodule *module, const void *image) { return *module = (CUmodule)nothing, CUDA_SUCCESS; }
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    return *function = (CUfunction)nothing, CUDA_SUCCESS;
}
CUresult cuFuncGetAttribute(int *value, CUfunction_attribute which, CUfunction function) {
    return *value = which == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0, CUDA_SUCCESS;
}

/* Expandable segments: a view is reserved, pages of it are charged one after another. */
typedef struct {
    size_t size;
    int device;
} Physical;
CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *what,
                                       CUmemAllocationGranularity_flags flags) {
    return *bytes = PAGE, CUDA_SUCCESS;
}
CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t size, size_t alignment, CUdeviceptr at, unsigned long long f) {
    void *found = take(current, size, 0);
    *pointer = (CUdeviceptr)found;
    return found ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult cuMemAddressFree(CUdeviceptr pointer, size_t size) { return give_back((void *)pointer), CUDA_SUCCESS; }
CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *what,
                     unsigned long long flags) {
    int d = what->location.id, fits = 0;
    pthread_mutex_lock(&lock);
    if (size <= free_bytes(d)) devices[d].used += size, fits = 1;
    pthread_mutex_unlock(&lock);
    if (!fits) return CUDA_ERROR_OUT_OF_MEMORY;
    Physical *made = malloc(sizeof *made);
    *made = (Physical){size, d};
    return *handle = (CUmemGenericAllocationHandle)(uintptr_t)made, CUDA_SUCCESS;
}
CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    Physical *gone = (Physical *)(uintptr_t)handle;
    pthread_mutex_lock(&lock);
    devices[gone->device].used -= gone->size;
    pthread_mutex_unlock(&lock);
    return free(gone), CUDA_SUCCESS;
}
static int zero(void) { return 0; }
static cudaError_t entry(const char *name, void **function) {
    *function = dlsym(RTLD_DEFAULT, name);
    if (!*function) *function = (void *)zero;
    return cudaSuccess;
}
#undef cudaGetDriverEntryPoint
cudaError_t cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags,
                                    enum cudaDriverEntryPointQueryResult *status) {
    if (status) *status = cudaDriverEntryPointSuccess;
    return entry(name, function);
}
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned int version,
                                             unsigned long long flags, enum cudaDriverEntryPointQueryResult *status) {
    if (status) *status = cudaDriverEntryPointSuccess;
    return entry(name, function);
}
