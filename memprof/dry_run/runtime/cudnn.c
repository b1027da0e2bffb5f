/* cuDNN's library, handles and graph interface, by which torch runs convolutions and attention.
 *
 * How much workspace a plan takes depends on the engine that cuDNN's heuristics choose for a card,
 * which only cuDNN knows. From 9.8 on it says so without a device, of a card that is described to
 * it ("Deviceless Ahead-of-time Compilation" in its documentation). So the calls are passed on to
 * the cuDNN that torch brings: a description of the card takes the place of the handle, and nothing
 * is executed. An older cuDNN cannot be asked: then a newer one may be named, whose answers are
 * estimates; without one, convolutions take what cudnn_estimates.c says and other plans no workspace,
 * which is told as well. */
#include "stand_in.h"

/* cuDNN's headers lie beside every torch with CUDA from 2.1 on; without them it is not there. */
#if __has_include(<cudnn.h>)
#include <cudnn.h>
#include <dlfcn.h>
#include <stdio.h>

#define FIRST_WITHOUT_DEVICE 90800

/* From the headers of 9.8; torch may have been built with older ones. */
enum {
    DEVICE_DESCRIPTOR = 38,
    OF_HEURISTICS = 204,
    OF_PLAN = 407,
    OF_ENGINE = 1307,
    AS_JSON = 2702,
    CHARACTERS = 24,
};

/* cudnn_estimates.c */
INTERNAL void note_attribute(void *descriptor, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                             int64_t number, const void *elements);

/* -- the library that is asked --------------------------------------------------------------------- */

static struct {
    size_t version; /* 0: there is none that can be asked */
    __typeof__(&cudnnBackendCreateDescriptor) create;
    __typeof__(&cudnnBackendDestroyDescriptor) destroy;
    __typeof__(&cudnnBackendFinalize) finalize;
    __typeof__(&cudnnBackendSetAttribute) set;
    __typeof__(&cudnnBackendGetAttribute) get;
    const char *(*error_text)(cudnnStatus_t);
    void (*last_error)(char *, size_t);
    cudnnBackendDescriptor_t card;
    cudnnStatus_t refusal; /* of the card, by the library */
} cudnn;
static pthread_once_t loaded_once = PTHREAD_ONCE_INIT;

/* The names of the fields are those of the text that cuDNN itself writes of a device. Clock rates
 * are asked for and decide nothing about the plans that were tried: those of an A100 stand here. */
static int describe_card(char *text, size_t bytes) {
    const Card *card = the_card();
    struct cudaDeviceProp p;
    fill_properties(&p, 0);
    return snprintf(
        text, bytes,
        "{\"deviceName\":\"%s\",\"cudaDeviceId\":0,\"deviceVer\":%d,\"driverVer\":%d,\"maxGridSize\":[%d,%d,%d],"
        "\"maxBlockSize\":[%d,%d,%d],\"regsPerBlock\":%d,\"multiProcessorCount\":%d,\"smClockRateKHz\":1410000,"
        "\"memClockRateKHz\":1593000,\"l2CacheSize\":%zu,\"warpSize\":32,\"maxSharedMemoryPerBlock\":%zu,"
        "\"maxSharedMemoryPerBlockOptin\":%zu,\"reservedSharedMemoryPerBlock\":%zu,\"maxRegistersPerSM\":%d,"
        "\"pciDeviceId\":0,\"maxCtasPerSM\":%d,\"maxThreadsPerBlock\":%d,\"maxThreadsPerSM\":%d,\"isTccDriver\":0,"
        "\"supportCoopLaunch\":1,\"totalGlobalMem\":%zu}",
        card->name, card->major * 100 + card->minor * 10, CUDA_VERSION, p.maxGridSize[0], p.maxGridSize[1],
        p.maxGridSize[2], p.maxThreadsDim[0], p.maxThreadsDim[1], p.maxThreadsDim[2], p.regsPerBlock,
        card->multiprocessors, card->l2_bytes, p.sharedMemPerBlock, card->shared_bytes_per_block_optin,
        card->shared_bytes_reserved_per_block, card->registers_per_multiprocessor, card->blocks_per_multiprocessor,
        p.maxThreadsPerBlock, card->threads_per_multiprocessor, card->total_bytes);
}
static cudnnStatus_t introduce_card(void) {
    char text[2048];
    int length = describe_card(text, sizeof text);
    cudnnStatus_t status = cudnn.create((cudnnBackendDescriptorType_t)DEVICE_DESCRIPTOR, &cudnn.card);
    if (status == CUDNN_STATUS_SUCCESS)
        status = cudnn.set(cudnn.card, (cudnnBackendAttributeName_t)AS_JSON, (cudnnBackendAttributeType_t)CHARACTERS,
                           length, text);
    return status == CUDNN_STATUS_SUCCESS ? cudnn.finalize(cudnn.card) : status;
}

