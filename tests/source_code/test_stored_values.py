"""Attributes and entries in which a program stores what a statement makes."""

from __future__ import annotations

from textwrap import dedent

import pytest

from memprof.source_code.program import program_of
from memprof.source_code.stored_values import stored_name, stores

JOB = """
class Job:
    def finish(self, output, *, score=0):
        self.output = output
        self.fields.update(score=score)
def store(job, value):
    setattr(job, "value", value)
def passed(job, value):
    value = len(value)
    return value
def work(job, net, x, name):
    {statement}
    {later}
"""


@pytest.mark.parametrize(
    ("statement", "later", "stored"),
    [
        ("job.out = net(x)", "pass", [("out", 12)]),
        ("job.update(out=net(x))", "pass", [("out", 12)]),
        ("job.update({'out': net(x)})", "pass", [("out", 12)]),
        ("setattr(job, 'out', net(x))", "pass", [("out", 12)]),
        ("object.__setattr__(job, 'out', net(x))", "pass", [("out", 12)]),
        ("setattr(job, name, net(x))", "pass", [("", 12)]),
        ("job.finish(net(x))", "pass", [("output", 4)]),
        ("job.finish(1, score=net(x))", "pass", [("output", 4), ("score", 5)]),
        ("out = net(x)", "job.out = out", [("", 12), ("out", 13)]),
        ("out = net(x)", "job.update(out=out, y=1)", [("", 12), ("out", 13)]),
        ("out = net(x)", "job.finish(1, score=out)", [("", 12), ("score", 5)]),
        ("out = net(x)", "store(job, out)", [("", 12), ("value", 7)]),
        ("out = net(x)", "passed(job, out)", [("", 12)]),
        ("out = net(x)", "job.finish(*out)", [("", 12)]),
        ("out = net(x)", "job.out = out.sum()", [("", 12)]),
    ],
)
def test_what_is_stored_is_told_by_its_name_and_line(statement, later, stored, tmp_path):
    file = tmp_path / "job.py"
    file.write_text(dedent(JOB).format(statement=statement, later=later))
    program = program_of(str(file))
    places = stores(program.at(12), [program])
    assert [(stored_name(target), at.line) for at, target in places] == stored
