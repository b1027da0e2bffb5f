// Where the calling thread is; without torch's headers, which take a compiler long.
#pragma once

#include <Python.h>

#ifdef Py_GIL_DISABLED
#error "tables of stacks and calls are guarded by the interpreter's lock"
#endif

#include <atomic>
#include <chrono>
#include <cstdint>
#include <vector>

namespace memprof {

constexpr int kOutsideOfGraph = -1;

// From now on the calling thread has a label, within a graph task. The interpreter's lock is held.
void set_label(int32_t row, int32_t task);

// The backward pass that runs in this thread, `kOutsideOfGraph` if none does.
int32_t pass_under_way();

inline int64_t now_ns() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(since).count();
}

// Wakes whoever waits in `wait_for_rows`. Waits for nobody; any thread may call it.
void wake();

extern PyMethodDef calls_methods[];

} // namespace memprof
