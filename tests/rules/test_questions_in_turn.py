"""uncalled-release: a function answers many questions with one cache, a variable of its own."""

from __future__ import annotations

import os
import shutil
import sys

import torch

from memprof.loading import load
from memprof.rules.finding import Kind
from memprof.rules.ranked_findings import findings
from tests import forks
from tests.rules.layered_models import LIBRARIES

RECORD = """
import sys
sys.path.insert(0, sys.argv[2])
import chat
import memprof
from tests.rules.test_questions_in_turn import {name} as program
from tests.unhurried import lift_limits
lift_limits()
with memprof.track(sys.argv[1], sources=["cpu"], allowance_s=600) as tracker:
    program(tracker)
"""


def answers(tracker):
    chat = sys.modules["chat"]
    model, cache = chat.Model(), chat.GrowingCache()
    for _ in range(60):
        question = torch.ones(16, 64)
        score = model(question, past=cache)
        tracker.step()
    return score.item()


def goes_on(tracker):
    """What is given next is made of what was returned: one long answer."""
    chat = sys.modules["chat"]
    model, cache = chat.Model(), chat.GrowingCache()
    words = torch.ones(16, 64)
    for _ in range(60):
        score = model(words, past=cache)
        words = words + score.sign()
        tracker.step()
    return words.sum().item()


def leaks_of(name, path):
    """In a process of its own: classes of other tests have the same names."""
    folder = path.parent / "site-packages"  # as libraries lie, not below the tests
    (folder / "chat").mkdir(parents=True)
    file = shutil.copy(LIBRARIES / "chat" / "__init__.py", folder / "chat")
    os.utime(file, (0, 0))  # older than the recording
    done = forks.run(RECORD.format(name=name), path, folder)
    assert done.returncode == 0, done.stderr
    return [one for one in findings(load(path)) if one.kind is Kind.LEAK]


def test_each_question_adds_to_the_cache_of_all(tmp_path):
    (found,) = leaks_of("answers", tmp_path / "run.json")
    first = found.remedies[0]
    assert (first.rule, first.fix) == ("uncalled-release", "release")
    assert first.code == "score = model(question, past=cache)"


def test_a_long_answer_needs_all_that_it_has_read(tmp_path):
    assert leaks_of("goes_on", tmp_path / "run.json") == []
