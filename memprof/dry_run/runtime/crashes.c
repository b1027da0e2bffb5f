/* The last resort: a crash says which function of CUDA was called last.
 *
 * A caller that was handed nonsense goes on with it until it crashes, mostly elsewhere. The compiler
 * calls `__cyg_profile_func_enter` at the beginning of every function of this library
 * (-finstrument-functions), so that the last of each thread is known whichever it was. */
#include "stand_in.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <ucontext.h>
#include <unistd.h>

#define PLAIN __attribute__((no_instrument_function))
#define LAST_CALLS 16 /* a power of two; functions of this library's own are among them */
#define EXIT_CRASHED 70

static __thread const void *calls[LAST_CALLS];
static __thread unsigned calls_made;
static __thread const char *without_code; /* the last function called, if it has none */

PLAIN void __cyg_profile_func_enter(void *function, void *caller) {
    calls[calls_made++ % LAST_CALLS] = function;
    without_code = NULL;
}
PLAIN void __cyg_profile_func_exit(void *function, void *caller) {}
PLAIN void note_call(const char *name) { without_code = name; }

/* Names of functions that others may call are kept in the library; those of its own are not. */
PLAIN static const char *last_call(void) {
    Dl_info found;
    if (without_code) return without_code;
    for (unsigned i = 1; i <= LAST_CALLS && i <= calls_made; i++) {
        const void *function = calls[(calls_made - i) % LAST_CALLS];
        if (dladdr(function, &found) && found.dli_sname && found.dli_saddr == function) return found.dli_sname;
    }
    return NULL;
}

PLAIN static const char *name_of(int number) {
    return number == SIGSEGV ? "SIGSEGV" : number == SIGBUS ? "SIGBUS" : number == SIGFPE ? "SIGFPE" : "a signal";
}

static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE};
static struct sigaction before[sizeof signals / sizeof *signals];

PLAIN static int is_within(const void *address, const char **file) {
    Dl_info here, there;
    *file = "code without a file";
    if (!dladdr(address, &there) || !there.dli_fname) return 0;
    const char *slash = strrchr(there.dli_fname, '/');
    *file = slash ? slash + 1 : there.dli_fname;
    return dladdr((void *)is_within, &here) && here.dli_fbase == there.dli_fbase;
}

PLAIN static void crash(int number, siginfo_t *information, void *context) {
#if defined(__x86_64__)
    const void *at = (const void *)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
#else
    const void *at = NULL;
#endif
    char text[512];
    const char *file, *call = last_call();
    /* A handler before this one may have sent it on, and where it came from is lost. */
    int is_sent = information->si_code <= 0, is_ours = !is_sent && is_within(at, &file);
    if (is_ours)
        snprintf(text, sizeof text, "the library that stands in for CUDA crashed (%s) in %s\n", name_of(number),
                 call ? call : "a function of its own");
    else if (call)
        snprintf(text, sizeof text, "the program crashed (%s)%s%s; this thread's last call of CUDA was %s%s\n",
                 name_of(number), is_sent ? "" : " in ", is_sent ? "" : file, call,
                 without_code ? ", which is not stood in for" : "");
    if (is_ours || call) say(text);
    if (is_ours) _exit(EXIT_CRASHED);
    /* Not this library's instruction: what the program would have seen is seen. */
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        if (signals[i] == number) sigaction(number, &before[i], NULL);
    if (is_sent) raise(number); /* an instruction fails again by itself */
}

/* Before the program begins; handlers that it sets itself come first and may call this one. */
__attribute__((constructor)) PLAIN static void watch(void) {
    struct sigaction ours = {.sa_sigaction = crash, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
    if (!getenv("MEMPROF_DRY_RUN_CARD")) return;
    sigemptyset(&ours.sa_mask);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) sigaction(signals[i], &ours, &before[i]);
}
