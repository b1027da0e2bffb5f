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


def test_a_job_whose_windows_end_within_the_block_goes_on(tmp_path):
    """The window is stopped by its limit of events while tokens are made."""
    out = run(
        """
model = torch.nn.Linear(16, 16)
with memprof.track(sys.argv[1], max_events=200, sources=("cpu",)):
    for _ in range(12):
        with torch.inference_mode():
            for _ in range(30):
                model(torch.ones(2, 16))
            memprof.step()
        torch.randint(0, 5, (3,), generator=torch.Generator())
torch.ones(3)
print(is_asked(), torch._C._len_torch_dispatch_stack(), len(load(sys.argv[1]).devices))
""",
        str(tmp_path / "run.json"),
    )
    assert out.split() == ["False", "0", "1"]
