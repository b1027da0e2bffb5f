"""Handlers that store an exception, and with it the frames of the failed call."""

from __future__ import annotations

import ast

import pytest

from memprof.source_code.exception_handlers import exception_store
from memprof.trace import Frame

PROGRAM = """\
def step(self, errors):
    try:
        work()
    except ValueError as error:
        {handler}
"""


def store_of(path, text, line):
    path.write_text(text)
    statement = exception_store(Frame("step", str(path), line))
    return ast.unparse(statement) if statement is not None else None


@pytest.mark.parametrize(
    "handler",
    [
        "self.last = error",
        "errors.append(error)",
        "errors['last'] = (1, error)",
        "self.where = error.__traceback__",
        "errors.append(error.__traceback__)",
    ],
)
def test_a_handler_that_stores_the_exception_or_its_traceback_is_found(handler, tmp_path):
    assert store_of(tmp_path / "job.py", PROGRAM.format(handler=handler), 3) == handler


@pytest.mark.parametrize(
    "handler",
    [
        "self.last = str(error)",
        "errors.append(repr(error))",
        "print(error)",
        "self.state = 'pruned' if isinstance(error, ValueError) else 'failed'",
        "self.known = error in errors",
        "self.last = None  # error",
        "raise RuntimeError('no') from error",
    ],
)
def test_the_text_of_an_exception_keeps_no_frame(handler, tmp_path):
    assert store_of(tmp_path / "job.py", PROGRAM.format(handler=handler), 3) is None


def test_a_handler_is_about_its_own_body_only(tmp_path):
    text = PROGRAM.format(handler="self.last = error") + "    other()\n"
    assert store_of(tmp_path / "job.py", text, 6) is None
    inner = "def step(self):\n    try:\n        def later():\n            work()\n        later()\n"
    inner += "    except ValueError as error:\n        self.last = error\n"
    assert store_of(tmp_path / "job.py", inner, 4) is None
    assert store_of(tmp_path / "job.py", inner, 5) == "self.last = error"
