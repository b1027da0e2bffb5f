/* Streams, events, and captures into graphs.
 *
 * Nothing runs, so everything that was asked of a stream has happened when the call returns, in
 * order; an event has happened as soon as it is recorded, or, for tests of what waits for one,
 * after as many queries as MEMPROF_DRY_RUN_EVENT_LAG says. */
#include "stand_in.h"

typedef struct {
    int device, priority, capturing;
    unsigned int flags;
    unsigned long long capture;
} Stream;

static unsigned long long captures;
/* The default streams have small numbers for handles and share what there is to know of them. */
static Stream default_stream;

static Stream *stream_of(cudaStream_t stream) {
    return (uintptr_t)stream < 16 ? &default_stream : (Stream *)stream;
}

/* -- streams ------------------------------------------------------------------------------------- */

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned int flags, int priority) {
    Stream *made = calloc(1, sizeof *made);
    if (!made) return fail(cudaErrorMemoryAllocation);
    made->device = current_device();
    made->flags = flags;
    made->priority = priority;
    return *stream = (cudaStream_t)made, cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags) {
    return cudaStreamCreateWithPriority(stream, flags, 0);
}
cudaError_t cudaStreamCreate(cudaStream_t *stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    if ((uintptr_t)stream >= 16) free(stream);
    return cudaSuccess;
}
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) {
    return *priority = stream_of(stream)->priority, cudaSuccess;
}
cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned int *flags) {
    return *flags = stream_of(stream)->flags, cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags) { return cudaSuccess; }
cudaError_t cudaDeviceSynchronize(void) { return cudaSuccess; }

/* What waits for the stream is called at once: all before it has happened. */
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data) {
    return function(data), cudaSuccess;
}
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void *data, unsigned int flags) {
    return function(stream, cudaSuccess, data), cudaSuccess;
}

/* -- events -------------------------------------------------------------------------------------- */

typedef struct {
    unsigned long long at; /* kernels launched and events recorded before */
    size_t queries;
} Event;

static unsigned long long records;

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags) {
    Event *made = calloc(1, sizeof *made);
    return *event = (cudaEvent_t)made, made ? cudaSuccess : fail(cudaErrorMemoryAllocation);
}
#undef cudaEventCreate
cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) { return free(event), cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    Event *one = (Event *)event;
    one->queries = 0;
    return one->at = kernels_launched() + __atomic_add_fetch(&records, 1, __ATOMIC_RELAXED), cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned int flags) {
    return cudaEventRecord(event, stream);
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
    Event *one = (Event *)event;
    return one->queries++ < setting("MEMPROF_DRY_RUN_EVENT_LAG", 0) ? fail(cudaErrorNotReady) : cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) { return cudaSuccess; }
/* Nothing takes time on the device. A tenth of a millisecond for each kernel and event keeps them in order, no
 * two at the same time, and the same in every run: what is chosen by time is chosen alike. */
static cudaError_t elapsed(float *ms, cudaEvent_t first, cudaEvent_t second) {
    return *ms = (float)(int64_t)(((Event *)second)->at - ((Event *)first)->at) * 0.1f, cudaSuccess;
}
#undef cudaEventElapsedTime
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t first, cudaEvent_t second) { return elapsed(ms, first, second); }
cudaError_t cudaEventElapsedTime_v2(float *ms, cudaEvent_t first, cudaEvent_t second) {
    return elapsed(ms, first, second);
}

/* -- captures and graphs -------------------------------------------------------------------------
 *
 * A graph holds no nodes that could run: its memory is that of the private pool in which torch
 * captured it. One handle stands for all. */

static char the_graph;

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
    stream_of(stream)->capturing = 1;
    stream_of(stream)->capture = __atomic_add_fetch(&captures, 1, __ATOMIC_RELAXED);
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
    stream_of(stream)->capturing = 0;
    return *graph = (cudaGraph_t)&the_graph, cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
    *status = stream_of(stream)->capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
