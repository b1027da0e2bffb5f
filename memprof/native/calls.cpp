// Follows the calls of modules without running Python: which module each thread is in, and since when.
//
// torch calls a hook before and one after each call of a module. Both are functions of this file. They
// do themselves what most calls need: those of a module whose path is known, within another one, in the
// same backward pass (or none), in the same step and under the same annotation. Everything else they
// hand on to the functions in Python (`memprof/sources/loop/loop_watch.py`), which take over with
// `take` what is under way here, and say with `arm` when it may go on here.
//
// Rules of this file:
//  * All of it is guarded by the interpreter's lock.
//  * Nothing is raised into the program: what fails here is handed on to Python.
//  * No reference into a container is kept over a call of Python's API that may run other code.
//  * Modules are known by their address, and not held.

#include "places.h"

#include <ATen/SequenceNumber.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace memprof {
namespace {

// Of `memprof.trace.Phase`.
constexpr long kForward = 1;
constexpr long kBackward = 2;
// Entries of a thread's log; a graph that is older loses its modules.
constexpr size_t kLongestLog = 100000;
// Paths whose rows are remembered; a program that makes new models all the time forgets them.
constexpr size_t kMostPaths = 1u << 16;
// Of so many calls of a hook one is timed.
constexpr int64_t kTimedCalls = 16;
// One that takes longer was interrupted.
constexpr int64_t kLongestHookNs = 100000;

struct Call {
  PyObject* module; // its address alone
  PyObject* path; // held
  int32_t row; // of its label
};

struct Entry { // nodes of the graph with this number and more were made in a module
  int64_t number;
  PyObject* path; // held
};

// The newest entries, in the order of their numbers. They lie in one block that grows: many small
// ones that come and go would lie between the program's tensors, and keep the C library from using
// their memory again.
class Log {
 public:
  size_t size() const {
    return count_;
  }
  bool empty() const {
    return count_ == 0;
  }
  Entry& operator[](size_t at) {
    return places_[(first_ + at) % places_.size()];
  }
  const Entry& operator[](size_t at) const {
    return places_[(first_ + at) % places_.size()];
  }
  Entry& back() {
    return (*this)[count_ - 1];
  }
  void push_back(const Entry& entry) {
    if (count_ == places_.size()) {
      std::rotate(places_.begin(), places_.begin() + static_cast<std::ptrdiff_t>(first_), places_.end());
      first_ = 0;
      places_.resize(std::max<size_t>(64, 2 * count_));
    }
    places_[(first_ + count_++) % places_.size()] = entry;
  }
  void pop_front() {
    first_ = (first_ + 1) % places_.size();
    --count_;
  }
  void clear() {
    std::vector<Entry>().swap(places_);
    first_ = count_ = 0;
  }

 private:
  std::vector<Entry> places_;
  size_t first_ = 0;
  size_t count_ = 0;
};

struct LabelRow {
  int64_t step = -1;
  PyObject* annotation = nullptr; // held
  long phase = 0;
  int32_t row = 0;
};

// Rows by path, which are held; in one block, as above. Open addressing, never more than half full.
class PathRows {
 public:
  struct Place {
    PyObject* path = nullptr;
    LabelRow row;
  };

  size_t size() const {
    return count_;
  }
  // Null where the path is not there.
  LabelRow* find(PyObject* path) {
    Place& place = places_[place_of(path)];
    return place.path == nullptr ? nullptr : &place.row;
  }
  // The row of a path, a new one where it is not there yet.
  LabelRow& at(PyObject* path) {
    Place* place = &places_[place_of(path)];
    if (place->path == nullptr) {
      if (++count_ * 2 > places_.size()) {
        grow();
        place = &places_[place_of(path)];
      }
      Py_INCREF(path);
      place->path = path;
    }
    return place->row;
  }
  // All of them, which are no longer here.
  std::vector<Place> take() {
    std::vector<Place> taken(kLeast);
    taken.swap(places_);
    count_ = 0;
    return taken;
  }

 private:
  static constexpr size_t kLeast = 1024; // a power of two

  size_t place_of(PyObject* path) const {
    const size_t mask = places_.size() - 1;
    size_t at = (reinterpret_cast<uintptr_t>(path) * 0x9E3779B97F4A7C15ull >> 32) & mask;
    while (places_[at].path != nullptr && places_[at].path != path) {
      at = (at + 1) & mask;
    }
    return at;
  }
  void grow() {
    std::vector<Place> before(places_.size() * 2);
    before.swap(places_);
    for (const Place& one : before) {
      if (one.path != nullptr) {
        places_[place_of(one.path)] = one;
      }
    }
  }

