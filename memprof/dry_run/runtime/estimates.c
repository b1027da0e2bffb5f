/* Sizes that are estimated or not known, told to the process that is run. */
#include "stand_in.h"

static void (*listener)(const char *what, size_t bytes, int known);

/* Called by the process, through ctypes. Any thread may call `function`, with or without the
 * interpreter's lock. */
void memprof_dry_run_listen_to_estimates(void (*function)(const char *what, size_t bytes, int known)) {
    listener = function;
}
void note_estimate(const char *what, size_t bytes, int known) {
    void (*function)(const char *, size_t, int) = listener;
    if (function) function(what, bytes, known);
}