static void load(void) {
    char name[32];
    snprintf(name, sizeof name, "libcudnn.so.%d", CUDNN_MAJOR);
    const char *chosen = getenv("MEMPROF_DRY_RUN_CUDNN");
    void *library = chosen && *chosen ? dlopen(chosen, RTLD_LAZY) : NULL;
    if (!library) library = dlopen(name, RTLD_LAZY);
    size_t (*version)(void) = library ? dlsym(library, "cudnnGetVersion") : NULL;
    if (!version || version() < FIRST_WITHOUT_DEVICE) return;
    cudnn.create = dlsym(library, "cudnnBackendCreateDescriptor");
    cudnn.destroy = dlsym(library, "cudnnBackendDestroyDescriptor");
    cudnn.finalize = dlsym(library, "cudnnBackendFinalize");
    cudnn.set = dlsym(library, "cudnnBackendSetAttribute");
    cudnn.get = dlsym(library, "cudnnBackendGetAttribute");
    cudnn.error_text = dlsym(library, "cudnnGetErrorString");
    cudnn.last_error = dlsym(library, "cudnnGetLastErrorString");
    if (!cudnn.create || !cudnn.destroy || !cudnn.finalize || !cudnn.set || !cudnn.get || !cudnn.last_error) return;
    cudnn.refusal = introduce_card();
    cudnn.version = version();
}
/* Whether plans are asked of a library; an answer of another version than torch's is an estimate. */
static int can_be_asked(void) {
    pthread_once(&loaded_once, load);
    return cudnn.version != 0;
}

/* The version whose answers are given, 0 for none, and that of torch's own. */
size_t memprof_dry_run_cudnn_asked(void) { return can_be_asked() ? cudnn.version : 0; }

size_t cudnnGetVersion(void) { return CUDNN_VERSION; }
cudnnStatus_t cudnnGetProperty(libraryPropertyType which, int *value) {
    *value = which == MAJOR_VERSION ? CUDNN_MAJOR : which == MINOR_VERSION ? CUDNN_MINOR : CUDNN_PATCHLEVEL;
    return CUDNN_STATUS_SUCCESS;
}
size_t cudnnGetCudartVersion(void) { return CUDART_VERSION; }
const char *cudnnGetErrorString(cudnnStatus_t status) {
    if (status == CUDNN_STATUS_SUCCESS) return "CUDNN_STATUS_SUCCESS";
    return can_be_asked() && cudnn.error_text ? cudnn.error_text(status) : "an error of cuDNN in a dry run";
}
void cudnnGetLastErrorString(char *message, size_t bytes) {
    if (can_be_asked()) cudnn.last_error(message, bytes);
    else if (bytes) message[0] = '\0';
}

/* -- handles --------------------------------------------------------------------------------------- */

/* A card that the library no longer supports is refused when a handle is made, as on the card. */
cudnnStatus_t cudnnCreate(cudnnHandle_t *handle) {
    if (can_be_asked() && cudnn.refusal != CUDNN_STATUS_SUCCESS) return cudnn.refusal;
    *handle = calloc(1, 64);
    return *handle ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_ALLOC_FAILED;
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) { return free(handle), CUDNN_STATUS_SUCCESS; }

/* -- plans whose kernel cannot be loaded --------------------------------------------------------------
 *
 * Some engines load their kernel when a plan is finished. How much workspace such a plan takes the
 * configuration of its engine says as well; it is asked while that is sure to live. */

typedef struct Plan {
    cudnnBackendDescriptor_t descriptor;
    int64_t workspace;
    struct Plan *next;
} Plan;
static Plan *plans; /* not finished, or without their kernel */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void remember_plan(cudnnBackendDescriptor_t descriptor, const void *elements) {
    enum { OF_CONFIGURATION = 303 }; /* CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE, from 9.2 on */
    int64_t workspace = 0, number = 0;
    Plan *plan = malloc(sizeof *plan);
    if (!plan || cudnn.get(*(const cudnnBackendDescriptor_t *)elements, (cudnnBackendAttributeName_t)OF_CONFIGURATION,
                           CUDNN_TYPE_INT64, 1, &number, &workspace) != CUDNN_STATUS_SUCCESS) {
        free(plan);
        return;
    }
    pthread_mutex_lock(&lock);
    *plan = (Plan){descriptor, workspace, plans};
    plans = plan;
    pthread_mutex_unlock(&lock);
}
static void forget_plan(cudnnBackendDescriptor_t descriptor) {
    pthread_mutex_lock(&lock);
    for (Plan **link = &plans; *link; link = &(*link)->next)
        if ((*link)->descriptor == descriptor) {
            Plan *gone = *link;
            *link = gone->next;
            free(gone);
            break;
        }
    pthread_mutex_unlock(&lock);
}
/* -1 of what is no such plan. */
static int64_t plan_workspace(cudnnBackendDescriptor_t descriptor) {
    int64_t workspace = -1;
    pthread_mutex_lock(&lock);
    for (Plan *plan = plans; plan && workspace < 0; plan = plan->next)
        if (plan->descriptor == descriptor) workspace = plan->workspace;
    pthread_mutex_unlock(&lock);
    return workspace;
}