  std::vector<Place> places_ = std::vector<Place>(kLeast);
  size_t count_ = 0;
};

// What runs in a thread within the calls that Python knows of.
struct Thread {
  std::atomic<bool> has_ended{false};
  int64_t turn = 0; // in which it was armed; 0: its calls go to Python
  PyObject* root = nullptr; // address of the outermost module
  PyObject* annotation = nullptr; // held
  PyObject* variable = nullptr; // held; the annotation that the program had set as it was armed
  PyObject* path = nullptr; // held; of the innermost call that Python knows of
  int32_t row = 0;
  int task = kOutsideOfGraph;
  std::vector<Call> calls;
  Log log;
};

// What `begin` was given.
PyObject* before_in_python = nullptr;
PyObject* after_in_python = nullptr;
PyObject* known_paths = nullptr; // module's id -> (weak reference, path)
PyObject* label_rows = nullptr; // (step, phase, path, annotation) -> row
PyObject* annotation_of_thread = nullptr; // a context variable
PyObject* compiler = nullptr; // the namespace of `torch.compiler`
PyObject* is_compiling_name = nullptr;

int64_t step = 0; // under way
int64_t turn = 1; // counts the ends of steps and whatever else threads must be armed anew after
int64_t calls_of_hooks = 0;
int64_t spent_ns = 0;
std::vector<Thread*> threads;
Thread* last_logged = nullptr;
PathRows rows_of_paths;

// A thread's part is freed by whoever comes after its end, as that takes the interpreter's lock.
struct Ending {
  Thread* thread = nullptr;
  ~Ending() {
    if (thread != nullptr) {
      thread->has_ended = true;
    }
  }
};
thread_local Ending mine;

void disarm(Thread& thread) {
  thread.turn = 0;
  PyObject* annotation = thread.annotation;
  PyObject* path = thread.path;
  PyObject* variable = thread.variable;
  thread.annotation = thread.path = thread.variable = nullptr;
  Py_XDECREF(annotation);
  Py_XDECREF(variable);
  Py_XDECREF(path);
}

void forget(Thread& thread) {
  disarm(thread);
  for (const Call& call : thread.calls) {
    Py_DECREF(call.path);
  }
  thread.calls.clear();
  for (size_t at = 0; at < thread.log.size(); ++at) {
    Py_DECREF(thread.log[at].path);
  }
  thread.log.clear();
}

void forget_rows() {
  for (const PathRows::Place& one : rows_of_paths.take()) {
    Py_XDECREF(one.path);
    Py_XDECREF(one.row.annotation);
  }
}

Thread& thread_here() {
  if (mine.thread == nullptr) {
    const auto ended = std::partition(
        threads.begin(), threads.end(), [](const Thread* one) { return !one->has_ended; });
    for (auto one = ended; one != threads.end(); ++one) {
      forget(**one);
      last_logged = last_logged == *one ? nullptr : last_logged;
      delete *one;
    }
    threads.erase(ended, threads.end());
    mine.thread = new Thread;
    threads.push_back(mine.thread);
  }
  return *mine.thread;
}

void write_log(Thread& thread, int64_t number, PyObject* path) {
  last_logged = &thread;
  auto& log = thread.log;
  Py_INCREF(path);
  if (!log.empty() && log.back().number == number) {
    PyObject* earlier = log.back().path;
    log.back().path = path;
    Py_DECREF(earlier);
    return;
  }
  if (log.size() >= kLongestLog) {
    PyObject* oldest = log[0].path;
    log.pop_front();
    Py_DECREF(oldest);
  }
  log.push_back({number, path});
}

int64_t sequence_number() {
  return static_cast<int64_t>(at::sequence_number::peek());
}

// Whether torch traces a program; then hooks do nothing. Unknown: handed on.
int is_compiling() {
  PyObject* flag = PyDict_GetItemWithError(compiler, is_compiling_name);
  return flag == Py_False ? 0 : flag == Py_True ? 1 : -1;
}

// Whether the thread's calls are followed here: nothing has changed since it was armed.
bool is_armed(const Thread& thread) {
  if (thread.turn != turn || pass_under_way() != thread.task) {
    return false;
  }
  PyObject* annotation = nullptr;
  if (PyContextVar_Get(annotation_of_thread, nullptr, &annotation) < 0) {
    return false;
  }
  Py_XDECREF(annotation); // the variable's context, or the variable, has it
  return annotation == thread.variable;
}

// Row of the label of a module in the thread's phase, step and annotation; -1 if it cannot be had.
// It may run other code: the collector's, in versions of Python that collect as objects are made.
int32_t row_of(const Thread& thread, PyObject* path) {
  const long phase = thread.task == kOutsideOfGraph ? kForward : kBackward;
  const LabelRow* known = rows_of_paths.find(path);
  if (known != nullptr && known->step == step && known->phase == phase &&
      known->annotation == thread.annotation) {
    return known->row;
  }
  PyObject* annotation = thread.annotation;
  Py_INCREF(annotation);
  const int64_t step_now = step;
  PyObject* key = Py_BuildValue("(LlOO)", static_cast<long long>(step_now), phase, path, annotation);
  PyObject* found = key == nullptr ? nullptr : PyObject_GetItem(label_rows, key);
  Py_XDECREF(key);
  const long row = found == nullptr ? -1 : PyLong_AsLong(found);
  Py_XDECREF(found);
  if (row < 0) {
    Py_DECREF(annotation);
    return -1;
  }
  if (rows_of_paths.size() >= kMostPaths) {
    forget_rows();
  }
  LabelRow& kept = rows_of_paths.at(path);
  PyObject* earlier = kept.annotation;
  kept = {step_now, annotation, phase, static_cast<int32_t>(row)};
  Py_XDECREF(earlier);
  return static_cast<int32_t>(row);
}

// Whether a call was noted here; else Python is to do it.
bool enter(PyObject* module) {
  Thread& thread = thread_here();
  if (!is_armed(thread) || module == thread.root ||
      std::strcmp(Py_TYPE(module)->tp_name, "DataParallel") == 0) {
    return false;
  }
  PyObject* key = PyLong_FromVoidPtr(module);
  PyObject* known = key == nullptr ? nullptr : PyDict_GetItemWithError(known_paths, key);
  Py_XDECREF(key);
  if (known == nullptr || !PyTuple_CheckExact(known) || PyTuple_GET_SIZE(known) != 2) {
    return false;
  }
  PyObject* path = PyTuple_GET_ITEM(known, 1);
  Py_INCREF(path);
  const int64_t turn_before = turn;
  const int32_t row = row_of(thread, path);
  if (row < 0 || thread.turn != turn_before || turn != turn_before) {
    Py_DECREF(path);
    return false;
  }
  thread.calls.push_back({module, path, row});
  write_log(thread, sequence_number(), path);
  set_label(row, thread.task);
  return true;
}

bool leave(PyObject* module) {
  Thread& thread = thread_here();
  if (thread.calls.empty() || thread.calls.back().module != module || !is_armed(thread)) {
    return false;
  }
  PyObject* ended = thread.calls.back().path;
  thread.calls.pop_back();
  const bool is_base = thread.calls.empty();
  const int32_t row = is_base ? thread.row : thread.calls.back().row;
  set_label(row, thread.task);
  write_log(thread, sequence_number(), is_base ? thread.path : thread.calls.back().path);
  Py_DECREF(ended);
  return true;
}

// Whether the error that is set is what a handler of a signal raised: the program's.
bool is_of_signal() {
  PyObject* type = nullptr;
  PyObject* error = nullptr;
  PyObject* traceback = nullptr;
  PyErr_Fetch(&type, &error, &traceback);
  PyErr_NormalizeException(&type, &error, &traceback);
  if (traceback != nullptr) {
    PyException_SetTraceback(error, traceback);
  }
  PyObject* module = PyImport_ImportModule("memprof.cpython.signal_errors");
  PyObject* answer =
      module == nullptr ? nullptr : PyObject_CallMethod(module, "is_of_signal", "O", error);
  const bool is_of_signal = answer != nullptr && PyObject_IsTrue(answer) == 1;
  Py_XDECREF(answer);
  Py_XDECREF(module);
  PyErr_Restore(type, error, traceback);
  return is_of_signal;
}

template <class Follow>
PyObject* hook(PyObject* const* args, Py_ssize_t count, Follow follow, PyObject* const& in_python) {
  if (in_python == nullptr || count < 1) {
    Py_RETURN_NONE;
  }
  if (is_compiling() == 0) {
    const bool is_timed = ++calls_of_hooks % kTimedCalls == 0;
    const int64_t began_ns = is_timed ? now_ns() : 0;
    const bool is_done = follow(args[0]);
    if (is_timed) {
      const int64_t took_ns = now_ns() - began_ns;
      spent_ns += kTimedCalls * std::max<int64_t>(0, std::min(took_ns, kLongestHookNs));
    }
    if (is_done) {
      Py_RETURN_NONE;
    }
    if (PyErr_Occurred() != nullptr && is_of_signal()) {
      return nullptr;
    }
    PyErr_Clear(); // the function in Python meets it again, and says so
  }
  if (in_python == nullptr) { // a finalizer has ended the recording
    Py_RETURN_NONE;
  }
  PyObject* function = in_python;
  Py_INCREF(function);
  PyObject* result = PyObject_Vectorcall(function, args, static_cast<size_t>(count), nullptr);
  Py_DECREF(function);
  return result;
}

PyObject* before(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return hook(args, count, enter, before_in_python);
}

PyObject* after(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return hook(args, count, leave, after_in_python);
}

PyObject* begin(PyObject*, PyObject* args) {
  PyObject *before_hook, *after_hook, *known, *labels, *variable, *namespace_of_compiler;
  if (!PyArg_ParseTuple(args, "OOO!OOO!", &before_hook, &after_hook, &PyDict_Type, &known, &labels,
          &variable, &PyDict_Type, &namespace_of_compiler)) {
    return nullptr;
  }
  if (before_in_python != nullptr) {
    Py_RETURN_FALSE;
  }
  if (is_compiling_name == nullptr) {
    is_compiling_name = PyUnicode_InternFromString("_is_compiling_flag");
    if (is_compiling_name == nullptr) {
      return nullptr;
    }
  }
  for (PyObject* one : {before_hook, after_hook, known, labels, variable, namespace_of_compiler}) {
    Py_INCREF(one);
  }
  known_paths = known;
  label_rows = labels;
  annotation_of_thread = variable;
  compiler = namespace_of_compiler;
  after_in_python = after_hook;
  before_in_python = before_hook;
  ++turn;
  Py_RETURN_TRUE;
}

PyObject* reset(PyObject*, PyObject*) {
  ++turn;
  for (Thread* thread : std::vector<Thread*>(threads)) {
    forget(*thread);
  }
  Py_RETURN_NONE;
}

PyObject* end(PyObject* self, PyObject* none) {
  PyObject** given[] = {&before_in_python, &after_in_python, &known_paths, &label_rows,
      &annotation_of_thread, &compiler};
  for (PyObject** one : given) {
    Py_CLEAR(*one);
  }
  calls_of_hooks = spent_ns = 0;
  forget_rows();
  return reset(self, none);
}

PyObject* arm(PyObject*, PyObject* args) {
  unsigned long long root = 0;
  int task = kOutsideOfGraph;
  int row = 0;
  long long step_now = 0;
  PyObject *path, *annotation;
  if (!PyArg_ParseTuple(args, "KiiLUU", &root, &task, &row, &step_now, &path, &annotation)) {
    return nullptr;
  }
  Thread& thread = thread_here();
  if (before_in_python == nullptr || !thread.calls.empty()) {
    Py_RETURN_NONE;
  }
  PyObject* variable = nullptr;
  if (PyContextVar_Get(annotation_of_thread, nullptr, &variable) < 0) {
    return nullptr;
  }
  disarm(thread);
  thread.variable = variable;
  Py_INCREF(path);
  Py_INCREF(annotation);
  thread.path = path;
  thread.annotation = annotation;
  thread.root = reinterpret_cast<PyObject*>(static_cast<uintptr_t>(root));
  thread.task = task;
  thread.row = row;
  step = step_now;
  thread.turn = turn;
  Py_RETURN_NONE;
}

PyObject* disarm_all(PyObject*, PyObject*) {
  ++turn;
  Py_RETURN_NONE;
}

// The calls that were followed here are Python's from now on, the outermost first.
PyObject* take(PyObject*, PyObject*) {
  Thread& thread = thread_here();
  thread.turn = 0;
  if (thread.calls.empty()) {
    Py_RETURN_NONE;
  }
  std::vector<Call> taken;
  taken.swap(thread.calls);
  PyObject* list = PyList_New(0);
  for (const Call& call : taken) {
    PyObject* one = list == nullptr ? nullptr
                                    : Py_BuildValue("(KOi)",
                                          static_cast<unsigned long long>(
                                              reinterpret_cast<uintptr_t>(call.module)),
                                          call.path, thread.task);
    if (one == nullptr || PyList_Append(list, one) < 0) {
      Py_CLEAR(list);
    }
    Py_XDECREF(one);
  }
  for (const Call& call : taken) {
    Py_DECREF(call.path);
  }
  return list;
}

PyObject* log(PyObject*, PyObject* args) {
  long long number = 0;
  PyObject* path = nullptr;
  if (!PyArg_ParseTuple(args, "LU", &number, &path)) {
    return nullptr;
  }
  write_log(thread_here(), number, path);
  Py_RETURN_NONE;
}

const Thread* logged_here() {
  const Thread& thread = thread_here(); // one of autograd's own runs the graph of another
  return thread.log.empty() && last_logged != nullptr ? last_logged : &thread;
}

// Numbers and paths of the log that `path_at` looks into.
PyObject* log_here(PyObject*, PyObject*) {
  const Log& log = logged_here()->log;
  std::vector<Entry> entries;
  entries.reserve(log.size());
  for (size_t at = 0; at < log.size(); ++at) {
    entries.push_back(log[at]);
  }
  for (const Entry& entry : entries) {
    Py_INCREF(entry.path);
  }
  const auto count = static_cast<Py_ssize_t>(entries.size());
  PyObject* numbers = PyList_New(count);
  PyObject* paths = PyList_New(count);
  bool is_whole = numbers != nullptr && paths != nullptr;
  for (Py_ssize_t i = 0; i < count; ++i) {
    const Entry& entry = entries[static_cast<size_t>(i)];
    PyObject* number = is_whole ? PyLong_FromLongLong(entry.number) : nullptr;
    is_whole = is_whole && number != nullptr;
    if (is_whole) {
      PyList_SET_ITEM(numbers, i, number);
      PyList_SET_ITEM(paths, i, entry.path);
    } else {
      Py_DECREF(entry.path);
    }
  }
  if (!is_whole) {
    Py_XDECREF(numbers);
    Py_XDECREF(paths);
    return nullptr;
  }
  return Py_BuildValue("(NN)", numbers, paths);
}

PyObject* path_at(PyObject*, PyObject* args) {
  long long number = 0;
  if (!PyArg_ParseTuple(args, "L", &number)) {
    return nullptr;
  }
  const Log& log = logged_here()->log;
  size_t low = 0, high = log.size(); // the first entry with a greater number
  while (low < high) {
    const size_t middle = (low + high) / 2;
    if (number < log[middle].number) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  if (low == 0) {
    return PyUnicode_FromString("");
  }
  PyObject* path = log[low - 1].path;
  Py_INCREF(path);
  return path;
}

PyObject* take_spent(PyObject*, PyObject*) {
  const int64_t spent = spent_ns;
  spent_ns = 0;
  return PyLong_FromLongLong(spent);
}

} // namespace

PyMethodDef calls_methods[] = {
    {"calls_before", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(before)),
     METH_FASTCALL, "A global hook before the call of a module: (module, args)."},
    {"calls_after", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(after)),
     METH_FASTCALL, "A global hook after the call of a module: (module, args, output)."},
    {"calls_begin", begin, METH_VARARGS,
     "Follow calls for these: the hooks in Python, the dict of paths, the dict of rows of labels, the "
     "context variable of annotations, the namespace of torch.compiler. False: others do."},
    {"calls_end", end, METH_NOARGS, "Follow nothing, hold nothing. May be repeated."},
    {"calls_reset", reset, METH_NOARGS, "Forget the calls under way and the log of every thread."},
    {"calls_arm", arm, METH_VARARGS,
     "Follow this thread's calls within the one that Python knows of: address of the outermost "
     "module, graph task, row of the label, step, path, annotation."},
    {"calls_disarm", disarm_all, METH_NOARGS, "Every thread's next call goes to Python."},
    {"calls_take", take, METH_NOARGS,
     "This thread's calls under way here, no more followed: (module's id, path, graph task), the "
     "outermost first; None: there are none."},
    {"calls_log", log, METH_VARARGS,
     "Nodes with this number or more, of a graph of this thread, belong to a path."},
    {"calls_log_here", log_here, METH_NOARGS,
     "Numbers and paths of this thread's log; where it has none, of the thread that wrote last."},
    {"calls_path_at", path_at, METH_VARARGS, "Path of the module that a node was made in."},
    {"calls_take_spent", take_spent, METH_NOARGS, "Nanoseconds in hooks since the last call."},
    {nullptr, nullptr, 0, nullptr}};

} // namespace memprof
