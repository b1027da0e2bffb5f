"""Tests of whether what a loop collects is joined or returned after it."""

from __future__ import annotations

from textwrap import dedent

import pytest

from memprof.source_code.joined_parts import (
    is_joined_afterwards,
    is_read_afterwards,
    is_returned_afterwards,
)
from memprof.source_code.program import program_of
from memprof.trace import Frame


def filling(tmp_path, text):
    """The statement of a program that appends."""
    file = tmp_path / "program.py"
    file.write_text(dedent(text))
    program = program_of(str(file))
    line = next(i for i, code in enumerate(file.read_text().splitlines(), 1) if ".append(" in code)
    return program.at(line)


def is_joined(tmp_path, text):
    return is_joined_afterwards(filling(tmp_path, text))


@pytest.mark.parametrize(
    "text",
    [
        """
        def collect(model, data):
            parts, labels = [], []
            for x, y in data:
                parts.append(model(x))
            return torch.cat(parts), labels
        """,
        """
        def each_epoch(model, data):
            for epoch in range(9):
                parts: list = []
                for x in data:
                    if x.ok:
                        parts.append(model(x))
                score(torch.stack(parts))
        """,
        # outside of all functions
        """
        def train(parts):
            torch.cat(parts)
        parts = []
        for x in data:
            parts.append(model(x))
        table = torch.nn.utils.rnn.pad_sequence(parts)
        """,
        """
        def collect(model, data):
            parts = []
            for x in data:
                parts.append(model(x))
            return np.concatenate([one.cpu().numpy() for one in parts])
        """,
        # lists of a dict
        """
        def collect(model, data):
            parts = {"x": [], "y": []}
            for x in data:
                parts["x"].append(model(x))
            return torch.cat(parts["x"])
        """,
        """
        def collect(model, data):
            parts = defaultdict(list)
            for x in data:
                for name, out in model(x):
                    parts[name].append(out)
            return {name: torch.cat(rows) for name, rows in parts.items()}
        """,
    ],
)
def test_parts_are_joined_after_the_loop_that_collects_them(tmp_path, text):
    assert is_joined(tmp_path, text)


@pytest.mark.parametrize(
    "text",
    [
        # never emptied: every epoch joins all that came before as well
        """
        def each_epoch(model, data):
            parts = []
            for epoch in range(9):
                for x in data:
                    parts.append(model(x))
                score(torch.cat(parts))
        """,
        # the list outlives the function
        """
        def collect(self, model, data):
            for x in data:
                self.parts.append(model(x))
            return torch.cat(self.parts)
        """,
        # joined in the loop, or never
        """
        def windows(model, data):
            parts = []
            for x in data:
                parts.append(model(x))
                show(torch.cat(parts))
        """,
        """
        def collect(model, data):
            parts = []
            for x in data:
                parts.append(model(x))
            return parts
        """,
        # some of it alone
        """
        def collect(model, data):
            parts = []
            for x in data:
                parts.append(model(x))
            return torch.cat([one.mean(1) for one in parts])
        """,
        """
        def collect(model, data):
            parts = {"x": [], "y": []}
            for x in data:
                parts["x"].append(model(x))
            return torch.cat(parts["y"])
        """,
        # a function's own
        """
        parts = []
        for x in data:
            parts.append(model(x))
        def joined(parts):
            return torch.cat(parts)
        """,
        """
        class Bank:
            parts = []
        for x in data:
            parts.append(model(x))
        torch.cat(parts)
        """,
    ],
)
def test_other_lists_are_not(tmp_path, text):
    assert not is_joined(tmp_path, text)


SAMPLER = """
def sample(model, x, every_frame={default}):
    frames = [x]
    for t in range(9):
        x = model(x, t)
        frames.append(x)
    {end}
def main(model, x):
    show({call})
"""
CONDITIONAL = "return torch.stack(frames) if every_frame else x"


