/* Memory of the devices: addresses, bytes taken, allocations, and pinned memory of the host.
 *
 * A device is a large range of addresses without memory behind it. What is handed out are pages of
 * it; nothing is touched but what the program copies in (values.c), so a model of any size costs
 * next to nothing. How a card's own address space fragments is not simulated: a request fails for
 * want of bytes only.
 */
#include "stand_in.h"

#include <sys/mman.h>

#define VIEW ((size_t)1 << 40)
#define FIRST_ADDRESS 0x7000000000000ull

typedef struct Piece {
    size_t first_page, pages;
    size_t charged; /* bytes of the device */
    struct Piece *next;
} Piece;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    char *view;
    Piece *pieces; /* in order of addresses */
    size_t used;
} devices[MOST_DEVICES];

/* -- bytes --------------------------------------------------------------------------------------- */

size_t free_bytes(int device) {
    const Card *card = the_card();
    size_t gone = devices[device].used + card->context_bytes + setting("MEMPROF_DRY_RUN_OTHER_BYTES", 0);
    return gone > card->total_bytes ? 0 : card->total_bytes - gone;
}

static int charge_locked(int device, size_t bytes) {
    if (bytes > free_bytes(device)) return 0;
    devices[device].used += bytes;
    return 1;
}
int charge(int device, size_t bytes) {
    pthread_mutex_lock(&lock);
    int fits = charge_locked(device, bytes);
    pthread_mutex_unlock(&lock);
    return fits;
}
void discharge(int device, size_t bytes) {
    pthread_mutex_lock(&lock);
    devices[device].used -= bytes;
    pthread_mutex_unlock(&lock);
}

/* -- addresses ----------------------------------------------------------------------------------- */

/* The same addresses in every run where they are free, so that recordings can be compared. */
static char *view_of(int device) {
    if (!devices[device].view) {
        const int protection = PROT_READ | PROT_WRITE;
        const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        void *wished = (void *)(FIRST_ADDRESS - (size_t)(device + 1) * VIEW * 2);
        void *at = mmap(wished, VIEW, protection, flags, -1, 0);
        if (at == MAP_FAILED) return NULL;
        devices[device].view = (char *)(((uintptr_t)at + PAGE - 1) & ~(uintptr_t)(PAGE - 1));
    }
    return devices[device].view;
}
int has_context(int device) { return devices[device].view != NULL; }

/* First fit. */
void *take_addresses(int device, size_t bytes, int charged) {
    void *found = NULL;
    size_t pages = (bytes + PAGE - 1) / PAGE, at = 0;
    if (!pages || pages > VIEW / PAGE) return NULL;
    pthread_mutex_lock(&lock);
    if (view_of(device)) {
        Piece **link = &devices[device].pieces;
        while (*link && (*link)->first_page < at + pages) {
            at = (*link)->first_page + (*link)->pages;
            link = &(*link)->next;
        }
        Piece *piece = at + pages < VIEW / PAGE ? malloc(sizeof *piece) : NULL;
        if (piece && charged && !charge_locked(device, pages * PAGE)) {
            free(piece);
            piece = NULL;
        }
        if (piece) {
            *piece = (Piece){at, pages, charged ? pages * PAGE : 0, *link};
            *link = piece;
            found = devices[device].view + at * PAGE;
        }
    }
    pthread_mutex_unlock(&lock);
    return found;
}

int device_of(const void *pointer) {
    const char *at = pointer;
    for (int d = 0; d < device_count(); d++)
        if (devices[d].view && at >= devices[d].view && at < devices[d].view + VIEW) return d;
    return -1;
}

/* The bytes of what was handed out at once and holds an address, and where it starts; 0 of none. */
static size_t piece_around(const void *pointer, CUdeviceptr *start) {
    int device = device_of(pointer);
    size_t bytes = 0;
    if (device < 0) return 0;
    pthread_mutex_lock(&lock);
    for (Piece *piece = devices[device].pieces; piece && !bytes; piece = piece->next) {
        const char *first = devices[device].view + piece->first_page * PAGE;
        if ((const char *)pointer < first || (const char *)pointer >= first + piece->pages * PAGE) continue;
        bytes = piece->pages * PAGE;
        if (start) *start = (CUdeviceptr)first;
    }
    pthread_mutex_unlock(&lock);
    return bytes;
}
size_t piece_bytes(const void *pointer) { return piece_around(pointer, NULL); }

int give_addresses_back(void *pointer) {
    int device = device_of(pointer);
    Piece *gone = NULL;
    if (device < 0) return 0;
    pthread_mutex_lock(&lock);
    for (Piece **link = &devices[device].pieces; *link; link = &(*link)->next)
        if (devices[device].view + (*link)->first_page * PAGE == (char *)pointer) {
            gone = *link;
            *link = gone->next;
            devices[device].used -= gone->charged;
            break;
        }
    pthread_mutex_unlock(&lock);
    if (!gone) return 0;
    forget_values(pointer, gone->pages * PAGE);
    madvise(pointer, gone->pages * PAGE, MADV_DONTNEED);
    free(gone);
    return 1;
}

