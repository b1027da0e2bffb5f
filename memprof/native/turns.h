// Where the loop's thread goes from one allocation to the next: what may be a turn of its loop.
//
// Everything here is guarded by the interpreter's lock.
#pragma once

#include "places.h"

#include <pythread.h>

#include <vector>

namespace memprof {

class Turns {
 public:
  // Watch a thread from now on. `acquire` takes a lock without waiting: a call of memprof's is to be
  // made. `call` is what makes it as it is asked for its truth, and gives the lock back. Null: none.
  void watch(unsigned long thread, PyObject* acquire, PyObject* call) {
    Py_XINCREF(acquire);
    Py_XINCREF(call);
    Py_XDECREF(acquire_);
    Py_XDECREF(call_);
    acquire_ = acquire;
    call_ = call;
    thread_ = thread;
    last_ = 0;
    skips_ = 0;
    ways_.clear();
  }
  // The thread allocates at a stack, by its row.
  void at(int32_t stack) {
    if (call_ == nullptr || stack == 0 || PyThread_get_thread_ident() != thread_) {
      return;
    }
    const int32_t before = last_;
    last_ = stack;
    if (before == skipped_from_ && stack == skipped_to_ && skips_ > 0) {
      --skips_;
    } else if (before != 0 && !is_known(key(before, stack))) {
      if (ways_.size() >= kMostWays) { // no call could be made for long
        ways_.clear();
      }
      ways_.push_back(before);
      ways_.push_back(stack);
      ways_.push_back(now_ns());
    }
    if (!ways_.empty() && queued_ == nullptr) {
      ask();
    }
  }
  // Of each way of the thread since the last call the rows of two stacks, and when it went there.
  std::vector<int64_t> take() {
    std::vector<int64_t> taken;
    taken.swap(ways_);
    return taken;
  }
  // This way is no turn, and need not be told any more.
  void add_known(int32_t before, int32_t after) {
    if (count_ * 2 >= known_.size()) {
      if (known_.size() >= kMostKnown) {
        forget();
      } else {
        grow();
      }
    }
    put(key(before, after));
  }
  // The next times that the thread goes this way need not be told.
  void skip(int32_t before, int32_t after, int64_t times) {
    skipped_from_ = before;
    skipped_to_ = after;
    skips_ = times;
  }
  // Stacks get other rows.
  void forget() {
    known_.assign(kLeastKnown, 0);
    count_ = 0;
    last_ = 0;
    skips_ = 0;
    ways_.clear();
  }

 private:
  static constexpr size_t kMostWays = 192;
  static constexpr size_t kLeastKnown = 1024; // a power of two
  static constexpr size_t kMostKnown = 1u << 16;

  static uint64_t key(int32_t before, int32_t after) {
    return static_cast<uint64_t>(static_cast<uint32_t>(before)) << 32 | static_cast<uint32_t>(after);
  }
  size_t place_of(uint64_t key) const {
    size_t at = (key * 0x9E3779B97F4A7C15ull >> 32) & (known_.size() - 1);
    while (known_[at] != 0 && known_[at] != key) {
      at = (at + 1) & (known_.size() - 1);
    }
    return at;
  }
  bool is_known(uint64_t key) const {
    return known_[place_of(key)] == key;
  }
  void put(uint64_t key) {
    uint64_t& place = known_[place_of(key)];
    count_ += place == 0;
    place = key;
  }
  void grow() {
    std::vector<uint64_t> before(known_.size() * 2, 0);
    before.swap(known_);
    count_ = 0;
    for (const uint64_t one : before) {
      if (one != 0) {
        put(one);
      }
    }
  }
  // Have the main thread make the call once the operator has run. Where another one waits or lasts
  // it is asked for again with the next allocation. Queueing it runs no Python code.
  void ask() {
    if (PyErr_Occurred() != nullptr) {
      return; // the program's own error is on its way: nothing may be called, and none cleared
    }
    PyObject* is_ours = PyObject_CallFunctionObjArgs(acquire_, Py_False, nullptr); // code in C
    if (is_ours == nullptr) {
      PyErr_Clear();
      return;
    }
    if (is_ours == Py_True) {
      Py_INCREF(call_);
      queued_ = call_;
      if (Py_AddPendingCall(&make, this) != 0) { // no room for it
        Py_CLEAR(queued_);
        give_lock_back();
      }
    }
    Py_DECREF(is_ours);
  }
  static int make(void* turns) {
    Turns& self = *static_cast<Turns*>(turns);
    PyObject* call = self.queued_;
    self.queued_ = nullptr;
    const int truth = PyObject_IsTrue(call);
    Py_DECREF(call);
    return truth < 0 ? -1 : 0;
  }
  void give_lock_back() {
    PyObject* lock = PyObject_GetAttrString(acquire_, "__self__");
    PyObject* none = lock == nullptr ? nullptr : PyObject_CallMethod(lock, "release", nullptr);
    Py_XDECREF(none);
    Py_XDECREF(lock);
    PyErr_Clear();
  }

  PyObject* acquire_ = nullptr;
  PyObject* call_ = nullptr;
  PyObject* queued_ = nullptr; // the call that waits in Python's queue
  unsigned long thread_ = 0;
  int32_t last_ = 0;
  int32_t skipped_from_ = 0;
  int32_t skipped_to_ = 0;
  int64_t skips_ = 0;
  std::vector<int64_t> ways_;
  std::vector<uint64_t> known_ = std::vector<uint64_t>(kLeastKnown, 0);
  size_t count_ = 0;
};

} // namespace memprof
