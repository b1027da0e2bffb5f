// Writes down what torch's CPU allocator hands out and takes back: bytes, addresses, Python stacks.
//
// torch asks `c10::GetCPUAllocator()` for every allocation, so an allocator that passes each call on
// and notes it sees what no dispatch mode does: temporaries inside an operator, buffers of compiled
// graphs, other threads. Nothing of autograd is changed, and no code of the program is run from here.
//
// Rules of this file:
//  * The interpreter's lock is never waited for while `mutex` is held. Of others only that of
//    `reads.cpp` is taken under it.
//  * A thread that Python does not know (of OpenMP, of another library) is never made to wait for
//    the interpreter: whoever holds its lock may be waiting for that thread. It has no stack.
//  * A stack is read without running Python code: no object is made that the collector counts, and
//    the collector is off meanwhile, so no finalizer of the program can come in between.
//  * The allocator stays in memory for ever, because storages remember it; when nothing is counted
//    it only passes on.

#include "blocks.h"
#include "reads.h"
#include "rows.h"
#include "turns.h"

#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <mutex>

namespace memprof {
namespace {

// Of `memprof.trace.Action`.
constexpr int kAlloc = 0;
constexpr int kFree = 1;
// Frames of a stack, the innermost first; memprof keeps 64 and leaves its own out.
constexpr size_t kDepth = 80;
// A program that makes new code all the time would fill memory with stacks.
constexpr size_t kMostStacks = 1u << 17;
// Room for rows that is kept from one reading to the next: 5 MiB.
constexpr size_t kMostKept = 8 * kManyRows;

struct Code {
  PyCodeObject* code;
  int last_instruction;
  bool operator==(const Code& other) const {
    return code == other.code && last_instruction == other.last_instruction;
  }
};

// Every stack once, by row. They lie in a few blocks that grow: a block for each would lie between the
// program's tensors, and keep the C library from using their memory again.
class StackTable {
 public:
  size_t size() const { // with row 0, the empty one
    return ends_.size();
  }
  const Code* begin(size_t row) const {
    return codes_.data() + (row == 0 ? 0 : ends_[row - 1]);
  }
  const Code* end(size_t row) const {
    return codes_.data() + ends_[row];
  }
  // The row of a stack; 0 where it is not there.
  int32_t find(const std::vector<Code>& frames, uint64_t hash) const {
    return places_[place_of(frames, hash)];
  }
  int32_t add(const std::vector<Code>& frames, uint64_t hash) {
    const int32_t row = static_cast<int32_t>(size());
    codes_.insert(codes_.end(), frames.begin(), frames.end());
    ends_.push_back(codes_.size());
    hashes_.push_back(hash);
    if (size() * 2 > places_.size()) {
      grow();
    } else {
      places_[place_of(frames, hash)] = row;
    }
    return row;
  }

 private:
  size_t place_of(const std::vector<Code>& frames, uint64_t hash) const {
    size_t at = hash & (places_.size() - 1);
    while (places_[at] != 0 && !is_at(static_cast<size_t>(places_[at]), frames, hash)) {
      at = (at + 1) & (places_.size() - 1);
    }
    return at;
  }
  bool is_at(size_t row, const std::vector<Code>& frames, uint64_t hash) const {
    return hashes_[row] == hash && static_cast<size_t>(end(row) - begin(row)) == frames.size() &&
        std::equal(frames.begin(), frames.end(), begin(row));
  }
  void grow() {
    places_.assign(places_.size() * 2, 0);
    for (size_t row = 1; row < size(); ++row) {
      size_t at = hashes_[row] & (places_.size() - 1);
      while (places_[at] != 0) {
        at = (at + 1) & (places_.size() - 1);
      }
      places_[at] = static_cast<int32_t>(row);
    }
  }

