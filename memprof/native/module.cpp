// The Python module `memprof_native`: functions of all parts, of CUDA's where torch has it.

#include "reads.h"
#include "rows.h"

#include <pthread.h>

#include <condition_variable>
#include <mutex>

namespace memprof {

namespace {

std::atomic<int32_t> epochs{0};
std::atomic<int32_t> threads{0};
std::atomic<int32_t> first_epoch{0}; // what was said before counts no more

struct Mark { // of the training loop's thread
  int64_t time_ns;
  int64_t label;
};
static_assert(sizeof(Mark) == 16, "read by name in memprof/sources/native_rows.py");
// So many wait at most; the older half of them goes then.
constexpr size_t kMostMarks = 1u << 20;

// Guarded by the interpreter's lock.
std::vector<Mark> marks;
int32_t loop_thread = -1;

PyObject* label(PyObject*, PyObject* args) {
  int row = 0;
  int task = kOutsideOfGraph;
  if (!PyArg_ParseTuple(args, "ii", &row, &task)) {
    return nullptr;
  }
  set_label(row, task);
  return PyLong_FromLong(here().thread);
}

PyObject* is_loop(PyObject*, PyObject*) {
  loop_thread = here().thread;
  Py_RETURN_NONE;
}

PyObject* take_marks(PyObject*, PyObject*) {
  std::vector<Mark> taken;
  taken.swap(marks);
  return as_bytes(taken.data(), taken.size() * sizeof(Mark));
}

// Another recording numbers its labels anew, and another window hears of other threads anew.
PyObject* forget_labels(PyObject*, PyObject*) {
  first_epoch = epochs + 1;
  loop_thread = -1;
  std::vector<Mark>().swap(marks);
  Py_RETURN_NONE;
}

// How often there was cause to look at the limits. Held by nobody for longer than a few instructions.
struct Alarm {
  std::mutex mutex;
  std::condition_variable changed;
  int64_t calls = 0;
};
// A child that was forked has one of its own: nobody would release what a thread of its parent held.
Alarm* alarm = new Alarm;

PyObject* wait_for_rows(PyObject*, PyObject* args) {
  long long calls = 0;
  double longest_s = 0;
  if (!PyArg_ParseTuple(args, "Ld", &calls, &longest_s)) {
    return nullptr;
  }
  Alarm& mine = *alarm;
  Py_BEGIN_ALLOW_THREADS;
  {
    std::unique_lock<std::mutex> guard(mine.mutex);
    mine.changed.wait_for(guard, std::chrono::duration<double>(longest_s),
        [&] { return mine.calls != calls; });
    calls = mine.calls;
  }
  Py_END_ALLOW_THREADS;
  return PyLong_FromLongLong(calls);
}

PyObject* wake_waiting(PyObject*, PyObject*) {
  wake();
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"label", label, METH_VARARGS,
     "Label what this thread allocates from now on, within a graph task; the thread's number."},
    {"forget_labels", forget_labels, METH_NOARGS,
     "Forget what every thread said with `label`, and whose the loop is."},
    {"is_loop", is_loop, METH_NOARGS, "The calling thread is the one of the training loop."},
    {"take_marks", take_marks, METH_NOARGS,
     "Times and labels of the training loop's thread since the last call."},
    {"wait_for_rows", wait_for_rows, METH_VARARGS,
     "Wait, so many seconds at most, until `wake` was called another number of times; that number."},
    {"wake", wake_waiting, METH_NOARGS, "Wake whoever waits for rows."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "memprof_native", nullptr, -1, methods, nullptr,
    nullptr, nullptr, nullptr};

void in_child() {
  alarm = new Alarm;
  cpu_in_child();
  reads_in_child();
#ifdef MEMPROF_CUDA
  cuda_in_child();
#endif
}

} // namespace

void set_label(int32_t row, int32_t task) {
  Here& at = here();
  at.label = row;
  at.task = task;
  at.epoch = ++epochs;
  if (at.thread == loop_thread) {
    if (marks.size() >= kMostMarks) {
      marks.erase(marks.begin(), marks.begin() + kMostMarks / 2);
    }
    marks.push_back({now_ns(), row});
  }
}

void wake() {
  {
    const std::lock_guard<std::mutex> guard(alarm->mutex);
    ++alarm->calls;
  }
  alarm->changed.notify_all();
}

int32_t pass_under_way() {
  return torch::autograd::get_current_graph_task_id();
}

Here& here() {
  thread_local Here at{0, kOutsideOfGraph, 0, threads++};
  if (at.epoch < first_epoch.load(std::memory_order_relaxed)) {
    at.label = at.epoch = 0;
    at.task = kOutsideOfGraph;
  }
  return at;
}

} // namespace memprof

PyMODINIT_FUNC PyInit_memprof_native(void) {
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(nullptr, nullptr, &memprof::in_child); });
  PyObject* module = PyModule_Create(&memprof::definition);
  if (module == nullptr || PyModule_AddFunctions(module, memprof::cpu_methods) < 0 ||
      PyModule_AddFunctions(module, memprof::reads_methods) < 0 ||
      PyModule_AddFunctions(module, memprof::calls_methods) < 0) {
    return nullptr;
  }
#ifdef MEMPROF_CUDA
  if (PyModule_AddFunctions(module, memprof::cuda_methods) < 0) {
    return nullptr;
  }
#endif
  return module;
}
