/* NCCL: communicators and what they hold of the card; collectives that complete at once.
 *
 * torch's own ProcessGroupNCCL runs above these functions, with its streams, its events, and the
 * tensors that it flattens and stashes, which are torch's allocator's and exact. What NCCL allocates
 * for itself lies outside torch's allocator and is taken from what the card has free.
 *
 * Sizes are those of NCCL's source (2.30.7; the constants are the same in 2.20), for the topology
 * that a card is usually sold in, which the description of the card names by its channels:
 *
 *   a connection   within a node, of one channel to one peer: a buffer to send of 2 MiB, and one to
 *                  receive of 10 MiB (transport/p2p.cc: 512 KiB + 4,915,200 B + 4 MiB for its three
 *                  protocols, rounded up to 2 MiB; with reads 6 + 6 MiB: the same in sum)
 *   a ring         one connection a channel; a tree the other direction of it
 *   shared memory  of send and receive: channels x 16 x 512 KiB, 128 KiB between nodes
 *                  (transport/net.cc); since 2.22 between nodes only
 *   NVLS           channels x 2 x 1 MiB x ranks of the node (transport/nvls.cc)
 *   code           80 MiB of NCCL's kernels, once a device
 *
 * They give what was measured on cards: 544 MiB a communicator of 2 and 688 MiB of 4 A100 for the
 * first rank (24 channels: 256 + 288, and 144 of half a tree; nccl#964), 388 MiB of a single rank
 * with 32 channels (sglang#35538). What another topology takes is another figure, so the report
 * says that this is an estimate.
 *
 * Nothing is sent. Every rank is taken to hold what this one holds: an all-gather copies this rank's
 * piece to every place, a broadcast leaves the receiver what it has. Shapes are right, values are
 * not, which values.c tells its listener. */
#include "stand_in.h"

#include <limits.h>
#include <stdio.h>
#include <unistd.h>

#define LL_BYTES ((size_t)8 * 512 * 8 * 16)
#define LL128_BYTES ((size_t)120 * 640 * 8 * 8)
#define SIMPLE_BYTES (4 * MIB)
#define SHARED_STEPS 16
#define CODE_BYTES (80 * MIB)
#define LAZILY_CONNECTED 22200 /* the version from which on algorithms are connected when they are first used */
#ifndef MEMPROF_NCCL_VERSION
#define MEMPROF_NCCL_VERSION 22203
#endif

enum { SUCCESS = 0, UNHANDLED_CUDA_ERROR = 1, INVALID_ARGUMENT = 4 };

typedef struct {
    char bytes[128];
} UniqueId;

/* The beginning of ncclConfig_t, which every version has. */
typedef struct {
    size_t size;
    unsigned int magic, version;
    int blocking, cluster, least_channels, most_channels;
} Config;

typedef struct Communicator {
    int rank, ranks, device, most_channels;
    size_t bytes; /* taken of the device */
    int rings, trees;
    unsigned char *peers; /* connected for send and receive */
    struct Communicator *next;
} Communicator;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Communicator *communicators;
static size_t taken[MOST_DEVICES], highest[MOST_DEVICES];
static size_t lacking[MOST_DEVICES]; /* of what was asked for first and was not there */
static unsigned char has_code[MOST_DEVICES];
static int made[MOST_DEVICES];

/* -- bytes ---------------------------------------------------------------------------------------- */

/* Called through ctypes: the most that communicators held of a device, how many bytes more than were
 * left they asked for when they got none, and how many were made on it. */
size_t memprof_dry_run_nccl_bytes(int device) {
    return device >= 0 && device < MOST_DEVICES ? highest[device] : 0;
}
size_t memprof_dry_run_nccl_lacking(int device) {
    return device >= 0 && device < MOST_DEVICES ? lacking[device] : 0;
}
int memprof_dry_run_communicators(int device) { return device >= 0 && device < MOST_DEVICES ? made[device] : 0; }

static size_t rounded(size_t bytes) { return (bytes + PAGE - 1) & ~(PAGE - 1); }

