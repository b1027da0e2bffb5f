// Rows as `memprof/sources/native_rows.py` reads them, and where each thread of the program is.
#pragma once

#include "places.h"

#include <frameobject.h>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <vector>

namespace memprof {

// 64 MiB of rows wait at most; after them the window has a gap.
constexpr size_t kMostRows = (64u << 20) / 80;
// Whenever so many more wait, limits are looked at: a window is that much longer at most.
constexpr size_t kManyRows = 8192;

struct Row {
  int64_t time_ns; // since the Unix epoch
  uint64_t address;
  int64_t size; // requested on the CPU; on CUDA as torch's recorder has it
  int64_t node; // sequence number of the node that runs; -1: none, or one that accumulates
  uint64_t stream;
  int32_t action; // `memprof.trace.Action`
  int32_t stack; // 0: none
  int32_t label; // what `label` said last in this thread
  int32_t task; // backward pass under way that began after `label`; -1: none
  int32_t epoch; // counts the calls of `label`, over all threads; 0: the thread made none
  int32_t thread;
  int32_t device;
  int32_t pool; // row of the pools, from 1 on; 0: the allocator's own
  int32_t metadata; // row of the texts that the program gave to torch, from 1 on; 0: none
  int32_t unused;
};
static_assert(sizeof(Row) == 80, "read by name in memprof/sources/native_rows.py");

struct Here { // of a thread
  int32_t label = 0;
  int32_t task = kOutsideOfGraph;
  int32_t epoch = 0;
  int32_t thread = 0;
};
// One row more waits, so many in all.
inline void wake_if_many(size_t waiting) {
  if (waiting % kManyRows == 0) {
    wake();
  }
}

// The calling thread's, in one place for all devices.
Here& here();

// The backward pass that runs in this thread, unless a place of the program's lies inside it.
inline int32_t graph_task() {
  const int task = torch::autograd::get_current_graph_task_id();
  return task == here().task ? kOutsideOfGraph : task;
}

inline int64_t graph_node() {
  const auto node = torch::autograd::get_current_node();
  return node ? static_cast<int64_t>(node->sequence_nr()) : -1;
}

inline PyObject* as_bytes(const void* data, size_t size) {
  return PyBytes_FromStringAndSize(static_cast<const char*>(data), static_cast<Py_ssize_t>(size));
}

extern PyMethodDef cpu_methods[];
void cpu_in_child();
#ifdef MEMPROF_CUDA
extern PyMethodDef cuda_methods[];
void cuda_in_child();
#endif

} // namespace memprof
