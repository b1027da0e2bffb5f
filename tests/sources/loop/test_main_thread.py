"""A call in the main thread while it runs Python, as another thread asked for it."""

from __future__ import annotations

import gc
import importlib
import importlib.abc
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from memprof.cpython import signal_errors
from memprof.sources.loop.main_thread import Beat, MainThread, hands_on

MOST_TURNS = 50_000_000


def spin(until: Callable[[], object]) -> bool:
    """The main thread runs Python, and nothing else, until something is so."""
    return any(until() for _ in range(MOST_TURNS))


def request(main: MainThread) -> bool:
    """As it is done: another thread asks, and the main one waits for that in C."""
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(main.request()))
    thread.start()
    thread.join()
    return answers == [True]


def test_another_thread_has_something_called_in_the_main_one() -> None:
    threads: list[threading.Thread] = []
    main = MainThread(lambda: threads.append(threading.current_thread()))
    assert request(main)
    assert spin(lambda: threads)
    assert threads == [threading.main_thread()]
    main.close()


def test_each_request_is_one_call() -> None:
    calls: list[int] = []
    main = MainThread(lambda: calls.append(1))
    for n in range(1, 100):
        assert request(main)
        assert spin(lambda n=n: len(calls) == n)
    assert not spin_a_little(lambda: len(calls) > 99)
    main.close()


def spin_a_little(until: Callable[[], object]) -> bool:
    return any(until() for _ in range(10_000))


def test_one_call_waits_at_a_time() -> None:
    answers: list[bool] = []
    calls: list[int] = []
    main = MainThread(lambda: calls.append(1))

    def ask_three_times() -> None:
        answers.extend(main.request() for _ in range(3))

    thread = threading.Thread(target=ask_three_times)
    thread.start()
    thread.join()  # the main thread waits in C, so nothing was called before the last request
    assert answers == [True, False, False]
    assert spin(lambda: calls)
    assert not spin_a_little(lambda: len(calls) > 1)
    main.close()


def test_an_error_does_not_reach_the_program_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls: list[int] = []

    def fail() -> None:
        calls.append(1)
        raise ValueError("ours")

    main = MainThread(fail)
    with caplog.at_level(logging.WARNING, "memprof"):
        for n in (1, 2):
            assert request(main)
            assert spin(lambda n=n: len(calls) == n)
    assert [str(r.exc_info[1]) for r in caplog.records if r.exc_info] == ["ours"]
    main.close()


def request_and_spin(main: MainThread, awaited: type[BaseException]) -> bool:
    """Whether the error comes out of the program's own code."""
    try:
        request(main)
        return spin(lambda: False)
    except awaited:
        return True


def test_what_a_handler_of_the_program_raises_meanwhile_reaches_the_program() -> None:
    class ProgramError(Exception):
        pass

    def handle(number: int, frame: object) -> None:
        raise ProgramError

    def interrupted() -> None:
        os.kill(os.getpid(), signal.SIGUSR1)
        spin_a_little(lambda: False)

    main = MainThread(interrupted)
    before = signal.signal(signal.SIGUSR1, handle)
    try:
        assert request_and_spin(main, ProgramError)
    finally:
        signal.signal(signal.SIGUSR1, before)
        main.close()


def test_an_interruption_by_the_user_reaches_the_program() -> None:
    def interrupted() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        spin_a_little(lambda: False)

    main = MainThread(interrupted)
    assert request_and_spin(main, KeyboardInterrupt)
    main.close()


def test_nothing_runs_after_the_end() -> None:
    calls: list[int] = []
    main = MainThread(lambda: calls.append(1))
    thread = threading.Thread(target=lambda: (main.request(), main.close()))
    thread.start()
    thread.join()
    assert not spin_a_little(lambda: calls)
    assert not request(main)
    assert not signal_errors.QUEUED


def test_what_was_called_is_let_go_of() -> None:
    class Owner:
        def call(self) -> None:
            calls.append(1)

    calls: list[int] = []
    owner = Owner()
    gone = weakref.ref(owner)
    main = MainThread(owner.call)
    assert request(main)
    assert spin(lambda: calls)
    main.close()
    del main, owner
    gc.collect()
    assert gone() is None


def test_no_call_comes_in_the_middle_of_the_own_code() -> None:
    calls: list[int] = []
    main = MainThread(lambda: calls.append(1))
    module = ModuleType("memprof.pretended")
    exec(  # a function whose module is one of memprof's
        "def inside(ask, spin):\n    ask()\n    return spin()\n", module.__dict__
    )
    assert not module.inside(lambda: request(main), lambda: spin_a_little(lambda: calls))
    assert request(main), "the call that was left out does not wait any more"
    assert spin(lambda: calls)
    calls.clear()
    hands_on(module.inside)
    assert module.inside(lambda: request(main), lambda: spin(lambda: calls))
    main.close()


