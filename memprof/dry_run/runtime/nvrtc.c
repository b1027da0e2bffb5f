/* NVRTC, the compiler that torch calls for kernels which it writes while it runs.
 *
 * Nothing is compiled, because nothing will run: the code is empty, so mistakes in a program's own
 * kernels are not found. What becomes of it is loaded by the functions in kernels.c. */
#include "stand_in.h"

typedef struct {
    char *name; /* of the function that was asked for last */
} Program;

int nvrtcCreateProgram(Program **program, const char *source, const char *name, int headers, const char *const *texts,
                       const char *const *names) {
    *program = calloc(1, sizeof **program);
    return *program ? 0 : 1;
}
int nvrtcDestroyProgram(Program **program) {
    if (*program) free((*program)->name);
    free(*program);
    return *program = NULL, 0;
}
int nvrtcCompileProgram(Program *program, int number, const char *const *options) { return 0; }
int nvrtcAddNameExpression(Program *program, const char *name) {
    free(program->name);
    program->name = strdup(name);
    return program->name ? 0 : 1;
}
int nvrtcGetLoweredName(Program *program, const char *name, const char **lowered) {
    if (!program->name && nvrtcAddNameExpression(program, name)) return 1;
    return *lowered = program->name, 0;
}
int nvrtcVersion(int *major, int *minor) {
    return *major = CUDART_VERSION / 1000, *minor = CUDART_VERSION % 1000 / 10, 0;
}

/* Empty texts, with the zero that ends them. */
static int empty_size(size_t *bytes) { return *bytes = 1, 0; }
static int empty_text(char *text) { return *text = '\0', 0; }
int nvrtcGetPTXSize(Program *program, size_t *bytes) { return empty_size(bytes); }
int nvrtcGetCUBINSize(Program *program, size_t *bytes) { return empty_size(bytes); }
int nvrtcGetProgramLogSize(Program *program, size_t *bytes) { return empty_size(bytes); }
int nvrtcGetPTX(Program *program, char *text) { return empty_text(text); }
int nvrtcGetCUBIN(Program *program, char *text) { return empty_text(text); }
int nvrtcGetProgramLog(Program *program, char *text) { return empty_text(text); }
const char *nvrtcGetErrorString(int error) { return error ? "NVRTC_ERROR_OUT_OF_MEMORY" : "NVRTC_SUCCESS"; }
