/* Functions that the library has no code for: what each answers, and what is said of it.
 *
 * answers.py decides which of them may answer "success"; all others answer "not supported" in their
 * library's own code, and say their name once: on the program's stderr, and to whoever started the
 * dry run. The table of them is generated (build.py). */
#include "stand_in.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

/* Only what a handler of signals may call. */
void say(const char *text) {
    static const char who[] = "memprof dry-run: ";
    const char *path = getenv("MEMPROF_DRY_RUN_MESSAGES");
    int file = path && *path ? open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600) : -1;
    size_t bytes = strlen(text);
    ssize_t written = write(STDERR_FILENO, who, sizeof who - 1) + write(STDERR_FILENO, text, bytes);
    if (file >= 0) {
        written += write(file, text, bytes);
        close(file);
    }
    (void)written; /* there is nobody else to tell */
}

long answer(unsigned number) {
    const Answer *one = &answers[number];
    if (!__atomic_exchange_n(&answers_called[number], 1, __ATOMIC_RELAXED) && one->refusal) {
        char text[256];
        snprintf(text, sizeof text, "%s is not stood in for: it answers %s\n", one->name, one->code);
        say(text);
    }
    note_call(one->name); /* the last thing: every other call makes it the last but one */
    return one->refusal;
}

/* Of a function that hands out the size of a workspace: 0, and the line that asked hears of it. */
long answer_without_size(unsigned number) {
    note_estimate(answers[number].name, 0, 0);
    return answer(number);
}

/* Called through ctypes: how many functions there are without code; the name of one if it was
 * called, and whether it was refused. */
int memprof_dry_run_functions(void) { return (int)answers_made; }
const char *memprof_dry_run_called(int number) {
    return __atomic_load_n(&answers_called[number], __ATOMIC_RELAXED) ? answers[number].name : NULL;
}
int memprof_dry_run_refused(int number) { return answers[number].refusal != 0; }
