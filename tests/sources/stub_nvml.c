/* A libnvidia-ml.so.1 for tests: two cards, of which the second says little. The driver dies after
   STUB_NVML_DIES_AFTER memory queries; STUB_NVML_PID is the process that uses the first card. */
#include <stdlib.h>
#include <string.h>

enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, SMALL = 7, UNKNOWN = 999 };
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned gpu, memory; } Load;
typedef struct { unsigned pid; unsigned long long used; unsigned instance, compute; } Process;

static const char *uuids[] = {"GPU-11111111-aaaa", "GPU-22222222-bbbb"};
static char cards[2];
static int queries;

static int number(const char *name, int missing) {
    const char *text = getenv(name);
    return text ? atoi(text) : missing;
}
static int dead(void) { return queries > number("STUB_NVML_DIES_AFTER", 1 << 30); }
static int index_of(void *card) { return (char *)card == &cards[1]; }

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
    for (int i = 0; i < 2; i++)
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
    memory->total = 1000; memory->used = index_of(card) ? 20 : 300; memory->free = 1000 - memory->used;
    return OK;
}
int nvmlDeviceGetUtilizationRates(void *card, Load *load) {
    if (index_of(card)) return NOT_SUPPORTED;
    load->gpu = 77; load->memory = 5;
    return dead() ? UNKNOWN : OK;
}
int nvmlDeviceGetTemperature(void *card, unsigned sensor, unsigned *celsius) {
    *celsius = 60;
    return dead() ? UNKNOWN : OK;
}
int nvmlDeviceGetPowerUsage(void *card, unsigned *milliwatts) {
    *milliwatts = 123500;
    return dead() ? UNKNOWN : index_of(card) ? NOT_SUPPORTED : OK;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *card, unsigned *count, Process *processes) {
    if (dead()) return UNKNOWN;
    if (index_of(card)) { *count = 0; return OK; }
    if (*count < 2) { *count = 2; return SMALL; }
    *count = 2;
    processes[0] = (Process){1, 111, 0, 0};
    processes[1] = (Process){number("STUB_NVML_PID", 2), 222, 0, 0};
    return OK;
}
