/* Handles of cuBLAS and the other libraries, and what torch reads back from them.
 *
 * The libraries' headers are not among what torch installs for every version, so parameters are
 * declared as what they are for the caller: pointers and integers. All functions answer 0, which
 * is every library's "success". */
#include "stand_in.h"

/* Each handle is its own: torch keeps a workspace for each pair of handle and stream, and creates a
 * handle for each thread that multiplies matrices. */
static int new_handle(void **handle) {
    *handle = calloc(1, 64);
    return *handle ? 0 : 1;
}
#define CREATES(name) \
    int name(void **handle) { return new_handle(handle); }
#define DESTROYS(name) \
    int name(void *handle) { return free(handle), 0; }
CREATES(cublasCreate_v2)
DESTROYS(cublasDestroy_v2)
CREATES(cublasLtCreate)
DESTROYS(cublasLtDestroy)
CREATES(cusparseCreate)
DESTROYS(cusparseDestroy)
CREATES(cusolverDnCreate)
DESTROYS(cusolverDnDestroy)

/* -- cuBLAS ---------------------------------------------------------------------------------------- */

int cublasGetMathMode(void *handle, int *mode) { return *mode = 0, 0; }
int cublasGetPointerMode_v2(void *handle, int *mode) { return *mode = 0, 0; }
int cublasGetSmCountTarget(void *handle, int *number) { return *number = 0, 0; }
int cublasGetStream_v2(void *handle, void **stream) { return *stream = NULL, 0; }

/* One algorithm is found for every product: torch asks for the whole of its workspace before it
 * asks for an algorithm, so which one it is does not matter to memory. */
int cublasLtMatmulAlgoGetHeuristic(void *handle, void *operation, void *a, void *b, void *c, void *d,
                                   void *preference, int requested, void *results, int *found) {
    return *found = 1, 0;
}
int cublasLtMatmulAlgoConfigGetAttribute(const void *algorithm, int attribute, void *value, size_t bytes,
                                         size_t *written) {
    if (value) memset(value, 0, bytes);
    if (written) *written = bytes;
    return 0;
}
size_t cublasLtGetVersion(void) { return MEMPROF_CUBLAS_VERSION; }

/* Whether arguments were right is told in a number of the host: they were. */
#define FACTORS(kind) \
    int cublas##kind##geqrfBatched(void *handle, int m, int n, void *a, int lda, void *tau, int *information, \
                                   int batch) { \
        return *information = 0, 0; \
    } \
    int cublas##kind##gelsBatched(void *handle, int transposed, int m, int n, int right, void *a, int lda, void *c, \
                                  int ldc, int *information, int *of_each, int batch) { \
        return *information = 0, 0; \
    }
FACTORS(S)
FACTORS(D)
FACTORS(C)
FACTORS(Z)

/* -- cuSPARSE ---------------------------------------------------------------------------------------- */

const char *cusparseGetErrorString(int status) {
    return status ? "an error of cuSPARSE in a dry run" : "CUSPARSE_STATUS_SUCCESS";
}
const char *cusparseGetErrorName(int status) { return cusparseGetErrorString(status); }

/* How many elements a product or a sum of sparse matrices has depends on where theirs lie, which are values: as
 * `nonzero` finds none, so there are none here. */
int cusparseSpMatGetSize(const void *matrix, int64_t *rows, int64_t *columns, int64_t *elements) {
    note_estimate("products of sparse matrices, whose number of elements depends on values", 0, 0);
    return *rows = *columns = *elements = 0, 0;
}
int cusparseXcsrgeam2Nnz(void *handle, int m, int n, const void *a, int elements_of_a, const int *rows_of_a,
                         const int *columns_of_a, const void *b, int elements_of_b, const int *rows_of_b,
                         const int *columns_of_b, const void *c, int *rows_of_c, int *elements, void *workspace) {
    note_estimate("sums of sparse matrices, whose number of elements depends on values", 0, 0);
    if (device_of(elements) < 0) *elements = 0;
    return 0;
}
int cusparseLtMatmulAlgGetAttribute(const void *handle, const void *algorithm, int attribute, void *value,
                                    size_t bytes) {
    return memset(value, 0, bytes), 0;
}
