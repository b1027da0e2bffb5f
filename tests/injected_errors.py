"""A program that trains again and again, each time with an error in another call of memprof's own."""

from __future__ import annotations

__all__ = ["INJECT", "TRAIN"]

TRAIN = """
import sys, torch
def train(steps=12, seed=0, after=lambda step: None, around=None):
    generator = torch.Generator().manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    for step in range(steps):
        loss = model(torch.randn(8, 16, generator=generator)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
        after(step)
    return losses
"""

INJECT = """
import inspect, logging, random, signal, threading, memprof
from pathlib import Path
from memprof.record.tracker import active
path, event, first, every = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
by_signal = sys.argv[5:] == ["signal"]
logging.disable()
OURS = str(Path(memprof.__file__).parent)
CLOCKS = {"thread_ns", "thread_us", "_clock_us"}
LOCKS = {"acquire", "release", "__enter__", "__exit__", "__build_class__"}
CALLBACKS = {"_forget", "_on_collection", "_on_death", "__del__"}  # see `interruptions.py`
threads_failed, ignored, interruptions = [], [], 0
if by_signal:
    sys.unraisablehook = ignored.append

class Interruption(Exception):
    pass

def interrupt(number, frame):
    raise Interruption

signal.signal(signal.SIGALRM, interrupt)
threading.excepthook = threads_failed.append
counts, target, nth, fired = {}, None, 0, 0

def place(frame, argument):
    "What is called where, if memprof calls it: a function of its own, or one in C at a line."
    code = frame.f_code
    if code.co_filename.endswith(("tracker.py", "sampled_time.py")):  # the door, and a clock
        return None
    if event == "c_call":
        name = getattr(argument, "__name__", "")
        ours = code.co_filename.startswith(OURS) and name not in LOCKS
        return (code, frame.f_lineno, name) if ours else None
    if by_signal and (code.co_name in CALLBACKS or code.co_flags & inspect.CO_GENERATOR):
        return None  # before the first instruction no signal is looked for
    files = [code.co_filename, frame.f_back.f_code.co_filename if frame.f_back else ""]
    ours = all(file.startswith(OURS) for file in files) and code.co_name not in CLOCKS
    return (code, 0, "") if ours else None

def look(frame, happened, argument):
    global fired
    if happened != event or (by_signal and threading.current_thread().name != "MainThread"):
        return
    here = place(frame, argument)
    if here is None:
        return
    if target is None:
        counts[here] = counts.get(here, 0) + 1
    elif here == target:
        fired += 1
        if fired == nth:
            sys.setprofile(None)
            threading.setprofile(None)
            if not by_signal:
                raise RuntimeError("injected")
            signal.raise_signal(signal.SIGALRM)

def trained():
    global interruptions
    try:
        return train(8)
    except Interruption:
        interruptions += 1
        return train(8)

def recorded():
    track = memprof.track(path, allowance_s=600, sample_interval_s=0.01)
    threading.setprofile(look)
    sys.setprofile(look)
    try:
        with track:
            return trained()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)

def title(here):
    code, line, name = here
    return f"{code.co_filename[len(OURS):]}:{line or code.co_firstlineno} {name or code.co_name}"

plain = train(8)
if event == "c_call":
    recorded()  # what is imported late is not a call of a source
assert recorded() == plain
places = sorted(counts, key=title)
assert len(places) > 100

def attempt():
    global interruptions
    threads, interruptions = {*threading.enumerate()}, 0
    try:
        assert recorded() == plain, "other losses"
    except Interruption:
        interruptions += 1
    assert not ignored, f"Python ignored an error in {ignored.pop().object}"
    assert interruptions == (by_signal and fired >= nth), f"{interruptions} interruptions"
    assert not threads_failed, "an error in a thread reached the program's hook"
    assert active() is None, "it records still"
    assert not torch.utils._python_dispatch._get_current_dispatch_mode_stack(), "a mode was left"
    assert not torch.nn.modules.module._global_forward_hooks, "a hook was left"
    for thread in {*threading.enumerate()} - threads:
        thread.join(2)
        assert not thread.is_alive(), f"{thread.name} was left"
    memprof.load(path)

seed = random.Random(first)
failed = 0
for target in places[first::every]:
    fired, nth = 0, seed.randint(1, counts[target])
    try:
        attempt()
    except Exception as error:
        failed += 1
        print(f"{title(target)}, call {nth}: {type(error).__name__}: {error}", file=sys.stderr)
        threads_failed.clear()
        memprof.stop()
        fired = nth  # no more
        recorded()
assert not failed, f"{failed} of {len(places[first::every])} errors did harm"
print(len(places), "places,", len(places[first::every]), "errors")
"""
"""Arguments: a run file, ``call`` or ``c_call``, and which of its places: the first, and every so
many; with ``signal`` the error is what the program's handler of a signal raises, which is to reach
it, once. Left out are clocks, locks, and the functions that a program calls itself."""