/* -- graphs ---------------------------------------------------------------------------------------- */

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t kind, cudnnBackendDescriptor_t *made) {
    if (can_be_asked()) return cudnn.create(kind, made);
    *made = new_description();
    return *made ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_ALLOC_FAILED;
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t gone) {
    if (!can_be_asked()) return free(gone), CUDNN_STATUS_SUCCESS;
    forget_plan(gone);
    return cudnn.destroy(gone);
}
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
    if (!can_be_asked()) return CUDNN_STATUS_SUCCESS;
    cudnnStatus_t status = cudnn.finalize(descriptor);
    /* The last part of making a plan is to load its kernel: what fails then fails for want of a device. */
    if (status / 1000 == CUDNN_STATUS_EXECUTION_FAILED / 1000 && plan_workspace(descriptor) >= 0)
        return CUDNN_STATUS_SUCCESS;
    forget_plan(descriptor);
    return status;
}

static cudnnStatus_t name_card(cudnnBackendDescriptor_t descriptor, int attribute) {
    return cudnn.set(descriptor, (cudnnBackendAttributeName_t)attribute, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &cudnn.card);
}
/* A handle names the device of a graph and of a plan; an engine and its heuristics take it from the
 * graph. Each of them gets the card instead. */
cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t number, const void *elements) {
    if (!can_be_asked()) return note_attribute(descriptor, name, type, number, elements), CUDNN_STATUS_SUCCESS;
    if (name == CUDNN_ATTR_OPERATIONGRAPH_HANDLE) return CUDNN_STATUS_SUCCESS;
    if (name == CUDNN_ATTR_EXECUTION_PLAN_HANDLE) return name_card(descriptor, OF_PLAN);
    if (name == CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG) remember_plan(descriptor, elements);
    cudnnStatus_t status = cudnn.set(descriptor, name, type, number, elements);
    if (status != CUDNN_STATUS_SUCCESS) return status;
    if (name == CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH) return name_card(descriptor, OF_HEURISTICS);
    return name == CUDNN_ATTR_ENGINE_OPERATION_GRAPH ? name_card(descriptor, OF_ENGINE) : status;
}

/* Without a device some engines name 131 bytes more, which few of their plans take on one: on an H200
 * (cuDNN 9.19) 25 of some 420 in three steps of a ResNet-50. */
static int64_t as_on_a_device(int64_t workspace) {
    enum { WITHOUT_DEVICE = 131, GRAIN = 16 };
    int has_them = workspace >= WITHOUT_DEVICE && workspace % GRAIN == WITHOUT_DEVICE % GRAIN;
    return has_them ? workspace - WITHOUT_DEVICE : workspace;
}
/* Without a library one engine is found for everything; numbers are 0 and lists are empty. */
static cudnnStatus_t invent_attribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                      cudnnBackendAttributeType_t type, int64_t requested, int64_t *number,
                                      void *elements) {
    int is_found = type == CUDNN_TYPE_BACKEND_DESCRIPTOR && name != CUDNN_ATTR_ENGINECFG_KNOB_CHOICES;
    int is_number = requested == 1 && elements && (type == CUDNN_TYPE_INT64 || type == CUDNN_TYPE_INT32);
    if (is_number) memset(elements, 0, type == CUDNN_TYPE_INT64 ? sizeof(int64_t) : sizeof(int32_t));
    if (is_found && requested > 0 && elements) inherit_description(*(void **)elements, descriptor);
    if (number) *number = is_found || is_number;
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t requested, int64_t *number,
                                       void *elements) {
    int is_workspace = name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE && elements;
    int64_t workspace = can_be_asked() && is_workspace ? plan_workspace(descriptor) : -1;
    cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
    if (workspace >= 0) {
        *(int64_t *)elements = as_on_a_device(workspace);
        if (number) *number = 1;
    } else if (can_be_asked()) {
        status = cudnn.get(descriptor, name, type, requested, number, elements);
        if (is_workspace) *(int64_t *)elements = as_on_a_device(*(int64_t *)elements);
    } else {
        status = invent_attribute(descriptor, name, type, requested, number, elements);
        workspace = is_workspace ? estimated_workspace(descriptor) : -1;
        if (workspace >= 0) *(int64_t *)elements = workspace;
    }
    if (is_workspace && status == CUDNN_STATUS_SUCCESS && cudnn.version != CUDNN_VERSION)
        note_estimate(cudnn.version     ? "cuDNN's plans, of another version of it"
                      : workspace >= 0 ? "cuDNN's convolutions, by a rule"
                                       : "cuDNN's plans",
                      (size_t) * (int64_t *)elements, cudnn.version != 0 || workspace >= 0);
    return status;
}
cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack) {
    return note_kernel(), CUDNN_STATUS_SUCCESS;
}
#endif
