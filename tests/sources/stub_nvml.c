/* A libnvidia-ml.so.1 for tests: two cards, of which the second says little, and a MIG slice of the
   first. The driver dies after STUB_NVML_DIES_AFTER memory queries; STUB_NVML_PID is the process
   that uses the first card and the slice; STUB_NVML_OTHERS more processes are on the first card. */
#include <stdlib.h>
#include <string.h>

/* Linux gives no process a number above 4194304 (PID_MAX_LIMIT): this process is never one of the
   others. */
enum { NO_PROCESS = 5000000 };
enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, SMALL = 7, UNKNOWN = 999 };
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned gpu, memory; } Load;
typedef struct { unsigned pid; unsigned long long used; unsigned instance, compute; } Process;

static const char *uuids[] = {"GPU-11111111-aaaa", "GPU-22222222-bbbb", "MIG-33333333-cccc"};
static char cards[3];
static int queries;

static int number(const char *name, int missing) {
    const char *text = getenv(name);
    return text ? atoi(text) : missing;
}
static int dead(void) { return queries > number("STUB_NVML_DIES_AFTER", 1 << 30); }
static int index_of(void *card) { return (char *)card - cards; }
static int is_slice(void *card) { return index_of(card) == 2; }

int nvmlInitWithFlags(unsigned flags) { return OK; }
int nvmlInit_v2(void) { return OK; }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { return "stub"; }
int nvmlSystemGetDriverVersion(char *text, unsigned length) { strncpy(text, "550.1", length); return OK; }
int nvmlSystemGetProcessName(unsigned pid, char *text, unsigned length) {
    if (pid != 1) return NOT_FOUND;
    strncpy(text, "/usr/bin/other", length);
    return OK;
}
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **card) { *card = &cards[index]; return OK; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **card) {
    for (int i = 0; i < 3; i++)
        if (!strcmp(uuid, uuids[i])) { *card = &cards[i]; return OK; }
    return NOT_FOUND;
}
int nvmlDeviceGetUUID(void *card, char *text, unsigned length) {
    strncpy(text, uuids[index_of(card)], length);
    return OK;
}
int nvmlDeviceGetName(void *card, char *text, unsigned length) {
    strncpy(text, index_of(card) ? "Stub Two" : "Stub One", length);
    return OK;
}
int nvmlDeviceGetMemoryInfo(void *card, Memory *memory) {
    queries++;
    if (dead()) return UNKNOWN;
    memory->total = is_slice(card) ? 125 : 1000;
    memory->used = is_slice(card) ? 50 : index_of(card) ? 20 : 300;
    memory->free = memory->total - memory->used;
    return OK;
}
int nvmlDeviceGetUtilizationRates(void *card, Load *load) {
    if (index_of(card)) return NOT_SUPPORTED;
    load->gpu = 77; load->memory = 5;
    return dead() ? UNKNOWN : OK;
}
int nvmlDeviceGetTemperature(void *card, unsigned sensor, unsigned *celsius) {
    *celsius = 60;
    return dead() ? UNKNOWN : is_slice(card) ? NOT_SUPPORTED : OK;
}
int nvmlDeviceGetPowerUsage(void *card, unsigned *milliwatts) {
    *milliwatts = 123500;
    return dead() ? UNKNOWN : index_of(card) ? NOT_SUPPORTED : OK;
}
int nvmlDeviceIsMigDeviceHandle(void *card, unsigned *answer) { *answer = is_slice(card); return OK; }
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *slice, void **card) {
    *card = &cards[0];
    return is_slice(slice) ? OK : INVALID;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *card, unsigned *count, Process *processes) {
    unsigned all = is_slice(card) ? 1 : 2 + number("STUB_NVML_OTHERS", 0);
    if (dead()) return UNKNOWN;
    if (index_of(card) == 1) { *count = 0; return OK; }
    if (*count < all) { *count = all; return SMALL; }
    *count = all;
    processes[all - 1] = (Process){number("STUB_NVML_PID", 2), is_slice(card) ? 44 : 222, 0, 0};
    if (all > 1) processes[0] = (Process){1, 111, 0, 0};
    for (unsigned i = 1; i + 1 < all; i++) processes[i] = (Process){NO_PROCESS + i, i, 0, 0};
    return OK;
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *card, unsigned *count, Process *processes) {
    if (dead() || index_of(card)) return dead() ? UNKNOWN : NOT_SUPPORTED;
    if (*count < 2) { *count = 2; return SMALL; }
    *count = 2;
    processes[0] = (Process){1, 111, 0, 0};  /* computes as well */
    processes[1] = (Process){3, -1ULL, 0, 0};  /* its bytes are not told */
    return OK;
}
