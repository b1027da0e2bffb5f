/* The card as the environment describes it. */
#include "stand_in.h"

#include <stdio.h>

static Card card;
static int devices;
static pthread_once_t read_once = PTHREAD_ONCE_INIT;

size_t setting(const char *name, size_t otherwise) {
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

static void assign(const char *name, const char *value) {
    size_t number = strtoull(value, NULL, 10);
    if (!strcmp(name, "name")) snprintf(card.name, sizeof card.name, "%s", value);
    else if (!strcmp(name, "total_bytes")) card.total_bytes = number;
    else if (!strcmp(name, "context_bytes")) card.context_bytes = number;
    else if (!strcmp(name, "major")) card.major = (int)number;
    else if (!strcmp(name, "minor")) card.minor = (int)number;
    else if (!strcmp(name, "multiprocessors")) card.multiprocessors = (int)number;
    else if (!strcmp(name, "threads_per_multiprocessor")) card.threads_per_multiprocessor = (int)number;
    else if (!strcmp(name, "blocks_per_multiprocessor")) card.blocks_per_multiprocessor = (int)number;
    else if (!strcmp(name, "registers_per_multiprocessor")) card.registers_per_multiprocessor = (int)number;
    else if (!strcmp(name, "shared_bytes_per_multiprocessor")) card.shared_bytes_per_multiprocessor = number;
    else if (!strcmp(name, "shared_bytes_per_block_optin")) card.shared_bytes_per_block_optin = number;
    else if (!strcmp(name, "shared_bytes_reserved_per_block")) card.shared_bytes_reserved_per_block = number;
    else if (!strcmp(name, "l2_bytes")) card.l2_bytes = number;
    else if (!strcmp(name, "integrated")) card.integrated = (int)number;
    else if (!strcmp(name, "nccl_channels")) card.nccl_channels = (int)number;
}

/* A library that is loaded without a card, by a test of the library alone, has none at all. */
static void read_card(void) {
    const char *text = getenv("MEMPROF_DRY_RUN_CARD");
    char *lines = text ? strdup(text) : NULL;
    if (!lines) return;
    char *rest = NULL;
    for (char *line = strtok_r(lines, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        char *value = strchr(line, '=');
        if (!value) continue;
        *value++ = '\0';
        assign(line, value);
    }
    free(lines);
    size_t number = setting("MEMPROF_DRY_RUN_GPUS", 1);
    devices = number > MOST_DEVICES ? MOST_DEVICES : (int)number;
}

const Card *the_card(void) {
    pthread_once(&read_once, read_card);
    return &card;
}

int device_count(void) {
    pthread_once(&read_once, read_card);
    return devices;
}