static size_t buffer_bytes(void) { return setting("NCCL_BUFFSIZE", SIMPLE_BYTES); }
static size_t connection_bytes(void) {
    size_t receive = setting("NCCL_LL_BUFFSIZE", LL_BYTES) + setting("NCCL_LL128_BUFFSIZE", LL128_BYTES);
    return rounded(receive + buffer_bytes() + 4096) + rounded(4096);
}
static int ranks_of_node(const Communicator *one) {
    int local = (int)setting("LOCAL_WORLD_SIZE", (size_t)device_count());
    return one->ranks < local ? one->ranks : local;
}
static int channels_of(const Communicator *one) {
    int channels = the_card()->nccl_channels ? the_card()->nccl_channels : 2;
    int most = (int)setting("NCCL_MAX_NCHANNELS", setting("NCCL_MAX_CTAS", 64));
    /* One rank alone has no topology that would limit it. */
    if (one->ranks == 1) channels = 32;
    if (one->most_channels < most) most = one->most_channels;
    return channels < most ? channels : most;
}
static int has_nvlink(void) { return the_card()->nccl_channels > 4; }
static size_t shared_bytes(const Communicator *one) {
    int between_nodes = one->ranks > ranks_of_node(one);
    if (MEMPROF_NCCL_VERSION >= LAZILY_CONNECTED && !between_nodes) return 0;
    int channels = has_nvlink() ? 32 : channels_of(one);
    size_t chunk = has_nvlink() && !between_nodes ? (size_t)512 << 10 : (size_t)128 << 10;
    if (chunk * 8 > buffer_bytes()) chunk = buffer_bytes() / 8;
    return (size_t)channels * SHARED_STEPS * chunk;
}
static size_t nvls_bytes(const Communicator *one) {
    int local = ranks_of_node(one);
    if (the_card()->major < 9 || !has_nvlink() || local < 3 || !setting("NCCL_NVLS_ENABLE", 1)) return 0;
    int channels = the_card()->major < 10 ? 16 : one->ranks > local ? 32 : 24;
    return (size_t)channels * 2 * MIB * (size_t)local;
}

static int take_locked(Communicator *one, size_t bytes) {
    int device = one->device;
    size_t code = has_code[device] ? 0 : CODE_BYTES;
    if (!charge(device, bytes + code)) {
        if (!lacking[device]) lacking[device] = bytes + code - free_bytes(device);
        return UNHANDLED_CUDA_ERROR;
    }
    has_code[device] = 1;
    one->bytes += bytes;
    taken[device] += bytes + code;
    if (taken[device] > highest[device]) highest[device] = taken[device];
    return SUCCESS;
}

/* What the first collective of a kind allocates: all of them a ring, an all-reduce a tree besides. */
static int connect_collective(Communicator *one, int reduces_to_all) {
    int all_at_once = MEMPROF_NCCL_VERSION < LAZILY_CONNECTED, error = SUCCESS;
    int with_tree = one->ranks > 1 && (reduces_to_all || all_at_once);
    pthread_mutex_lock(&lock);
    size_t each = (size_t)channels_of(one) * connection_bytes(), bytes = 0;
    if (!one->rings) bytes += each + shared_bytes(one);
    if (with_tree && !one->trees) {
        /* Two ranks are one another's neighbours in both; the first has nobody above it. */
        bytes += one->ranks == 2 ? 0 : one->rank == 0 ? each / 2 : each;
        bytes += nvls_bytes(one);
    }
    if (bytes) error = take_locked(one, bytes);
    if (!error) one->rings = 1, one->trees |= with_tree;
    pthread_mutex_unlock(&lock);
    return error;
}
static int connect_peer(Communicator *one, int peer) {
    if (peer < 0 || peer >= one->ranks) return INVALID_ARGUMENT;
    int error = SUCCESS;
    pthread_mutex_lock(&lock);
    if (peer != one->rank && !one->peers[peer]) {
        /* Within a node all channels, between nodes one, whose buffers are the shared ones. */
        int local = ranks_of_node(one), near = peer / local == one->rank / local;
        int channels = has_nvlink() ? 32 : channels_of(one);
        error = take_locked(one, near ? (size_t)channels * connection_bytes() : 2 * MIB);
        if (!error) one->peers[peer] = 1;
    }
    pthread_mutex_unlock(&lock);
    return error;
}

/* -- communicators -------------------------------------------------------------------------------- */

int ncclGetVersion(int *version) { return *version = MEMPROF_NCCL_VERSION, SUCCESS; }
const char *ncclGetErrorString(int error) {
    switch (error) {
    case SUCCESS: return "no error";
    case UNHANDLED_CUDA_ERROR: return "unhandled cuda error: the card has no memory left for NCCL's buffers";
    case INVALID_ARGUMENT: return "invalid argument";
    default: return "an error of the dry run";
    }
}
const char *ncclGetLastError(void *communicator) { return ""; }