/* -- allocations --------------------------------------------------------------------------------- */

cudaError_t cudaMalloc(void **pointer, size_t bytes) {
    if (!bytes) return *pointer = NULL, cudaSuccess;
    *pointer = take_addresses(current_device(), bytes, 1);
    return *pointer ? cudaSuccess : fail(cudaErrorMemoryAllocation);
}
cudaError_t cudaMallocManaged(void **pointer, size_t bytes, unsigned int flags) { return cudaMalloc(pointer, bytes); }
cudaError_t cudaFree(void *pointer) {
    return !pointer || give_addresses_back(pointer) ? cudaSuccess : fail(cudaErrorInvalidValue);
}
cudaError_t cudaMemGetInfo(size_t *unused, size_t *total) {
    *unused = free_bytes(current_device()), *total = the_card()->total_bytes;
    return cudaSuccess;
}
CUresult cuMemGetInfo(size_t *unused, size_t *total) { return cudaMemGetInfo(unused, total), CUDA_SUCCESS; }

/* -- the driver's names for the same --------------------------------------------------------------- */

static CUresult of_driver(cudaError_t error) {
    return error == cudaSuccess ? CUDA_SUCCESS
           : error == cudaErrorMemoryAllocation ? CUDA_ERROR_OUT_OF_MEMORY
                                                : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuMemAlloc(CUdeviceptr *pointer, size_t bytes) { return of_driver(cudaMalloc((void **)pointer, bytes)); }
CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned int flags) { return cuMemAlloc(pointer, bytes); }
CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream) {
    return of_driver(cudaMallocAsync((void **)pointer, bytes, stream));
}
CUresult cuMemFree(CUdeviceptr pointer) { return of_driver(cudaFree((void *)pointer)); }
CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) { return of_driver(cudaFreeAsync((void *)pointer, stream)); }
CUresult cuMemHostAlloc(void **pointer, size_t bytes, unsigned int flags) {
    return of_driver(cudaHostAlloc(pointer, bytes, flags));
}
CUresult cuMemAllocHost(void **pointer, size_t bytes) { return of_driver(cudaHostAlloc(pointer, bytes, 0)); }
CUresult cuMemFreeHost(void *pointer) { return of_driver(cudaFreeHost(pointer)); }
CUresult cuMemHostRegister(void *pointer, size_t bytes, unsigned int flags) {
    return of_driver(cudaHostRegister(pointer, bytes, flags));
}
CUresult cuMemHostUnregister(void *pointer) { return of_driver(cudaHostUnregister(pointer)); }
CUresult cuMemHostGetDevicePointer(CUdeviceptr *device, void *host, unsigned int flags) {
    return *device = (CUdeviceptr)host, CUDA_SUCCESS;
}
CUresult cuMemGetAddressRange(CUdeviceptr *start, size_t *bytes, CUdeviceptr pointer) {
    size_t whole = piece_around((const void *)pointer, start);
    if (bytes) *bytes = whole;
    return whole ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* -- the driver's own pools, of torch's backend cudaMallocAsync ------------------------------------
 *
 * What is freed stays in the pool, as torch asks the driver by a release threshold without end; how
 * large the pieces are that the driver adds to a pool is its secret, so only used bytes are exact. */

static struct {
    uint64_t used, highest;
} pools[MOST_DEVICES];

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device) {
    return *pool = (cudaMemPool_t)&pools[device], cudaSuccess;
}
cudaError_t cudaDeviceGetMemPool(cudaMemPool_t *pool, int device) { return cudaDeviceGetDefaultMemPool(pool, device); }

static void count_in_pool(int device) {
    pools[device].used = devices[device].used;
    if (pools[device].used > pools[device].highest) pools[device].highest = pools[device].used;
}
cudaError_t cudaMallocAsync(void **pointer, size_t bytes, cudaStream_t stream) {
    cudaError_t error = cudaMalloc(pointer, bytes);
    count_in_pool(current_device());
    return error;
}
cudaError_t cudaFreeAsync(void *pointer, cudaStream_t stream) {
    int device = device_of(pointer);
    cudaError_t error = cudaFree(pointer);
    if (device >= 0) count_in_pool(device);
    return error;
}
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr which, void *value) {
    size_t device = ((char *)pool - (char *)pools) / sizeof *pools;
    if (device >= MOST_DEVICES) return fail(cudaErrorInvalidValue);
    switch (which) {
    case cudaMemPoolAttrUsedMemCurrent:
    case cudaMemPoolAttrReservedMemCurrent: *(uint64_t *)value = pools[device].used; break;
    case cudaMemPoolAttrUsedMemHigh:
    case cudaMemPoolAttrReservedMemHigh: *(uint64_t *)value = pools[device].highest; break;
    case cudaMemPoolAttrReleaseThreshold: *(uint64_t *)value = UINT64_MAX; break;
    default: *(int *)value = 1;
    }
    return cudaSuccess;
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr which, void *value) {
    size_t device = ((char *)pool - (char *)pools) / sizeof *pools;
    if (device >= MOST_DEVICES) return fail(cudaErrorInvalidValue);
    int high = which == cudaMemPoolAttrUsedMemHigh || which == cudaMemPoolAttrReservedMemHigh;
    if (high) pools[device].highest = pools[device].used; /* torch resets a peak by setting it to 0 */
    return cudaSuccess;
}