@pytest.mark.parametrize(
    ("default", "end", "call", "joined"),
    [
        ("False", CONDITIONAL, "sample(model, x)", False),
        ("None", "return x if not every_frame else torch.stack(frames)", "sample(model, x)", False),
        ("False", CONDITIONAL, "sample(model, x, every_frame=True)", True),
        ("False", CONDITIONAL, "sample(model, x, True)", True),
        ("False", CONDITIONAL, "sample(*everything)", True),
        ("False", CONDITIONAL, "sample(model, x, **options)", True),
        ("True", CONDITIONAL, "sample(model, x)", True),
        ("False", "return x if every_frame else torch.stack(frames)", "sample(model, x)", True),
    ],
)
def test_what_is_joined_only_if_asked_for_must_be_asked_for(tmp_path, default, end, call, joined):
    text = SAMPLER.format(default=default, end=end, call=call)
    assert is_joined(tmp_path, text) is joined


@pytest.mark.parametrize(
    "text",
    [
        """
        def collect(model, data):
            collected = []
            for x, y in data:
                collected.append((model(x), y))
            return collected
        """,
        """
        def collect(model, data):
            parts, labels = [], []
            for x, y in data:
                if y is not None:
                    parts.append(model(x))
                    labels.append(y)
            return parts, labels
        """,
    ],
)
def test_a_list_is_returned_after_the_loop_that_fills_it(tmp_path, text):
    assert is_returned_afterwards(filling(tmp_path, text))


@pytest.mark.parametrize(
    "text",
    [
        # training keeps what it made in each step
        """
        def train(model, data):
            outputs = []
            for x in data:
                loss = model(x)
                loss.backward()
                outputs.append(loss)
            return outputs
        """,
        # nobody knows how long this goes on
        """
        def serve(model, queue):
            answers = []
            while queue.is_open():
                answers.append(model(queue.get()))
            return answers
        """,
        # it is the caller's, and may be filled again
        """
        def extend(model, data, answers):
            for x in data:
                answers.append(model(x))
            return answers
        """,
        """
        def longest(model, data):
            answers = []
            for x in data:
                answers.append(model(x))
            return len(answers)
        """,
        # made anew in each epoch, and only the last is returned
        """
        def each_epoch(model, data):
            for epoch in range(9):
                answers = []
                for x in data:
                    answers.append(model(x))
            return answers
        """,
    ],
)
def test_other_lists_are_not_returned(tmp_path, text):
    assert not is_returned_afterwards(filling(tmp_path, text))


POOL = """
class Pool:
    def __init__(self):
        self.clips = []
    def add(self, x):
        self.clips.append(x)
        {inside}
    def best(self, n):
        return [self.clips[i] for i in self.order[:n]]
def report(pool):
    return {report}
def main(data):
    pool = Pool()
    for x in data:
        pool.add(x)
        {in_loop}
    {after}
"""


@pytest.mark.parametrize(
    ("inside", "in_loop", "after", "expected"),
    [
        ("pass", "pass", "show(pool.best(4))", True),
        ("pass", "print(len(pool.clips))", "show(report(pool), len(pool.clips))", True),
        ("pass", "pass", "show(pool.best(2), pool.clips)", True),
        ("pass", "pass", "pass", False),  # nobody calls what reads it
        ("pass", "show(pool.best(4))", "show(pool.best(4))", False),
        ("pass", "show(report(pool))", "pass", False),
        ("self.last = self.clips[-1]", "pass", "show(pool.best(4))", False),
    ],
)
def test_the_list_of_an_object_is_read_after_the_loop(inside, in_loop, after, expected, tmp_path):
    path = tmp_path / "program.py"
    report = "pool.best(4)" if "report" in in_loop + after else "None"
    path.write_text(POOL.format(inside=inside, in_loop=in_loop, after=after, report=report))
    program = program_of(str(path))
    frames = [Frame("Pool.add", str(path), 6), Frame("main", str(path), 15)]
    assert is_read_afterwards(program.at(6), frames, [program]) is expected
