"""Threads told from each other by what they were made to run."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from memprof.sources.cuda.thread_entry_point import NO_ENTRY, entry_here, entry_of


def test_a_thread_is_told_by_the_function_it_was_made_to_run():
    found = []

    def loader() -> None:
        deeper()

    def deeper() -> None:
        found.append(entry_here())

    thread = threading.Thread(target=loader)
    thread.start()
    thread.join()
    assert found == [(__file__, "loader")]


def test_a_class_of_threads_is_told_by_its_run():
    found = []

    class Loader(threading.Thread):
        def run(self) -> None:
            found.append(entry_here())

    thread = Loader()
    thread.start()
    thread.join()
    assert found == [(__file__, "run")]


def test_threads_of_a_pool_are_told_by_the_pools_worker():
    with ThreadPoolExecutor(1) as pool:
        filename, name = pool.submit(entry_here).result()
    assert filename.endswith("thread.py")
    assert name == "_worker"


def test_the_main_thread_has_no_entry():
    assert entry_here() == NO_ENTRY


@pytest.mark.parametrize("name", ["_bootstrap", "Thread._bootstrap"], ids=["3.10", "qualified"])
def test_a_stack_is_told_by_its_outermost_functions(name):
    own = threading.__file__
    stack = [("a.py", "f"), (own, "run"), ("b.py", "loader"), (own, "run"), (own, name)]
    assert entry_of(stack) == ("b.py", "loader")
    assert entry_of(stack[:-1]) == NO_ENTRY
    assert entry_of([(own, name)]) == (own, name)
    assert entry_of([]) == NO_ENTRY