class _Importer(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports modules of one name by calling a function, as their own code would be run."""

    def __init__(self, name: str, run: Callable[[], object]) -> None:
        self.name, self.run = name, run

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name == self.name else None

    def exec_module(self, module: ModuleType) -> None:
        module.answer = self.run()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "comes"), [("pretended_part", True), ("numpy.pretended_part", False)]
)
def test_no_call_comes_while_a_library_that_memprof_uses_is_imported(
    name: str, comes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    main = MainThread(lambda: calls.append(1))

    def spins() -> bool:
        assert request(main)
        return spin_a_little(lambda: calls)

    monkeypatch.setattr(sys, "meta_path", [_Importer(name, spins), *sys.meta_path])
    module = importlib.import_module(name)
    monkeypatch.delitem(sys.modules, name)
    assert module.answer is comes
    calls.clear()
    assert request(main), "and it comes once the import is over"
    assert spin(lambda: calls)
    main.close()


def test_nothing_is_queued_while_a_call_is_made() -> None:
    answers: list[bool] = []
    other = MainThread(lambda: answers.append(True))
    main = MainThread(lambda: answers.append(request(other)))
    assert request(main)
    assert spin(lambda: answers)
    assert answers == [False]
    assert request(other)
    assert spin(lambda: len(answers) == 2)
    main.close()
    other.close()


@pytest.mark.parametrize("setter", ["setprofile", "settrace"])
def test_a_call_whose_functions_are_traced_ends_though_others_are_asked_for(setter: str) -> None:
    program = (
        "import sys, time\n"
        "from memprof.sources.loop.main_thread import Beat, MainThread\n"
        "calls = []\n"
        "def look(*_): return look\n"
        "def function(): pass\n"
        "def call():\n"
        "    time.sleep(0.05)\n"
        "    function()\n"
        "    calls.append(1)\n"
        "mains = [MainThread(call), MainThread(call)]\n"
        "beats = [Beat(main.request, 1) for main in mains]\n"
        f"sys.{setter}(look)\n"
        "for beat in beats: beat.start()\n"
        "while len(calls) < 5: pass\n"
        f"sys.{setter}(None)\n"
        "for part in beats + mains: part.close()\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_a_full_queue_is_asked_again_later() -> None:
    calls: list[int] = []
    add, is_full = signal_errors.adder(), [True]
    assert add is not None
    main = MainThread(lambda: calls.append(1), lambda call: -1 if is_full else add(call))
    assert not request(main)
    assert not signal_errors.QUEUED
    is_full.clear()
    assert request(main)
    assert spin(lambda: calls)
    main.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_calls_nothing() -> None:
    calls: list[int] = []
    main = MainThread(lambda: calls.append(1))
    context = multiprocessing.get_context("fork")
    reader, writer = context.Pipe(duplex=False)

    def in_child() -> None:
        spin_a_little(lambda: calls)
        writer.send((len(calls), main.request()))

    request(main)
    child = context.Process(target=in_child)
    calls.clear()
    child.start()
    assert reader.recv() == (0, False)
    child.join()
    main.close()


def test_a_beat_asks_until_it_is_closed() -> None:
    calls: list[str] = []
    main = MainThread(lambda: calls.append(threading.current_thread().name))
    beat = Beat(main.request, interval_ms=1)
    beat.start()
    beat.start()
    assert [t.name for t in threading.enumerate()].count("memprof beat") == 1
    assert spin(lambda: len(calls) >= 5)
    assert set(calls) == {threading.main_thread().name}
    beat.close()
    beat.close()
    main.close()
    assert "memprof beat" not in [t.name for t in threading.enumerate()]
    count = len(calls)
    assert not spin_a_little(lambda: len(calls) > count)
    beat.start()
    assert "memprof beat" in [t.name for t in threading.enumerate()]
    beat.close()


def test_a_beat_that_is_to_ask_more_often_does_so_at_once() -> None:
    asked: list[None] = []
    beat = Beat(lambda: asked.append(None), interval_ms=3_600_000)
    beat.start()
    beat.pace(3_600_000)
    assert not asked
    beat.pace(1)
    beat.pace(0.5)  # before it has slept again
    assert spin(lambda: len(asked) >= 5)
    beat.pace(3_600_000)
    beat.close()
    assert "memprof beat" not in [t.name for t in threading.enumerate()]


def test_a_process_that_ends_with_a_call_in_its_queue_ends_well() -> None:
    program = (
        "import threading, sys\n"
        "from memprof.sources.loop.main_thread import Beat, MainThread\n"
        "main = MainThread(lambda: None)\n"
        "beat = Beat(main.request, 0.1)\n"
        "beat.start()\n"
        "for _ in range(300_000): pass\n"
        "main.request()\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_what_is_called_inside_a_compiled_function_is_left_uncompiled() -> None:
    pytest.importorskip("torch._dynamo")
    from torch._C._dynamo import eval_frame

    seen: list[object] = []
    main = MainThread(lambda: seen.append(eval_frame.set_eval_frame(None)))
    before = eval_frame.set_eval_frame(False)  # as inside a compiled function, run only
    try:
        request(main)
        called = spin(lambda: seen)
    finally:
        after = eval_frame.set_eval_frame(before)
        main.close()
    assert called
    assert seen == [None]
    assert after is False