int ncclGetUniqueId(UniqueId *id) {
    static int number;
    memset(id, 0, sizeof *id);
    snprintf(id->bytes, sizeof id->bytes, "memprof dry run %d.%d", (int)getpid(),
             __atomic_add_fetch(&number, 1, __ATOMIC_RELAXED));
    return SUCCESS;
}

static int make(void **communicator, int ranks, int rank, const Config *config) {
    if (rank < 0 || rank >= ranks) return INVALID_ARGUMENT;
    Communicator *one = calloc(1, sizeof *one);
    unsigned char *peers = calloc((size_t)ranks, 1);
    if (!one || !peers) {
        free(one), free(peers);
        return UNHANDLED_CUDA_ERROR;
    }
    int most = config ? config->most_channels : INT_MIN;
    *one = (Communicator){
        .rank = rank,
        .ranks = ranks,
        .device = current_device(),
        .most_channels = most > 0 ? most : INT_MAX,
        .peers = peers,
    };
    pthread_mutex_lock(&lock);
    one->next = communicators, communicators = one, made[one->device]++;
    pthread_mutex_unlock(&lock);
    *communicator = one;
    /* Until 2.22 NCCL connects everything here. */
    return MEMPROF_NCCL_VERSION < LAZILY_CONNECTED ? connect_collective(one, 0) : SUCCESS;
}
int ncclCommInitRank(void **communicator, int ranks, UniqueId id, int rank) {
    return make(communicator, ranks, rank, NULL);
}
int ncclCommInitRankConfig(void **communicator, int ranks, UniqueId id, int rank, Config *config) {
    return make(communicator, ranks, rank, config);
}
int ncclCommInitRankScalable(void **communicator, int ranks, int rank, int ids, UniqueId *id, Config *config) {
    return make(communicator, ranks, rank, config);
}
int ncclCommInitAll(void **communicators_made, int devices, const int *list) {
    int before = current_device(), error = SUCCESS;
    for (int i = 0; i < devices && !error; i++) {
        error = cudaSetDevice(list ? list[i] : i) ? INVALID_ARGUMENT : SUCCESS;
        if (!error) error = make(&communicators_made[i], devices, i, NULL);
    }
    cudaSetDevice(before);
    return error;
}

/* How many ranks are of this one's color only the others could tell. torch makes colors of lists of
 * ranks: absent_ranks.py tells how long the list of each was. A color that it does not know is of the
 * list that was told last, which torch is making a group of. */
#define MOST_COLORS 1024
static struct {
    int color, ranks;
} colors[MOST_COLORS];
static size_t colors_told;

/* Called through ctypes. */
void memprof_dry_run_color(int color, int ranks) {
    pthread_mutex_lock(&lock);
    colors[colors_told % MOST_COLORS].color = color;
    colors[colors_told++ % MOST_COLORS].ranks = ranks;
    pthread_mutex_unlock(&lock);
}
static int ranks_of_color(int color, int otherwise) {
    int ranks = otherwise;
    pthread_mutex_lock(&lock);
    if (colors_told) ranks = colors[(colors_told - 1) % MOST_COLORS].ranks;
    for (size_t i = colors_told; i > 0 && i + MOST_COLORS > colors_told; i--)
        if (colors[(i - 1) % MOST_COLORS].color == color) {
            ranks = colors[(i - 1) % MOST_COLORS].ranks;
            break;
        }
    pthread_mutex_unlock(&lock);
    return ranks;
}
int ncclCommSplit(void *parent, int color, int key, void **communicator, Config *config) {
    Communicator *whole = parent;
    if (color == -1) return *communicator = NULL, SUCCESS; /* NCCL_SPLIT_NOCOLOR */
    int ranks = ranks_of_color(color, whole->ranks);
    return make(communicator, ranks, key >= 0 && key < ranks ? key : whole->rank % ranks, config);
}
int ncclCommShrink(void *parent, int *excluded, int number, void **communicator, Config *config, int flags) {
    Communicator *whole = parent;
    int rank = whole->rank;
    for (int i = 0; i < number; i++) rank -= excluded[i] < whole->rank;
    return make(communicator, whole->ranks - number, rank, config);
}
int ncclCommGrow(void *parent, int ranks, const UniqueId *id, int rank, void **communicator, Config *config) {
    return make(communicator, ranks, parent ? ((Communicator *)parent)->rank : rank, config);
}
int ncclCommGetUniqueId(void *communicator, UniqueId *id) { return ncclGetUniqueId(id); }