  std::vector<Code> codes_;
  std::vector<size_t> ends_ = {0};
  std::vector<uint64_t> hashes_ = {0};
  std::vector<int32_t> places_ = std::vector<int32_t>(2048); // a power of two; 0: empty
};

std::mutex mutex; // guards what follows, up to the next remark
std::vector<Row> rows;
BlockTable blocks;
int64_t bytes = 0;
int64_t peak = 0;
int64_t serial = 0;
int64_t lost = 0;

// Guarded by the interpreter's lock.
StackTable stacks;
size_t stacks_taken = 1;
Turns& turns() {
  static auto* all = new Turns; // never freed: the interpreter may be gone before
  return *all;
}

std::atomic<bool> counting{false};
std::atomic<bool> recording{false};
std::atomic<int64_t> untracked{0};
c10::Allocator* torchs = nullptr;
c10::DeleterFnPtr torchs_deleter = nullptr;

thread_local bool inside = false; // reading a stack may give back memory of tensors

int last_instruction(PyFrameObject* frame) {
#if PY_VERSION_HEX >= 0x030B0000
  return PyFrame_GetLasti(frame);
#else
  return frame->f_lasti * 2;
#endif
}

// Row of the calling thread's Python stack. The interpreter's lock is held.
int32_t stack_row() {
  thread_local std::vector<Code> frames;
  frames.clear();
  uint64_t hash = 1469598103934665603ull;
  const int collects = PyGC_Disable();
  PyFrameObject* frame = PyEval_GetFrame();
  Py_XINCREF(frame);
  while (frame != nullptr && frames.size() < kDepth) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    const int at = last_instruction(frame);
    frames.push_back({code, at});
    Py_DECREF(code); // the frame has it
    hash = (hash ^ reinterpret_cast<uintptr_t>(code)) * 1099511628211ull;
    hash = (hash ^ static_cast<uint64_t>(at)) * 1099511628211ull;
    PyFrameObject* outer = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = outer;
  }
  Py_XDECREF(frame);
  if (collects) {
    PyGC_Enable();
  }
  if (frames.empty()) {
    return 0;
  }
  const int32_t known = stacks.find(frames, hash);
  if (known != 0 || stacks.size() >= kMostStacks) {
    return known;
  }
  for (const Code& one : frames) {
    Py_INCREF(one.code); // else another code object could come to lie there
  }
  return stacks.add(frames, hash);
}

int32_t stack_here() {
  if (inside || PyGILState_GetThisThreadState() == nullptr) {
    return 0;
  }
  inside = true;
  const PyGILState_STATE held = PyGILState_Ensure();
  const int32_t row = stack_row();
  turns().at(row);
  PyGILState_Release(held);
  inside = false;
  return row;
}

void write(int action, uint64_t address, int64_t size, int32_t stack, int32_t task, int64_t node) {
  if (rows.size() >= kMostRows) {
    ++lost;
    return;
  }
  const Here& at = here();
  rows.push_back({now_ns(), address, size, node, 0, action, stack, at.label, task, at.epoch,
      at.thread, -1, 0, 0, 0});
  if (action == kAlloc) {
    block_came(kCpu, address, size, bytes);
  } else {
    block_went(kCpu, address);
  }
  wake_if_many(rows.size());
}

void came(uint64_t address, int64_t size) {
  int32_t stack = 0;
  int32_t task = kOutsideOfGraph;
  int64_t node = -1;
  const bool is_recorded = recording.load(std::memory_order_relaxed);
  if (is_recorded) {
    stack = stack_here();
    task = graph_task();
    node = task == kOutsideOfGraph ? -1 : graph_node();
  }
  const std::lock_guard<std::mutex> guard(mutex);
  blocks.put({address, size, ++serial, stack, here().label});
  bytes += size;
  peak = bytes > peak ? bytes : peak;
  if (is_recorded) {
    write(kAlloc, address, size, stack, task, node);
  }
}

void went(uint64_t address) {
  const bool is_recorded = recording.load(std::memory_order_relaxed);
  const int32_t task = is_recorded ? graph_task() : kOutsideOfGraph;
  const std::lock_guard<std::mutex> guard(mutex);
  Block* block = blocks.find(address);
  if (block == nullptr) {
    return;
  }
  bytes -= block->size;
  if (is_recorded) {
    write(kFree, address, block->size, 0, task, -1);
  }
  blocks.erase(block);
}

void give_back(void* data) {
  // Before the bytes are free: another thread may be handed the same address at once.
  if (counting.load(std::memory_order_relaxed)) {
    went(reinterpret_cast<uint64_t>(data));
  }
  torchs_deleter(data);
}

class Passing final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    c10::DataPtr data = torchs->allocate(size);
    if (!counting.load(std::memory_order_relaxed) || data.get() == nullptr) {
      return data;
    }
    if (data.get() != data.get_context() ||
        !data.compare_exchange_deleter(torchs_deleter, &give_back)) {
      ++untracked;
      return data;
    }
    came(reinterpret_cast<uint64_t>(data.get()), static_cast<int64_t>(size));
    return data;
  }
  c10::DeleterFnPtr raw_deleter() const override {
    // What is handed out raw ends by this function, whoever of the two handed it out.
    return &give_back;
  }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    torchs->copy_data(to, from, count);
  }
};

