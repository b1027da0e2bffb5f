// Notes which operator reads a large block last, and how much of it operators read in all.
//
// torch tells an observer (`at::RecordFunction`) of every operator with what it is given and returns, in
// whatever thread it runs: forward, backward, within another one. The observer changes neither.
//
// Rules of this file:
//  * No Python runs here, and the interpreter's lock is never asked for.
//  * A tensor is looked at only where its memory is torch's own: one whose class is Python's may answer
//    by Python code, and one without memory has nothing to be read.
//  * Only what an operator was given or has returned counts as a tensor: an operator's buffers are read
//    where nobody sees it.

#include "reads.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace memprof {
namespace {

// Of a block that is followed, and one part in so many of the bytes in use as it came: as
// `memprof/sources/cpu/last_reads.py` has them.
constexpr int64_t kLeastBytes = 256 << 10;
constexpr int64_t kLeastPart = 512;
constexpr size_t kMostFollowed = 1u << 16;
// Of a block of which less was read it is said also where it was read to the end.
constexpr double kMostly = 0.5;
// Of a block's bytes, which the allocator may have rounded up.
constexpr double kAll = 0.99;
// Waiting to be taken: what comes then is not known of.
constexpr size_t kMostGone = 1u << 20;

struct Gone {
  int64_t made; // the device's how-many-eth allocation in this window it was, from 1 on
  int64_t read; // and which was the newest as it was read last
  double part; // of its bytes that operators read, counted as often as they do
};
static_assert(sizeof(Gone) == 24, "read by name in memprof/sources/native_reads.py");

struct Followed {
  int device;
  int64_t size;
  int64_t made;
  int64_t read;
  double part;
  bool is_tensor;
};

struct Device {
  bool is_observed = false; // else nothing is followed, and operators of small tensors cost nothing
  bool has_large = false; // something has come that would have been followed
  int64_t allocations = 0;
  std::vector<Gone> gone;
};

enum class Way {
  kReading,
  kViewing, // it returns a view: nothing is read yet
  kPicking, // it reads as many values as it returns
  kWriting, // it may return what it was given, and has read and written that
  kChanging, // the same, value by value: of what it changes throughout nothing was read for good
  kCalling, // it consists of other operators
};

const std::unordered_set<std::string>& picking() {
  static const auto* names = new std::unordered_set<std::string>{"aten::_unsafe_index",
      "aten::embedding", "aten::gather", "aten::index", "aten::index_select",
      "aten::masked_select", "aten::narrow_copy", "aten::select_copy", "aten::slice_copy",
      "aten::take"};
  return *names;
}

struct State {
  std::mutex mutex; // guards the others; no other lock is taken under it
  std::unordered_map<int, Device> devices;
  std::unordered_map<uint64_t, Followed> followed;
};
// A child that was forked has one of its own: nobody would release what a thread of its parent held.
State* state = new State;

std::atomic<size_t> count{0}; // of what is followed
at::CallbackHandle handle = 0; // guarded by the interpreter's lock
bool is_observing = false;

thread_local int depth = 0; // operators that run in this thread and consist of no others

Way way_of_operator(const at::RecordFunction& call) {
  const auto name = call.operator_name();
  if (!name.has_value()) {
    return Way::kCalling; // somebody's mark, and no operator
  }
  const auto known = c10::Dispatcher::singleton().findSchema(*name);
  if (!known.has_value()) {
    return Way::kCalling;
  }
  if (known->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) {
    return Way::kCalling;
  }
  bool shares = false, writes = false;
  for (const auto& argument : known->schema().arguments()) {
    if (argument.alias_info() != nullptr) {
      shares = true;
      writes = writes || argument.alias_info()->isWrite();
    }
  }
  if (shares && !writes) {
    return Way::kViewing;
  }
  if (writes) {
    return known->hasTag(at::Tag::pointwise) ? Way::kChanging : Way::kWriting;
  }
  return picking().count(name->name) ? Way::kPicking : Way::kReading;
}

// By the text of its name, which lies where the operator's schema has it.
Way way_of(const at::RecordFunction& call) {
  thread_local std::unordered_map<const char*, Way> known;
  const auto at = known.find(call.name());
  return at != known.end() ? at->second
                           : known.emplace(call.name(), way_of_operator(call)).first->second;
}

// Where the memory of a tensor begins; 0 where it is not torch's own, or there is none.
uint64_t memory_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) {
    return 0;
  }
  const c10::DispatchKeySet keys = tensor.key_set();
  const bool is_of_python = keys.has(c10::DispatchKey::Python);
  if (is_of_python || !(keys.has_backend(c10::BackendComponent::CPUBit) ||
          keys.has_backend(c10::BackendComponent::CUDABit))) {
    return 0;
  }
  return reinterpret_cast<uint64_t>(
      tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl()->data_ptr().get());
}