static cudaError_t capture_info(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                                cudaGraph_t *graph, size_t *dependencies) {
    if (id) *id = stream_of(stream)->capture;
    if (graph) *graph = stream_of(stream)->capturing ? (cudaGraph_t)&the_graph : NULL;
    if (dependencies) *dependencies = 0;
    return cudaStreamIsCapturing(stream, status);
}
/* CUDA 13 gave the bare name another list of parameters; older headers make it a macro for _v2. */
#undef cudaStreamGetCaptureInfo
#undef cudaStreamGetCaptureInfo_v2
cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                                        unsigned long long *id, cudaGraph_t *graph,
                                        const cudaGraphNode_t **dependencies, size_t *number) {
    return capture_info(stream, status, id, graph, number);
}
#if CUDART_VERSION >= 13000
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                                     unsigned long long *id, cudaGraph_t *graph,
                                     const cudaGraphNode_t **dependencies, const cudaGraphEdgeData **edges,
                                     size_t *number) {
    return capture_info(stream, status, id, graph, number);
}
#endif
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *made, cudaGraph_t graph, unsigned long long flags) {
    return *made = (cudaGraphExec_t)&the_graph, cudaSuccess;
}
#undef cudaGraphInstantiate
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *made, cudaGraph_t graph, unsigned long long flags) {
    return *made = (cudaGraphExec_t)&the_graph, cudaSuccess;
}
/* One, because torch warns of an empty graph. It depends on nothing. */
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *number) {
    if (nodes && *number) nodes[0] = (cudaGraphNode_t)&the_graph;
    return *number = 1, cudaSuccess;
}
#undef cudaGraphNodeGetDependencies
#if CUDART_VERSION >= 13000
cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t *others, cudaGraphEdgeData *edges,
                                         size_t *number) {
    return *number = 0, cudaSuccess;
}
#else
cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t *others, size_t *number) {
    return *number = 0, cudaSuccess;
}
#endif
/* A graph's nodes take nothing of the device. */
cudaError_t cudaDeviceGetGraphMemAttribute(int device, enum cudaGraphMemAttributeType which, void *value) {
    return *(uint64_t *)value = 0, cudaSuccess;
}
/* It would end what a graph holds when the last graph that has it ends; that is not followed. */
cudaError_t cudaUserObjectCreate(cudaUserObject_t *made, void *what, cudaHostFn_t end, unsigned int references,
                                 unsigned int flags) {
    return *made = (cudaUserObject_t)what, cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) { return note_kernel(), cudaSuccess; }

/* -- the driver's names ----------------------------------------------------------------------------- */

static CUresult of_driver(cudaError_t error) {
    return error == cudaSuccess ? CUDA_SUCCESS : error == cudaErrorNotReady ? CUDA_ERROR_NOT_READY : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult cuStreamCreate(CUstream *stream, unsigned int flags) { return of_driver(cudaStreamCreateWithFlags(stream, flags)); }
CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority) {
    return of_driver(cudaStreamCreateWithPriority(stream, flags, priority));
}
CUresult cuStreamDestroy(CUstream stream) { return of_driver(cudaStreamDestroy(stream)); }
CUresult cuStreamQuery(CUstream stream) { return CUDA_SUCCESS; }
CUresult cuStreamSynchronize(CUstream stream) { return CUDA_SUCCESS; }
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) { return CUDA_SUCCESS; }
CUresult cuStreamGetPriority(CUstream stream, int *priority) { return of_driver(cudaStreamGetPriority(stream, priority)); }
CUresult cuStreamGetFlags(CUstream stream, unsigned int *flags) { return of_driver(cudaStreamGetFlags(stream, flags)); }
CUresult cuStreamGetCtx(CUstream stream, CUcontext *context) {
    return *context = (CUcontext)(uintptr_t)(stream_of(stream)->device + 1), CUDA_SUCCESS;
}
CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) {
    return *status = stream_of(stream)->capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE,
           CUDA_SUCCESS;
}
CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *data) { return function(data), CUDA_SUCCESS; }
CUresult cuEventCreate(CUevent *event, unsigned int flags) { return of_driver(cudaEventCreateWithFlags(event, flags)); }
CUresult cuEventDestroy(CUevent event) { return of_driver(cudaEventDestroy(event)); }
CUresult cuEventRecord(CUevent event, CUstream stream) { return of_driver(cudaEventRecord(event, stream)); }
CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags) {
    return of_driver(cudaEventRecord(event, stream));
}
CUresult cuEventQuery(CUevent event) { return of_driver(cudaEventQuery(event)); }
CUresult cuEventSynchronize(CUevent event) { return CUDA_SUCCESS; }
#undef cuEventElapsedTime
CUresult cuEventElapsedTime(float *ms, CUevent first, CUevent second) { return of_driver(elapsed(ms, first, second)); }
CUresult cuEventElapsedTime_v2(float *ms, CUevent first, CUevent second) { return of_driver(elapsed(ms, first, second)); }