Passing& passing() {
  static auto* allocator = new Passing; // never freed: storages remember it
  return *allocator;
}

// Another recording numbers its stacks anew.
void forget_stacks() {
  StackTable earlier;
  std::swap(earlier, stacks);
  stacks_taken = 1;
  turns().forget();
  for (size_t row = 1; row < earlier.size(); ++row) {
    for (const Code* one = earlier.begin(row); one != earlier.end(row); ++one) {
      Py_DECREF(one->code);
    }
  }
}

PyObject* start(PyObject*, PyObject*) {
  c10::Allocator* before = c10::GetCPUAllocator();
  if (before != &passing()) {
    if (before->raw_deleter() == nullptr) {
      PyErr_SetString(PyExc_RuntimeError, "the CPU allocator in use gives back memory in a way of its own");
      return nullptr;
    }
    if (torchs != nullptr && before->raw_deleter() != torchs_deleter) {
      PyErr_SetString(PyExc_RuntimeError, "the program has changed its CPU allocator");
      return nullptr;
    }
    forget_stacks();
    torchs = before;
    torchs_deleter = before->raw_deleter();
    {
      const std::lock_guard<std::mutex> guard(mutex);
      blocks.clear();
      rows.clear();
      bytes = peak = serial = lost = 0;
    }
    c10::SetCPUAllocator(&passing());
    if (c10::GetCPUAllocator() != &passing()) {
      PyErr_SetString(PyExc_RuntimeError, "the CPU allocator in use has a higher priority");
      return nullptr;
    }
  }
  counting = true;
  Py_RETURN_NONE;
}

PyObject* stop(PyObject*, PyObject*) {
  recording = false;
  counting = false;
  if (torchs != nullptr && c10::GetCPUAllocator() == &passing()) {
    c10::SetCPUAllocator(torchs);
  }
  const std::lock_guard<std::mutex> guard(mutex);
  std::vector<Row>().swap(rows);
  blocks.clear();
  bytes = peak = 0;
  Py_RETURN_NONE;
}

PyObject* is_installed(PyObject*, PyObject*) {
  return PyBool_FromLong(c10::GetCPUAllocator() == &passing());
}

// The blocks in use at the moment from which rows are written: nothing comes between.
PyObject* begin(PyObject*, PyObject*) {
  std::vector<Block> now;
  {
    const std::lock_guard<std::mutex> guard(mutex);
    rows.clear();
    lost = 0;
    peak = bytes;
    now = blocks.all();
    recording = counting.load();
  }
  return as_bytes(now.data(), now.size() * sizeof(Block));
}

PyObject* end(PyObject*, PyObject*) {
  const std::lock_guard<std::mutex> guard(mutex);
  recording = false;
  std::vector<Row>().swap(rows);
  Py_RETURN_NONE;
}