int ncclCommDestroy(void *communicator) {
    Communicator *gone = NULL;
    pthread_mutex_lock(&lock);
    for (Communicator **link = &communicators; *link; link = &(*link)->next)
        if (*link == communicator) {
            gone = *link;
            *link = gone->next;
            break;
        }
    if (gone) discharge(gone->device, gone->bytes), taken[gone->device] -= gone->bytes;
    pthread_mutex_unlock(&lock);
    if (gone) free(gone->peers), free(gone);
    return SUCCESS;
}
int ncclCommAbort(void *communicator) { return ncclCommDestroy(communicator); }
int ncclCommFinalize(void *communicator) { return SUCCESS; }
int ncclCommGetAsyncError(void *communicator, int *error) { return *error = SUCCESS, SUCCESS; }
/* torch 2.4 asks them of the communicator of a rank that takes no part in a split, which is NULL. */
#define ANSWERS(name, type, field) \
    int name(const Communicator *communicator, type *value) { \
        if (!communicator) return INVALID_ARGUMENT; \
        return *value = communicator->field, SUCCESS; \
    }
ANSWERS(ncclCommCount, int, ranks)
ANSWERS(ncclCommCuDevice, int, device)
ANSWERS(ncclCommUserRank, int, rank)
int ncclCommMemStats(const Communicator *communicator, int which, uint64_t *value) {
    return *value = communicator ? communicator->bytes : 0, SUCCESS;
}

/* Memory that is registered stays the program's; a handle that is not NULL is all that is asked for. */
int ncclCommRegister(void *communicator, void *buffer, size_t bytes, void **handle) {
    return *handle = buffer, SUCCESS;
}
int ncclCommWindowRegister(void *communicator, void *buffer, size_t bytes, void **window, int flags) {
    return *window = buffer, SUCCESS;
}
int ncclMemAlloc(void **pointer, size_t bytes) {
    return cudaMalloc(pointer, bytes) ? UNHANDLED_CUDA_ERROR : SUCCESS;
}
int ncclMemFree(void *pointer) { return cudaFree(pointer) ? INVALID_ARGUMENT : SUCCESS; }
int ncclRedOpCreatePreMulSum(int *operation, void *scalar, int type, int residence, void *communicator) {
    return *operation = 5, SUCCESS; /* the first that NCCL has not itself */
}

/* -- groups of calls ------------------------------------------------------------------------------ */

/* What another rank would send here in a group of calls is what this one gives in the same group, to
 * itself or as the root of a broadcast, if it is as large: so an all-to-all of counts gives every
 * peer the count that this rank has for itself, and broadcasts of each rank in turn are an
 * all-gather. */
#define MOST_RECEIVES 1024
static __thread struct {
    int depth, number;
    const void *own;
    size_t own_bytes;
    struct {
        void *to;
        size_t bytes;
        int forgotten; /* without such a piece it would hold another rank's values */
    } receives[MOST_RECEIVES];
} group;

static void give(const void *from, size_t bytes) { group.own = from, group.own_bytes = bytes; }
static void receive_all(void) {
    for (int i = 0; i < group.number; i++) {
        void *to = group.receives[i].to;
        size_t bytes = group.receives[i].bytes;
        if (group.own && group.own_bytes == bytes && group.own != to) copy_values(to, group.own, bytes);
        else if (group.receives[i].forgotten) forget_values(to, bytes);
    }
    group.number = 0, group.own = NULL;
    note_kernel();
}
static void receive(void *to, size_t bytes, int forgotten) {
    if (group.number < MOST_RECEIVES) {
        group.receives[group.number].to = to;
        group.receives[group.number].forgotten = forgotten;
        group.receives[group.number++].bytes = bytes;
    } else if (forgotten) {
        forget_values(to, bytes);
    }
    if (!group.depth) receive_all();
}
int ncclGroupStart(void) { return group.depth++, SUCCESS; }
int ncclGroupEnd(void) {
    if (group.depth > 0 && --group.depth == 0) receive_all();
    return SUCCESS;
}
int ncclGroupSimulateEnd(void *simulation) { return ncclGroupEnd(); }

/* -- collectives ---------------------------------------------------------------------------------- */

/* int8, uint8, int32, uint32, int64, uint64, half, float, double, bfloat16, and two of 8 bits. */
static size_t bytes_of(size_t count, int type) {
    static const unsigned char sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return type >= 0 && type < (int)sizeof sizes ? count * sizes[type] : count;
}
static void deliver(void *to, const void *from, size_t bytes) {
    if (to != from) copy_values(to, from, bytes);
    note_kernel();
}
static void deliver_to_all(void *to, const void *piece, size_t bytes, int ranks) {
    repeat_values(to, piece, bytes, (size_t)ranks);
    note_kernel();
}

