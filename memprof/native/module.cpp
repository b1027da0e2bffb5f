// The Python module `memprof_native`: functions of the CPU's part, and of CUDA's where torch has it.

#include "rows.h"

#include <pthread.h>

#include <mutex>

namespace memprof {

namespace {

std::atomic<int32_t> epochs{0};
std::atomic<int32_t> threads{0};
std::atomic<int32_t> first_epoch{0}; // what was said before counts no more

PyObject* label(PyObject*, PyObject* args) {
  int row = 0;
  int task = kOutsideOfGraph;
  if (!PyArg_ParseTuple(args, "ii", &row, &task)) {
    return nullptr;
  }
  Here& at = here();
  at.label = row;
  at.task = task;
  at.epoch = ++epochs;
  return PyLong_FromLong(at.thread);
}

// Another recording numbers its labels anew, and another window hears of other threads anew.
PyObject* forget_labels(PyObject*, PyObject*) {
  first_epoch = epochs + 1;
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"label", label, METH_VARARGS,
     "Label what this thread allocates from now on, within a graph task; the thread's number."},
    {"forget_labels", forget_labels, METH_NOARGS, "Forget what every thread said with `label`."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "memprof_native", nullptr, -1, methods, nullptr,
    nullptr, nullptr, nullptr};

void in_child() {
  cpu_in_child();
#ifdef MEMPROF_CUDA
  cuda_in_child();
#endif
}

} // namespace

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
  if (module == nullptr || PyModule_AddFunctions(module, memprof::cpu_methods) < 0) {
    return nullptr;
  }
#ifdef MEMPROF_CUDA
  if (PyModule_AddFunctions(module, memprof::cuda_methods) < 0) {
    return nullptr;
  }
#endif
  return module;
}