PyObject* foreign(PyObject*, PyObject* args) {
  int is_alive = 0, is_made_here = 0;
  unsigned long long address = 0;
  long long size = 0;
  if (!PyArg_ParseTuple(args, "pKL|p", &is_alive, &address, &size, &is_made_here)) {
    return nullptr;
  }
  const bool has_stack = is_made_here && recording.load(std::memory_order_relaxed);
  const int32_t stack = has_stack ? stack_here() : 0;
  const std::lock_guard<std::mutex> guard(mutex);
  if (!is_alive) {
    Block* block = blocks.find(address);
    if (block == nullptr) {
      Py_RETURN_FALSE;
    }
    bytes -= block->size;
    if (recording) {
      write(kFree, address, block->size, 0, kOutsideOfGraph, -1);
    }
    blocks.erase(block);
    Py_RETURN_TRUE;
  }
  if (!counting || blocks.find(address) != nullptr) {
    Py_RETURN_FALSE;
  }
  blocks.put({address, size, ++serial, stack, here().label});
  bytes += size;
  peak = bytes > peak ? bytes : peak;
  if (recording) {
    write(kAlloc, address, size, stack, kOutsideOfGraph, -1);
  }
  Py_RETURN_TRUE;
}

PyObject* pending(PyObject*, PyObject*) {
  const std::lock_guard<std::mutex> guard(mutex);
  return PyLong_FromSize_t(rows.size());
}

PyObject* counters(PyObject*, PyObject*) {
  int64_t now = 0, highest = 0, gone = 0;
  {
    const std::lock_guard<std::mutex> guard(mutex);
    now = bytes;
    highest = peak;
    gone = lost;
    peak = bytes;
  }
  return Py_BuildValue("(LLLL)", static_cast<long long>(now), static_cast<long long>(highest),
      static_cast<long long>(gone), static_cast<long long>(untracked.load()));
}

PyObject* new_stacks(PyObject*, PyObject*) {
  PyObject* found = PyList_New(0);
  for (; found != nullptr && stacks_taken < stacks.size(); ++stacks_taken) {
    // A copy: what is called below may have the table grow.
    const std::vector<Code> frames(stacks.begin(stacks_taken), stacks.end(stacks_taken));
    PyObject* stack = PyTuple_New(static_cast<Py_ssize_t>(frames.size()));
    for (size_t i = 0; stack != nullptr && i < frames.size(); ++i) {
      const int line = PyCode_Addr2Line(frames[i].code, frames[i].last_instruction);
      PyObject* frame = Py_BuildValue("(Oi)", frames[i].code, line);
      if (frame == nullptr) {
        Py_CLEAR(stack);
      } else {
        PyTuple_SET_ITEM(stack, static_cast<Py_ssize_t>(i), frame);
      }
    }
    if (stack == nullptr || PyList_Append(found, stack) < 0) {
      Py_CLEAR(found);
    }
    Py_XDECREF(stack);
  }
  return found;
}

// One stack, with the instruction that each function is at.
PyObject* places(PyObject*, PyObject* args) {
  int row = 0;
  if (!PyArg_ParseTuple(args, "i", &row)) {
    return nullptr;
  }
  if (row < 0 || static_cast<size_t>(row) >= stacks.size()) {
    return PyTuple_New(0);
  }
  const std::vector<Code> frames(stacks.begin(row), stacks.end(row));
  PyObject* stack = PyTuple_New(static_cast<Py_ssize_t>(frames.size()));
  for (size_t i = 0; stack != nullptr && i < frames.size(); ++i) {
    PyObject* frame = Py_BuildValue("(Oi)", frames[i].code, frames[i].last_instruction);
    if (frame == nullptr) {
      Py_CLEAR(stack);
    } else {
      PyTuple_SET_ITEM(stack, static_cast<Py_ssize_t>(i), frame);
    }
  }
  return stack;
}

PyObject* watch_turns(PyObject*, PyObject* args) {
  PyObject *acquire = nullptr, *call = nullptr;
  if (!PyArg_ParseTuple(args, "|OO", &acquire, &call)) {
    return nullptr;
  }
  turns().watch(PyThread_get_thread_ident(), acquire, call);
  Py_RETURN_NONE;
}

