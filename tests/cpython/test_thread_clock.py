"""Tests of the clock by which a recording counts what it costs."""

import threading
import time

from memprof.cpython.thread_clock import READING_NS, thread_ns, thread_us


def work(until_ns):
    """Use the processor until the calling thread has had so much of it."""
    while thread_ns() < until_ns:
        pass


def test_waiting_is_not_counted_and_work_is():
    began_us = thread_us()
    time.sleep(0.2)
    assert thread_us() - began_us < 100_000
    work(thread_ns() + 20_000_000)
    assert thread_us() - began_us >= 20_000


def test_what_another_thread_does_is_not_counted():
    began_ns = thread_ns()
    other = threading.Thread(target=lambda: work(thread_ns() + 200_000_000))
    other.start()
    other.join()
    assert thread_ns() - began_ns < 100_000_000


def test_a_reading_takes_less_than_what_is_timed_with_it():
    assert 0 <= READING_NS < 100_000
