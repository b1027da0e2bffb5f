"""idle-holder: a waiting thread, a stored exception, a log record or a notebook keeps tensors."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from memprof.loading import load
from memprof.records import Finding, Holder
from memprof.reference_chain import Link, LinkKind
from memprof.rules.ranked_findings import findings
from memprof.testing import TraceBuilder, step_columns
from memprof.trace import Frame, Phase
from tests import forks
from tests.rules.recorded import Recording, findings_of

NBYTES = 1 << 20
STEPS = 16
WIDTH = 256


def compute():
    weights = torch.zeros(WIDTH, WIDTH)
    (weights @ weights).sum().item()


def report(loss):
    logging.getLogger("train").info("loss %s", loss)


LOGGED = 'logging.getLogger("train").info("loss %s", loss)'


def attempt():
    batch = torch.zeros(WIDTH, WIDTH)
    raise ValueError(len(batch))


def fires():
    """One step fails, and its exception is stored."""
    failures = []

    def step(number):
        if number == 0:
            try:
                attempt()
            except ValueError as error:
                failures.append(error)
        compute()

    return step


def looks_alike():
    """The exception is stored without the frames that it went through."""
    failures = []

    def step(number):
        if number == 0:
            try:
                attempt()
            except ValueError as error:
                failures.append(error.with_traceback(None))
        compute()

    return step


def held_by(*links, nbytes=NBYTES) -> Recording:
    """A tensor that has stayed since the first step, and who held it when recording ended."""
    stack = (Frame("load", "/home/user/serve.py", 7),)
    trace = TraceBuilder(device="cuda:0").label(step=0, phase=Phase.OTHER)
    trace.alloc(nbytes, "held", stack=stack)
    for step in range(STEPS):
        trace.label(step=step, phase=Phase.OTHER).alloc(NBYTES, "x").free("x")
    at = links[-1]
    code = LOGGED if at.filename == __file__ else "job = jobs.get()"
    held = Holder(links[0].kind, at.filename, at.line, code, list(links))
    found = Finding(
        "holders",
        device="cuda:0",
        step=STEPS - 1,
        stack=1,
        bytes=nbytes,
        count=1,
        holders=[held],
        details={"reason": "resident"},
    )
    return Recording((trace,), step_columns(allocated=[nbytes] * STEPS), (found,))


def idle(recording, tmp_path):
    found = findings_of(lambda: recording, tmp_path / "run.json")
    return [one for one in found if one.rule == "idle-holder"]


def local(name):
    return Link(LinkKind.LOCAL, name, "worker", "/home/user/serve.py", 31)


def test_a_stored_exception_is_what_is_to_go(tmp_path):
    found = findings_of(fires, tmp_path / "run.json")
    (one,) = [one for one in found if one.rule == "idle-holder"]
    assert one.bytes == WIDTH * WIDTH * 4
    assert [remedy.fix for remedy in one.remedies] == ["clear_traceback"]


def test_a_waiting_thread_is_told_to_drop_its_name(tmp_path):
    thread = Link(LinkKind.THREAD, "Thread-1 (worker)", "thread")
    (one,) = idle(held_by(thread, local("job")), tmp_path)
    assert (one.bytes, one.match.peak) == (NBYTES, 2 * NBYTES)
    assert one.title == (
        "1 MiB (50 % of the peak) are allocated but unused: local `job` of worker() "
        "(serve.py:31), kept by thread `Thread-1 (worker)`"
    )
    assert [remedy.fix for remedy in one.remedies] == ["del_ref"]
    assert "`del job` at the end of the loop's body" in one.remedies[0].why


def test_what_a_thread_keeps_among_others_is_no_job_that_it_forgot(tmp_path):
    """The main thread waits for an answer; the service that it asks stores all of them."""
    thread = Link(LinkKind.THREAD, "MainThread", "thread")
    answers = Link(LinkKind.ATTRIBUTE, "answers", "Service")
    item = Link(LinkKind.ITEM, "7", "dict", "/home/user/serve.py", 31, length=9)
    assert idle(held_by(thread, local("service"), answers, item), tmp_path) == []


@pytest.mark.parametrize(
    ("link", "fix"),
    [
        (Link(LinkKind.NOTEBOOK, "Out", "__main__"), "clear_container"),
        (Link(LinkKind.LOG_RECORD, "args", "train"), "item"),
        (Link(LinkKind.LOG_RECORD, "exc_info", "train"), "clear_traceback"),
    ],
    ids=["notebook", "logged tensor", "logged exception"],
)
def test_what_it_is_that_holds_decides_what_to_do(link, fix, tmp_path):
    lines = Path(__file__).read_text().splitlines()
    line = lines.index(f"    {LOGGED}") + 1
    link = Link(link.kind, link.name, link.type_name, __file__, line)
    (one,) = idle(held_by(link), tmp_path)
    assert (one.remedies[0].fix, one.remedies[0].line) == (fix, line)


def test_what_is_small_beside_the_peak_is_left_out(tmp_path):
    thread = Link(LinkKind.THREAD, "Thread-1 (worker)", "thread")
    assert idle(held_by(thread, local("job"), nbytes=NBYTES // 32), tmp_path) == []


ENDS = """
import torch

def train(batch):
    kept = torch.zeros(1 << 18)
    raise {error}("stopped")

for _ in range(4):
    torch.zeros(1 << 10).sum()
{call}
"""
UNCAUGHT = "train(torch.zeros(1 << 18))"
STORED = "try:\n    train(torch.zeros(1 << 18))\nexcept ValueError as error:\n    failure = error\n"


@pytest.mark.parametrize(
    ("error", "call", "is_kept"),
    [
        ("KeyboardInterrupt", UNCAUGHT, False),
        ("ValueError", UNCAUGHT, False),
        ("ValueError", STORED, True),
    ],
)
def test_the_exception_that_ends_the_program_is_kept_by_nobody(tmp_path, error, call, is_kept):
    program, file = tmp_path / "train.py", tmp_path / "run.json"
    program.write_text(ENDS.format(error=error, call=call))
    options = json.dumps({"path": str(file), "quiet": True})
    # No fork: what it begins in would hold the program's names as well.
    words = [sys.executable, "-m", "memprof.record.launch", options, program]
    paths = {"PYTHONPATH": forks.PYTHONPATH, "MEMPROF_NATIVE": "0"}
    subprocess.run(words, env={**os.environ, **paths}, capture_output=True, check=False)
    run = load(file)
    found = [one for one in findings(run) if one.rule == "idle-holder"]
    assert bool(found) is is_kept
    held = {one.holders[0].description.partition(" (")[0] for one in run.findings if one.holders}
    assert ("local `kept` of train()" in held) is not is_kept