int64_t bytes_of(const at::Tensor& tensor) {
  const c10::TensorImpl* of = tensor.unsafeGetTensorImpl();
  return of->has_symbolic_sizes_strides() ? 0 : tensor.numel() * static_cast<int64_t>(tensor.itemsize());
}

template <class Values, class Do>
void each_tensor(const Values& values, const Do& act) {
  int position = 0;
  for (const c10::IValue& value : values) {
    if (value.isTensor()) {
      act(value.toTensor(), position);
    } else if (value.isList()) {
      for (const c10::IValue& one : value.toListRef()) {
        if (one.isTensor()) {
          act(one.toTensor(), position);
        }
      }
    }
    ++position;
  }
}

struct Argument {
  uint64_t address;
  int64_t bytes;
  bool is_first;
};

struct Call : at::ObserverContext {
  Way way = Way::kCalling;
  bool is_outermost = false;
  std::vector<Argument> given;
};

// Read last now. The lock is held.
void touch(uint64_t address) {
  const auto known = state->followed.find(address);
  if (known != state->followed.end()) {
    known->second.is_tensor = true;
    known->second.read = state->devices[known->second.device].allocations;
  }
}

// What is followed of an operator's arguments.
void note_given(const at::RecordFunction& function, Call& call) {
  each_tensor(function.inputs(), [&](const at::Tensor& tensor, int position) {
    const uint64_t address = memory_of(tensor);
    if (address != 0) {
      call.given.push_back({address, bytes_of(tensor), position == 0});
    }
  });
  const std::lock_guard<std::mutex> guard(state->mutex);
  const auto& known = state->followed;
  auto& given = call.given;
  given.erase(std::remove_if(given.begin(), given.end(),
                  [&](const Argument& one) { return known.count(one.address) == 0; }),
      given.end());
  for (const Argument& one : given) {
    touch(one.address);
  }
}

std::unique_ptr<at::ObserverContext> begins(const at::RecordFunction& function) {
  auto call = std::make_unique<Call>();
  call->way = way_of(function);
  const bool is_kernel = call->way != Way::kCalling;
  call->is_outermost = is_kernel && depth == 0;
  if (count.load(std::memory_order_relaxed) > 0) {
    note_given(function, *call);
  }
  if (is_kernel) {
    ++depth; // also where nothing is followed yet: it may make the first; last, as the rest may throw
  }
  return call;
}

void ends(const at::RecordFunction& function, at::ObserverContext* context) {
  auto* call = static_cast<Call*>(context);
  if (call == nullptr) {
    return;
  }
  if (call->way != Way::kCalling) {
    depth = std::max(0, depth - 1);
  }
  if (count.load(std::memory_order_relaxed) == 0) {
    return;
  }
  std::vector<uint64_t> returned;
  int64_t returned_bytes = 0;
  each_tensor(function.outputs(), [&](const at::Tensor& tensor, int) {
    const uint64_t address = memory_of(tensor);
    if (address != 0) {
      returned.push_back(address);
      returned_bytes += bytes_of(tensor);
    }
  });
  if (returned.empty() && call->given.empty()) {
    return;
  }
  const std::lock_guard<std::mutex> guard(state->mutex);
  for (const uint64_t address : returned) {
    touch(address);
  }
  for (const Argument& one : call->given) {
    const auto known = state->followed.find(one.address);
    if (known == state->followed.end()) {
      continue;
    }
    Followed& block = known->second;
    block.read = state->devices[block.device].allocations;
    const bool is_returned =
        std::find(returned.begin(), returned.end(), one.address) != returned.end();
    if (!call->is_outermost || call->way == Way::kViewing) {
      continue;
    }
    if (call->way == Way::kReading && is_returned) {
      continue; // ``_unsafe_view``, whose schema does not say so
    }
    const bool is_all = static_cast<double>(one.bytes) >= kAll * static_cast<double>(block.size);
    if (call->way == Way::kChanging && is_returned && one.is_first && is_all) {
      continue;
    }
    const bool picks = call->way == Way::kPicking && one.is_first;
    block.part += static_cast<double>(picks ? returned_bytes : one.bytes) /
        static_cast<double>(block.size);
  }
}

