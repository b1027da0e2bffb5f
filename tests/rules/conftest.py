"""What the programs of the rules use, and what they leave behind is taken away."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

from tests.programs.shell import MODULE


@pytest.fixture(autouse=True)
def no_shell_afterwards():
    """A program may have started a stand-in for a notebook's shell."""
    yield
    sys.modules.pop(MODULE, None)


@pytest.fixture
def library(tmp_path, monkeypatch):
    """Imports a library of ``site-packages`` here from where libraries lie: not below the tests."""

    def imported(name):
        source = Path(__file__).with_name("site-packages") / name / "__init__.py"
        path = tmp_path / "site-packages" / name / "__init__.py"
        path.parent.mkdir(parents=True)
        path.write_text(source.read_text())
        os.utime(path, (0, 0))  # older than the recording
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return imported
