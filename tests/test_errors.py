"""Errors say what is wrong and what to do, and their tree is the one in the docstring."""

from __future__ import annotations

import pytest

from memprof import errors
from memprof.errors import (
    FileFormatError,
    MemprofError,
    MissingError,
    SettingsError,
    UnsafeFileError,
)


def test_the_text_of_an_error_is_its_message_and_its_hint() -> None:
    error = MemprofError("no such file", "name another")

    assert str(error) == "no such file\n  hint: name another"
    assert (error.message, error.hint, error.exit_code) == ("no such file", "name another", 1)
    assert str(MemprofError("alone")) == "alone"


@pytest.mark.parametrize(
    ("leaf", "parent"),
    [
        (FileFormatError, MemprofError),
        (UnsafeFileError, FileFormatError),
        (SettingsError, MemprofError),
        (MissingError, MemprofError),
    ],
)
def test_the_tree_of_errors_is_that_of_the_module_docstring(leaf: type, parent: type) -> None:
    assert leaf.__bases__ == (parent,)
    assert leaf.__name__ in str(errors.__doc__)


def test_a_wrong_option_exits_with_two_as_command_lines_do() -> None:
    assert SettingsError("x").exit_code == 2