int ncclAllReduce(const void *send, void *receive, size_t count, int type, int operation, void *communicator,
                  cudaStream_t stream) {
    int error = connect_collective(communicator, 1);
    if (!error) deliver(receive, send, bytes_of(count, type));
    return error;
}
int ncclReduce(const void *send, void *receive, size_t count, int type, int operation, int root, void *communicator,
               cudaStream_t stream) {
    Communicator *one = communicator;
    int error = connect_collective(one, 0);
    if (!error && one->rank == root) deliver(receive, send, bytes_of(count, type));
    return error;
}
int ncclBroadcast(const void *send, void *to, size_t count, int type, int root, void *communicator,
                  cudaStream_t stream) {
    Communicator *one = communicator;
    size_t bytes = bytes_of(count, type);
    int error = connect_collective(one, 0);
    if (error) return error;
    if (one->rank == root && group.depth) give(send, bytes);
    /* Some versions of torch pass on every rank what it would send as the root. */
    if (one->rank == root || send != to) deliver(to, send, bytes);
    else receive(to, bytes, 0);
    return SUCCESS;
}
int ncclBcast(void *buffer, size_t count, int type, int root, void *communicator, cudaStream_t stream) {
    return ncclBroadcast(buffer, buffer, count, type, root, communicator, stream);
}
int ncclAllGather(const void *send, void *receive, size_t count, int type, void *communicator, cudaStream_t stream) {
    Communicator *one = communicator;
    int error = connect_collective(one, 0);
    if (!error) deliver_to_all(receive, send, bytes_of(count, type), one->ranks);
    return error;
}
int ncclReduceScatter(const void *send, void *receive, size_t count, int type, int operation, void *communicator,
                      cudaStream_t stream) {
    Communicator *one = communicator;
    size_t bytes = bytes_of(count, type);
    int error = connect_collective(one, 0);
    if (!error) deliver(receive, (const char *)send + (size_t)one->rank * bytes, bytes);
    return error;
}

/* -- send and receive ----------------------------------------------------------------------------- */

int ncclSend(const void *send, size_t count, int type, int peer, void *communicator, cudaStream_t stream) {
    int error = connect_peer(communicator, peer);
    if (!error && group.depth && peer == ((Communicator *)communicator)->rank) give(send, bytes_of(count, type));
    return error;
}
int ncclRecv(void *to, size_t count, int type, int peer, void *communicator, cudaStream_t stream) {
    int error = connect_peer(communicator, peer);
    if (!error) receive(to, bytes_of(count, type), 1);
    return error;
}

static int connect_all_peers(Communicator *one) {
    int error = SUCCESS;
    for (int peer = 0; peer < one->ranks && !error; peer++) error = connect_peer(one, peer);
    return error;
}
int ncclAlltoAll(const void *send, void *receive, size_t count, int type, void *communicator, cudaStream_t stream) {
    Communicator *one = communicator;
    size_t bytes = bytes_of(count, type);
    int error = connect_all_peers(one);
    if (!error) deliver_to_all(receive, (const char *)send + (size_t)one->rank * bytes, bytes, one->ranks);
    return error;
}
int ncclGather(const void *send, void *receive, size_t count, int type, int root, void *communicator,
               cudaStream_t stream) {
    Communicator *one = communicator;
    int error = one->rank == root ? connect_all_peers(one) : connect_peer(one, root);
    if (!error && one->rank == root) deliver_to_all(receive, send, bytes_of(count, type), one->ranks);
    return error;
}
int ncclScatter(const void *send, void *receive, size_t count, int type, int root, void *communicator,
                cudaStream_t stream) {
    Communicator *one = communicator;
    size_t bytes = bytes_of(count, type);
    int error = one->rank == root ? connect_all_peers(one) : connect_peer(one, root);
    if (!error && one->rank == root) deliver(receive, (const char *)send + (size_t)root * bytes, bytes);
    else forget_values(receive, bytes);
    return error;
}

/* A communicator that is put aside for a while is taken to keep its memory. */
int ncclCommSuspend(void *communicator, int flags) { return SUCCESS; }
int ncclCommResume(void *communicator) { return SUCCESS; }
int ncclCommRevoke(void *communicator, int flags) { return SUCCESS; }