PyObject* take_turns(PyObject*, PyObject*) {
  const std::vector<int64_t> ways = turns().take();
  PyObject* taken = PyList_New(static_cast<Py_ssize_t>(ways.size()));
  for (size_t i = 0; taken != nullptr && i < ways.size(); ++i) {
    PyObject* number = PyLong_FromLongLong(ways[i]);
    if (number == nullptr) {
      Py_CLEAR(taken);
    } else {
      PyList_SET_ITEM(taken, static_cast<Py_ssize_t>(i), number);
    }
  }
  return taken;
}

PyObject* no_turn(PyObject*, PyObject* args) {
  int before = 0, after = 0;
  if (!PyArg_ParseTuple(args, "ii", &before, &after)) {
    return nullptr;
  }
  turns().add_known(before, after);
  Py_RETURN_NONE;
}

PyObject* skip_turns(PyObject*, PyObject* args) {
  int before = 0, after = 0;
  long long times = 0;
  if (!PyArg_ParseTuple(args, "iiL", &before, &after, &times)) {
    return nullptr;
  }
  turns().skip(before, after, times);
  Py_RETURN_NONE;
}

// Rows and blocks of one moment.
PyObject* take(PyObject*, PyObject* with_blocks) {
  const int is_wanted = PyObject_IsTrue(with_blocks);
  if (is_wanted < 0) {
    return nullptr;
  }
  std::vector<Row> taken;
  std::vector<Block> now;
  {
    const std::lock_guard<std::mutex> guard(mutex);
    if (rows.capacity() > kMostKept) {
      taken.swap(rows);
    } else { // the block stays where it is, beside the program's tensors
      taken = rows;
      rows.clear();
    }
    if (is_wanted) {
      now = blocks.all();
    }
  }
  return Py_BuildValue("(NN)", as_bytes(taken.data(), taken.size() * sizeof(Row)),
      as_bytes(now.data(), now.size() * sizeof(Block)));
}

PyObject* living(PyObject*, PyObject*) {
  std::vector<Block> now;
  {
    const std::lock_guard<std::mutex> guard(mutex);
    now = blocks.all();
  }
  return as_bytes(now.data(), now.size() * sizeof(Block));
}

} // namespace

// A forked child counts nothing: what is written there nobody reads.
void cpu_in_child() {
  counting = false;
  recording = false;
}

PyMethodDef cpu_methods[] = {
    {"cpu_start", start, METH_NOARGS,
     "Count what is allocated from now on; raises RuntimeError where that is not possible."},
    {"cpu_stop", stop, METH_NOARGS, "Put torch's allocator back and forget everything."},
    {"cpu_is_installed", is_installed, METH_NOARGS, "Whether torch's allocations come by here."},
    {"cpu_begin", begin, METH_NOARGS,
     "Write rows from now on; the blocks in use at this moment."},
    {"cpu_end", end, METH_NOARGS, "Write no more rows, forget those that wait."},
    {"cpu_foreign", foreign, METH_VARARGS,
     "Count a block that another allocator made (True) or gave back (False)."},
    {"cpu_pending", pending, METH_NOARGS, "Rows that wait."},
    {"cpu_counters", counters, METH_NOARGS,
     "Bytes now, their peak since the last call, lost rows, blocks that could not be followed."},
    {"cpu_take", take, METH_O,
     "The rows since the last call and, if asked for, the blocks in use after them."},
    {"cpu_living", living, METH_NOARGS, "The blocks in use."},
    {"cpu_new_stacks", new_stacks, METH_NOARGS,
     "The stacks since the last call: a tuple each of (code, line), the innermost first."},
    {"cpu_places", places, METH_VARARGS,
     "A stack by its row: a tuple of (code, instruction), the innermost first."},
    {"cpu_watch_turns", watch_turns, METH_VARARGS,
     "Have a call made, after taking a lock, as this thread goes another way than those known."},
    {"cpu_take_turns", take_turns, METH_NOARGS,
     "Of each way that is not known, since the last call: the rows of two stacks, and a time (ns)."},
    {"cpu_no_turn", no_turn, METH_VARARGS, "A way from one stack to another is known from now on."},
    {"cpu_skip_turns", skip_turns, METH_VARARGS,
     "The next so many times that a way is taken make no call."},
    {nullptr, nullptr, 0, nullptr}};

} // namespace memprof
