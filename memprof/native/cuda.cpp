// Receives each entry of torch's CUDA recorder as it happens: no ring that overflows, none to reread.
//
// `attachAllocatorTraceTracker` has the allocator call a function for every allocation, free and
// segment, in the thread that asked for it and under the device's lock. The Python stack was gathered
// by torch before it took that lock, if the recorder is on with `context="alloc"`.
//
// Rules of this file:
//  * `tracker` never takes the interpreter's lock and runs none of the program's code. Under its own
//    lock it takes that of `reads.cpp` alone.
//  * Stacks that torch gathered are given back with the interpreter's lock held, in `take` and `end`.
//  * torch has no way to take a tracker back: after `end` it looks at one flag and returns.

#include "reads.h"
#include "rows.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/csrc/profiler/combined_traceback.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

namespace memprof {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;
using Entry = allocator::TraceEntry;
using Pool = std::pair<unsigned long long, unsigned long long>;
using Context = std::shared_ptr<c10::GatheredContext>;

// A program may give every allocation a text of its own.
constexpr size_t kMostTexts = 1u << 16;

std::mutex mutex; // guards what follows, up to the next remark; taken under the device's lock
std::vector<Row> rows; // `stack` is a row of `contexts` until `take`, -1: none
std::vector<Context> contexts;
std::map<Pool, int32_t> pool_rows;
std::vector<Pool> pools;
std::unordered_map<std::string, int32_t> metadata_rows;
std::vector<std::string> metadata;
int64_t lost = 0;

std::atomic<bool> recording{false};

// Guarded by the interpreter's lock.
struct HashOfFrames {
  size_t operator()(const std::vector<int32_t>& frames) const {
    uint64_t hash = 1469598103934665603ull;
    for (const int32_t frame : frames) {
      hash = (hash ^ static_cast<uint64_t>(frame)) * 1099511628211ull;
    }
    return hash;
  }
};
std::unordered_map<std::string, int32_t> frame_rows;
std::unordered_map<std::vector<int32_t>, int32_t, HashOfFrames> stack_rows;
std::vector<torch::unwind::Frame> new_frames;
std::vector<std::vector<int32_t>> new_stacks;

// Pools came into the entries with torch 2.9; an older torch says nothing of them.
template <class E>
auto pool_of(const E& entry, int) -> decltype(entry.mempool_, Pool()) {
  return Pool(entry.mempool_.first, entry.mempool_.second);
}
template <class E>
Pool pool_of(const E&, long) {
  return Pool(0, 0);
}

// Texts of `torch._C._cuda_setMemoryMetadata`, which came with torch 2.10.
template <class E>
auto metadata_of(const E& entry, int) -> decltype((entry.user_metadata_)) {
  return entry.user_metadata_;
}
template <class E>
const std::string& metadata_of(const E&, long) {
  static const std::string none;
  return none;
}

int32_t metadata_row(const std::string& text) {
  if (text.empty() || (metadata.size() >= kMostTexts && !metadata_rows.count(text))) {
    return 0;
  }
  const auto known = metadata_rows.emplace(text, static_cast<int32_t>(metadata.size() + 1));
  if (known.second) {
    metadata.push_back(text);
  }
  return known.first->second;
}

int32_t pool_row(const Pool& pool) {
  if (pool == Pool(0, 0)) {
    return 0;
  }
  const auto known = pool_rows.emplace(pool, static_cast<int32_t>(pools.size() + 1));
  if (known.second) {
    pools.push_back(pool);
  }
  return known.first->second;
}

void tracker(const Entry& entry) {
  if (!recording.load(std::memory_order_relaxed)) {
    return;
  }
  const Here& at = here();
  const int32_t task = graph_task();
  const bool is_alloc = entry.action_ == Entry::ALLOC;
  const int64_t node = is_alloc && task != kOutsideOfGraph ? graph_node() : -1;
  const std::lock_guard<std::mutex> guard(mutex);
  if (rows.size() >= kMostRows) {
    ++lost;
    return;
  }
  int32_t context = -1;
  if (entry.context_ && (is_alloc || entry.action_ == Entry::OOM)) {
    context = static_cast<int32_t>(contexts.size());
    contexts.push_back(entry.context_);
  }
  rows.push_back({now_ns(), static_cast<uint64_t>(entry.addr_), static_cast<int64_t>(entry.size_),
      node, reinterpret_cast<uint64_t>(entry.stream_), static_cast<int32_t>(entry.action_), context,
      at.label, task, at.epoch, at.thread, static_cast<int32_t>(entry.device_),
      pool_row(pool_of(entry, 0)), metadata_row(metadata_of(entry, 0)), 0});
  if (is_alloc) {
    block_came(rows.back().device, rows.back().address, rows.back().size, 0);
  } else if (entry.action_ == Entry::FREE_REQUESTED) {
    block_went(rows.back().device, rows.back().address);
  }
  wake_if_many(rows.size());
}

int32_t frame_row(const torch::unwind::Frame& frame) {
  std::string key = frame.filename + '\0' + frame.funcname + '\0' + std::to_string(frame.lineno);
  const auto known = frame_rows.emplace(std::move(key), static_cast<int32_t>(frame_rows.size()));
  if (known.second) {
    new_frames.push_back(frame);
  }
  return known.first->second;
}

// Rows of the table of stacks for what torch gathered; row 0 is no stack.
std::vector<int32_t> stacks_of(const std::vector<Context>& gathered) {
  std::vector<torch::CapturedTraceback*> tracebacks;
  tracebacks.reserve(gathered.size());
  for (const Context& one : gathered) {
    auto* traceback = dynamic_cast<torch::CapturedTraceback*>(one.get());
    TORCH_CHECK(traceback, "the recorder's stacks are of an unknown kind");
    tracebacks.push_back(traceback);
  }
  const auto named = torch::symbolize(tracebacks);
  std::vector<int32_t> frames;
  frames.reserve(named.all_frames.size());
  for (const auto& frame : named.all_frames) {
    frames.push_back(frame_row(frame));
  }
  std::vector<int32_t> found;
  found.reserve(gathered.size());
  std::vector<int32_t> stack;
  for (const auto& traceback : named.tracebacks) {
    stack.clear();
    for (const uint64_t frame : traceback) {
      stack.push_back(frames[frame]);
    }
    if (stack.empty()) {
      found.push_back(0);
      continue;
    }
    const auto known = stack_rows.emplace(stack, static_cast<int32_t>(stack_rows.size() + 1));
    if (known.second) {
      new_stacks.push_back(stack);
    }
    found.push_back(known.first->second);
  }
  return found;
}

PyObject* attach(PyObject*, PyObject*) {
  static std::once_flag once;
  try {
    std::call_once(once, [] { allocator::attachAllocatorTraceTracker(&tracker); });
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
    return nullptr;
  }
  Py_RETURN_NONE;
}

void forget(std::vector<Row>& taken, std::vector<Context>& gathered) {
  const std::lock_guard<std::mutex> guard(mutex);
  taken.swap(rows);
  gathered.swap(contexts);
}

PyObject* begin(PyObject*, PyObject*) {
  std::vector<Row> earlier;
  std::vector<Context> gathered;
  forget(earlier, gathered);
  {
    const std::lock_guard<std::mutex> guard(mutex);
    lost = 0;
  }
  recording = true;
  Py_RETURN_NONE;
}

PyObject* end(PyObject*, PyObject*) {
  recording = false;
  std::vector<Row> earlier;
  std::vector<Context> gathered;
  forget(earlier, gathered);
  Py_RETURN_NONE;
}

// Another recording numbers its frames, stacks and pools anew.
PyObject* forget_tables(PyObject*, PyObject*) {
  frame_rows.clear();
  stack_rows.clear();
  new_frames.clear();
  new_stacks.clear();
  const std::lock_guard<std::mutex> guard(mutex);
  pool_rows.clear();
  pools.clear();
  metadata_rows.clear();
  metadata.clear();
  Py_RETURN_NONE;
}

PyObject* pending(PyObject*, PyObject*) {
  const std::lock_guard<std::mutex> guard(mutex);
  return Py_BuildValue("(nL)", static_cast<Py_ssize_t>(rows.size()), static_cast<long long>(lost));
}

PyObject* as_text(const std::string& text) {
  return PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace");
}

PyObject* list_of_frames() {
  PyObject* list = PyList_New(0);
  for (const auto& frame : new_frames) {
    PyObject* one = Py_BuildValue("(NNL)", as_text(frame.funcname), as_text(frame.filename),
        static_cast<long long>(frame.lineno));
    if (one == nullptr || list == nullptr || PyList_Append(list, one) < 0) {
      Py_XDECREF(one);
      Py_CLEAR(list);
      break;
    }
    Py_DECREF(one);
  }
  new_frames.clear();
  return list;
}

PyObject* list_of(const std::vector<std::string>& texts) {
  PyObject* list = PyList_New(static_cast<Py_ssize_t>(texts.size()));
  for (size_t i = 0; list != nullptr && i < texts.size(); ++i) {
    PyObject* one = as_text(texts[i]);
    if (one == nullptr) {
      Py_CLEAR(list);
    } else {
      PyList_SET_ITEM(list, static_cast<Py_ssize_t>(i), one);
    }
  }
  return list;
}

PyObject* list_of_stacks() {
  PyObject* list = PyList_New(0);
  for (const auto& frames : new_stacks) {
    PyObject* one = as_bytes(frames.data(), frames.size() * sizeof(int32_t));
    if (one == nullptr || list == nullptr || PyList_Append(list, one) < 0) {
      Py_XDECREF(one);
      Py_CLEAR(list);
      break;
    }
    Py_DECREF(one);
  }
  new_stacks.clear();
  return list;
}

PyObject* take(PyObject*, PyObject*) {
  std::vector<Row> taken;
  std::vector<Context> gathered;
  forget(taken, gathered);
  std::vector<Pool> known_pools;
  std::vector<std::string> texts;
  {
    const std::lock_guard<std::mutex> guard(mutex);
    known_pools = pools;
    texts = metadata;
  }
  try {
    const std::vector<int32_t> stacks = stacks_of(gathered);
    for (Row& row : taken) {
      row.stack = row.stack < 0 ? 0 : stacks[static_cast<size_t>(row.stack)];
    }
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
    return nullptr;
  }
  return Py_BuildValue("(NNNNN)", as_bytes(taken.data(), taken.size() * sizeof(Row)),
      list_of_frames(), list_of_stacks(),
      as_bytes(known_pools.data(), known_pools.size() * sizeof(Pool)), list_of(texts));
}

} // namespace

void cuda_in_child() {
  recording = false;
}

PyMethodDef cuda_methods[] = {
    {"cuda_attach", attach, METH_NOARGS,
     "Have torch's CUDA allocator tell of each entry; it must be initialised. May be repeated."},
    {"cuda_begin", begin, METH_NOARGS, "Write rows from now on."},
    {"cuda_end", end, METH_NOARGS, "Write no more rows, forget those that wait."},
    {"cuda_forget_tables", forget_tables, METH_NOARGS,
     "Number frames, stacks and pools from 0 again; no window is open."},
    {"cuda_pending", pending, METH_NOARGS, "Rows that wait, and rows that were lost."},
    {"cuda_take", take, METH_NOARGS,
     "The rows since the last call; frames and stacks that are new, all pools and metadata."},
    {nullptr, nullptr, 0, nullptr}};

} // namespace memprof