PyObject* begin(PyObject*, PyObject* args) {
  int device = kCpu;
  if (!PyArg_ParseTuple(args, "i", &device)) {
    return nullptr;
  }
  const std::lock_guard<std::mutex> guard(state->mutex);
  for (auto at = state->followed.begin(); at != state->followed.end();) {
    at = at->second.device == device ? state->followed.erase(at) : std::next(at);
  }
  count = state->followed.size();
  state->devices[device] = Device{};
  Py_RETURN_NONE;
}

PyObject* has_large(PyObject*, PyObject* args) {
  int device = kCpu;
  if (!PyArg_ParseTuple(args, "i", &device)) {
    return nullptr;
  }
  const std::lock_guard<std::mutex> guard(state->mutex);
  const auto known = state->devices.find(device);
  return PyBool_FromLong(known != state->devices.end() && known->second.has_large);
}

PyObject* observe(PyObject*, PyObject* args) {
  int device = kCpu;
  if (!PyArg_ParseTuple(args, "i", &device)) {
    return nullptr;
  }
  if (!is_observing) {
    handle = at::addGlobalCallback(at::RecordFunctionCallback(&begins, &ends)
                                       .needsInputs(true)
                                       .needsOutputs(true)
                                       .scopes({at::RecordScope::FUNCTION}));
    is_observing = true;
  }
  const std::lock_guard<std::mutex> guard(state->mutex);
  const auto known = state->devices.find(device);
  if (known != state->devices.end()) {
    known->second.is_observed = true;
  }
  Py_RETURN_NONE;
}

PyObject* end(PyObject*, PyObject* args) {
  int device = kCpu;
  if (!PyArg_ParseTuple(args, "i", &device)) {
    return nullptr;
  }
  bool is_any = false;
  {
    const std::lock_guard<std::mutex> guard(state->mutex);
    state->devices.erase(device);
    for (auto at = state->followed.begin(); at != state->followed.end();) {
      at = at->second.device == device ? state->followed.erase(at) : std::next(at);
    }
    count = state->followed.size();
    is_any = !state->devices.empty();
  }
  if (!is_any && is_observing) {
    at::removeCallback(handle);
    is_observing = false;
  }
  Py_RETURN_NONE;
}

PyObject* take(PyObject*, PyObject* args) {
  int device = kCpu;
  if (!PyArg_ParseTuple(args, "i", &device)) {
    return nullptr;
  }
  std::vector<Gone> taken;
  {
    const std::lock_guard<std::mutex> guard(state->mutex);
    const auto known = state->devices.find(device);
    if (known != state->devices.end()) {
      taken.swap(known->second.gone);
    }
  }
  return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(taken.data()),
      static_cast<Py_ssize_t>(taken.size() * sizeof(Gone)));
}

} // namespace

void block_came(int device, uint64_t address, int64_t size, int64_t in_use) {
  const std::lock_guard<std::mutex> guard(state->mutex);
  const auto known = state->devices.find(device);
  if (known == state->devices.end()) {
    return;
  }
  const int64_t number = ++known->second.allocations;
  if (size < kLeastBytes || size * kLeastPart < in_use || state->followed.size() >= kMostFollowed) {
    return;
  }
  known->second.has_large = true;
  if (!known->second.is_observed) {
    return; // operators may have read it unseen
  }
  state->followed[address] = {device, size, number, number, 0.0, false};
  count = state->followed.size();
}

void block_went(int device, uint64_t address) {
  if (count.load(std::memory_order_relaxed) == 0) {
    return;
  }
  const std::lock_guard<std::mutex> guard(state->mutex);
  const auto at = state->followed.find(address);
  if (at == state->followed.end() || at->second.device != device) {
    return;
  }
  const Followed block = at->second;
  state->followed.erase(at);
  count = state->followed.size();
  Device& of = state->devices[block.device];
  const bool is_told = of.allocations > block.read || block.part < kMostly;
  if (block.is_tensor && is_told && of.gone.size() < kMostGone) {
    of.gone.push_back({block.made, block.read, block.part});
  }
}

void reads_in_child() {
  state = new State;
  count = 0;
}

PyMethodDef reads_methods[] = {
    {"reads_begin", begin, METH_VARARGS,
     "Number a device's allocations from now on: -1 the CPU's; the number of a CUDA device."},
    {"reads_has_large", has_large, METH_VARARGS,
     "Whether a block has come since then that is large enough to be followed."},
    {"reads_observe", observe, METH_VARARGS, "Follow large blocks that come from now on."},
    {"reads_end", end, METH_VARARGS, "Follow them no more."},
    {"reads_take", take, METH_VARARGS,
     "What is known of blocks of a device that went since the last call."},
    {nullptr, nullptr, 0, nullptr}};

} // namespace memprof
