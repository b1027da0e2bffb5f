"""A window that begins or ends within ``torch.inference_mode`` breaks nothing and goes on.

torch notes as the block begins that modes are to be asked, and puts that back as it ends: without a
mode every operator afterwards would fail (``Hit Python dispatch key but no arguments had
PyInterpreter``).
"""

from __future__ import annotations

import pytest

from tests import forks

pytest.importorskip("torch", reason="it is torch that puts it back")

JOB = """
import sys, torch, memprof
from memprof.loading import load
from memprof.sources.cpu.dispatch_mode import Watch, pop_left

asked = []

def dispatch(mode, func, types, args=(), kwargs=None):
    asked.append(str(func))
    return func(*args, **(kwargs or {}))

def is_asked():
    return torch._C._dispatch_tls_is_dispatch_key_included(torch._C.DispatchKey.Python)
"""


def run(text, *arguments):
    done = forks.run(JOB + text, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_mode_stays_until_the_program_has_left_the_block():
    out = run("""
watch = Watch(dispatch)
watch.push()
with torch.inference_mode():
    torch.ones(1)
    taken = watch.pop()
    torch.ones(2)
    inside = is_asked()
torch.ones(3)
torch.randint(0, 5, (3,), generator=torch.Generator())
pop_left()
torch.ones(4)
print(taken, inside, is_asked(), torch._C._len_torch_dispatch_stack(), len(asked))
""")
    assert out.split() == ["False", "True", "False", "0", "1"]


def test_a_mode_that_began_within_the_block_ends_there_and_after_it():
    out = run("""
for where in ("there", "after"):
    watch = Watch(dispatch)
    with torch.inference_mode():
        watch.push()
        if where == "there":
            print(watch.pop())
    if where == "after":
        print(watch.pop())
    torch.ones(3)
    print(is_asked(), torch._C._len_torch_dispatch_stack())
""")
    assert out.split() == ["True", "False", "0", "True", "False", "0"]


def test_a_mode_goes_on_after_the_block_in_which_it_began():
    out = run("""
watch = Watch(dispatch)
with torch.inference_mode():
    watch.push()
    torch.ones(1)
before = len(asked)
torch.ones(2)
asleep = len(asked)
watch.renew()
torch.ones(3)
print(asleep - before, len(asked) - asleep, watch.pop(), is_asked())
""")
    assert out.split() == ["0", "1", "True", "False"]


@pytest.mark.parametrize("inner", ["True", "False"])
def test_a_job_whose_windows_end_within_the_block_goes_on(tmp_path, inner):
    """The window is stopped by its limit of events while tokens are made."""
    out = run(
        """
model = torch.nn.Linear(16, 16)
with memprof.track(sys.argv[1], max_events=200, sources=("cpu",)):
    for _ in range(12):
        with torch.inference_mode(), torch.inference_mode(sys.argv[2] == "True"):
            for _ in range(30):
                model(torch.ones(2, 16))
            memprof.step()
        torch.randint(0, 5, (3,), generator=torch.Generator())
torch.ones(3)
print(is_asked(), torch._C._len_torch_dispatch_stack(), len(load(sys.argv[1]).devices))
""",
        str(tmp_path / "run.json"),
        inner,
    )
    assert out.split() == ["False", "0", "1"]


NESTED = """
watch = Watch(dispatch)
real = torch._C._InferenceMode
watch.push()
with torch.inference_mode():
    with torch.inference_mode(False):
        torch.ones(1)
        taken = watch.pop()
        torch.ones(2)
        with torch.inference_mode():
            with torch.inference_mode(False):
                pop_left()
                torch.ones(2)
        torch.ones(2)
    torch.ones(2)
    torch.randint(0, 5, (3,), generator=torch.Generator())
length, name = torch._C._len_torch_dispatch_stack(), torch._C._InferenceMode
torch.ones(3)
print(taken, is_asked(), length, name is real, len(asked))
"""


def test_a_mode_stays_where_a_block_within_another_undoes_it():
    assert run(NESTED).split() == ["False", "False", "0", "True", "1"]


def test_a_mode_that_is_over_leaves_with_the_block_and_not_with_the_next_operator():
    out = run("""
@torch.inference_mode()
def tokens(watch):
    for at in range(3):
        if at == 1:
            watch.pop()
        yield torch.ones(1)

watch = Watch(dispatch)
watch.push()
lengths = [torch._C._len_torch_dispatch_stack() for _ in tokens(watch)]
torch.ones(3)
print(*lengths, is_asked())
""")
    # a generator is outside of its block between two of its values
    assert out.split() == ["1", "0", "0", "False"]


def test_blocks_of_other_threads_and_of_the_time_before_do_not_keep_a_mode():
    out = run("""
import threading

watch, told = Watch(dispatch), []
real = torch._C._InferenceMode

def other():
    with torch.inference_mode():
        begun.set()
        ended.wait()
        told.append(is_asked())

begun, ended = threading.Event(), threading.Event()
with torch.inference_mode():
    watch.push()
    thread = threading.Thread(target=other)
    thread.start()
    begun.wait()
    print(watch.pop(), is_asked(), torch._C._InferenceMode is real)
    ended.set()
    thread.join()
torch.ones(3)
print(is_asked(), *told)
""")
    assert out.split() == ["True", "False", "True", "False", "False"]


def test_a_block_that_is_dropped_without_an_end_keeps_no_mode():
    out = run("""
watch = Watch(dispatch)
watch.push()
block = torch._C._InferenceMode(True)
block.__enter__()
taken = watch.pop()
del block
torch.ones(3)
print(taken, is_asked(), torch._C._len_torch_dispatch_stack(), torch.is_inference_mode_enabled())
""")
    assert out.split() == ["False", "False", "0", "False"]


def test_two_windows_after_one_another_within_blocks_leave_torch_as_it_was():
    out = run("""
real = torch._C._InferenceMode
one, other = Watch(dispatch), Watch(dispatch)
one.push()
with torch.inference_mode():
    one.pop()
    other.push()
    with torch.inference_mode(False):
        torch.ones(1)
        other.pop()
        torch.ones(1)
    torch.ones(1)
torch.ones(1)
pop_left()
torch.ones(1)
print(is_asked(), torch._C._len_torch_dispatch_stack(), torch._C._InferenceMode is real)
""")
    assert out.split() == ["False", "0", "True"]


def test_a_mode_that_began_in_an_earlier_block_goes_with_the_one_in_which_it_ended():
    """Torch asks for it again once somebody has put it aside and back, outside of any block."""
    out = run("""
from torch.utils._python_dispatch import _disable_current_modes

watch = Watch(dispatch)
with torch.inference_mode():
    watch.push()
with _disable_current_modes():
    pass
inside = is_asked()
with torch.inference_mode():
    torch.ones(1)
    taken = watch.pop()
torch.ones(2)
print(inside, taken, is_asked(), torch._C._len_torch_dispatch_stack(), len(asked))
""")
    assert out.split() == ["True", "False", "False", "0", "1"]


def test_in_a_block_of_cpp_no_operator_tries_to_take_a_mode_that_is_remembered():
    """Each instruction of Python's until its end would try in vain, after each operator again."""
    out = run("""
from memprof.sources.loop.main_thread import MainThread

tries, ask = [], MainThread.request
MainThread.request = lambda self: (tries.append(1), ask(self))
real = torch._C._InferenceMode
watch = Watch(dispatch)
watch.push()
block = real(True)  # seen by nobody
block.__enter__()
taken = watch.pop()
for _ in range(5):
    torch.ones(1)
within = len(tries)
del block
torch.ones(1)
pop_left()
print(taken, within, len(tries) > 0, is_asked(), torch._C._len_torch_dispatch_stack())
""")
    assert out.split() == ["False", "0", "True", "False", "0"]