/* -- pinned memory of the host ---------------------------------------------------------------------
 *
 * Real memory, with a list of what is pinned: is_pinned() asks for the kind of an address. */

typedef struct Pinned {
    char *start;
    size_t bytes;
    int registered; /* the program's own memory, pinned afterwards */
    struct Pinned *next;
} Pinned;
static Pinned *pinned;

static int remember_pinned(void *start, size_t bytes, int registered) {
    Pinned *one = malloc(sizeof *one);
    if (!one) return 0;
    pthread_mutex_lock(&lock);
    *one = (Pinned){start, bytes, registered, pinned};
    pinned = one;
    pthread_mutex_unlock(&lock);
    return 1;
}
static int forget_pinned(void *start, int registered) {
    Pinned *gone = NULL;
    pthread_mutex_lock(&lock);
    for (Pinned **link = &pinned; *link; link = &(*link)->next)
        if ((*link)->start == start && (*link)->registered == registered) {
            gone = *link;
            *link = gone->next;
            break;
        }
    pthread_mutex_unlock(&lock);
    free(gone);
    return gone != NULL;
}
static int is_pinned(const void *pointer) {
    int found = 0;
    const char *at = pointer;
    pthread_mutex_lock(&lock);
    for (Pinned *one = pinned; one && !found; one = one->next)
        found = at >= one->start && at < one->start + one->bytes;
    pthread_mutex_unlock(&lock);
    return found;
}

cudaError_t cudaHostAlloc(void **pointer, size_t bytes, unsigned int flags) {
    size_t size = bytes ? bytes : 1;
    if (posix_memalign(pointer, 4096, size)) return fail(cudaErrorMemoryAllocation);
    if (remember_pinned(*pointer, size, 0)) return cudaSuccess;
    free(*pointer);
    return fail(cudaErrorMemoryAllocation);
}
#undef cudaMallocHost
cudaError_t cudaMallocHost(void **pointer, size_t bytes) { return cudaHostAlloc(pointer, bytes, 0); }
cudaError_t cudaFreeHost(void *pointer) {
    if (pointer && !forget_pinned(pointer, 0)) return fail(cudaErrorInvalidValue);
    return free(pointer), cudaSuccess;
}
cudaError_t cudaHostRegister(void *pointer, size_t bytes, unsigned int flags) {
    if (is_pinned(pointer)) return fail(cudaErrorHostMemoryAlreadyRegistered);
    return remember_pinned(pointer, bytes, 1) ? cudaSuccess : fail(cudaErrorMemoryAllocation);
}
cudaError_t cudaHostUnregister(void *pointer) {
    return forget_pinned(pointer, 1) ? cudaSuccess : fail(cudaErrorHostMemoryNotRegistered);
}
cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned int flags) {
    return *device = host, cudaSuccess;
}
cudaError_t cudaHostGetFlags(unsigned int *flags, void *host) { return *flags = 0, cudaSuccess; }

#undef cudaPointerGetAttributes
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *pointer) {
    int device = device_of(pointer), host = device < 0 && is_pinned(pointer);
    memset(attributes, 0, sizeof *attributes);
    attributes->type = device >= 0 ? cudaMemoryTypeDevice : host ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered;
    attributes->device = device >= 0 ? device : host ? current_device() : cudaInvalidDeviceId;
    attributes->devicePointer = device >= 0 || host ? (void *)pointer : NULL;
    attributes->hostPointer = host ? (void *)pointer : NULL;
    return cudaSuccess;
}
CUresult cuPointerGetAttribute(void *value, CUpointer_attribute which, CUdeviceptr pointer) {
    int device = device_of((void *)pointer);
    switch (which) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        if (device < 0 && !is_pinned((void *)pointer)) return CUDA_ERROR_INVALID_VALUE;
        *(unsigned int *)value = device < 0 ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *(CUdeviceptr *)value = pointer; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)value = device < 0 ? current_device() : device; break;
    case CU_POINTER_ATTRIBUTE_CONTEXT: *(uintptr_t *)value = (uintptr_t)(device < 0 ? 0 : device + 1); break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}
CUresult cuPointerGetAttributes(unsigned int number, CUpointer_attribute *which, void **values, CUdeviceptr pointer) {
    for (unsigned int i = 0; i < number; i++)
        if (cuPointerGetAttribute(values[i], which[i], pointer) != CUDA_SUCCESS) memset(values[i], 0, sizeof(int));
    return CUDA_SUCCESS;
}
