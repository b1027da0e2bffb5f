"""Sizes that CUDA's libraries hand out, found in their headers."""

from __future__ import annotations

from memprof.dry_run.prototypes import with_sizes_of_zero

HEADER = """
/* int cusolverDnCommented_bufferSize(int *Lwork); */
cusolverStatus_t CUSOLVERAPI cusolverDnSgetrf_bufferSize(
    cusolverDnHandle_t handle, int m, float * A, int lda,
    int *              Lwork); // of floats

cusolverStatus_t CUSOLVERAPI cusolverDnXpotrf_bufferSize(
    cusolverDnHandle_t handle, const void *A, size_t *workspaceInBytesOnDevice,
    size_t *           workspaceInBytesOnHost);
cusolverStatus_t CUSOLVERAPI cusolverDnScaled_bufferSize(double scale, int *lwork);
cusolverStatus_t CUSOLVERAPI cusolverDnSgetrf(cusolverDnHandle_t handle, int *devInfo);
"""


def code(tmp_path, *names: str):
    include = tmp_path / "nvidia" / "cusolver" / "include"
    include.mkdir(parents=True)
    (include / "cusolverDn.h").write_text(HEADER)
    return with_sizes_of_zero(names, tmp_path)


def test_a_size_is_set_to_zero_and_nothing_else(tmp_path):
    name = "cusolverDnSgetrf_bufferSize"
    assert code(tmp_path, name) == {
        name: "(long p0, long p1, long p2, long p3, long p4) { if (p4) *(int *)p4 = 0;"
    }


def test_two_sizes_are_both_set(tmp_path):
    found = code(tmp_path, "cusolverDnXpotrf_bufferSize")["cusolverDnXpotrf_bufferSize"]
    assert found.endswith("if (p2) *(size_t *)p2 = 0; if (p3) *(size_t *)p3 = 0;")


def test_what_passes_floating_numbers_is_left_alone(tmp_path):
    assert code(tmp_path, "cusolverDnScaled_bufferSize") == {}


def test_what_hands_out_no_size_or_stands_in_a_comment_is_left_alone(tmp_path):
    assert code(tmp_path, "cusolverDnSgetrf", "cusolverDnCommented_bufferSize") == {}


def test_without_headers_there_is_nothing(tmp_path):
    assert with_sizes_of_zero(["cusolverDnSgetrf_bufferSize"], tmp_path) == {}
