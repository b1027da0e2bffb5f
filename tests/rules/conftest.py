"""What the programs of the rules leave behind is taken away."""

from __future__ import annotations

import sys

import pytest

from tests.programs.shell import MODULE


@pytest.fixture(autouse=True)
def no_shell_afterwards():
    """A program may have started a stand-in for a notebook's shell."""
    yield
    sys.modules.pop(MODULE, None)
