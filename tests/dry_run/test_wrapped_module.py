"""Functions of a module are wrapped from the opening to the closing, whenever it is imported."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType

import pytest

from memprof.dry_run.wrapped_module import WrappedModule

NAME = "memprof_test_of_wrapping"


class Doubled(WrappedModule):
    """Doubles what the module's function gives."""

    name = NAME

    def wrap(self, module: ModuleType) -> None:
        self.wrap_function(module, "number", self._twice)

    def _twice(self, original: Callable[[], int]) -> Callable[[], int]:
        return lambda: 2 * original()


@pytest.fixture
def doubled(tmp_path, monkeypatch):
    """Something to open beside a module that can be imported."""
    (tmp_path / f"{NAME}.py").write_text("def number():\n    return 21\n")
    monkeypatch.syspath_prepend(tmp_path)
    doubled = Doubled()
    yield doubled
    doubled.close()
    sys.modules.pop(NAME, None)


def test_a_module_that_is_there_is_wrapped_at_once_and_taken_back(doubled):
    module = importlib.import_module(NAME)
    own = module.number
    doubled.open()
    assert module.number() == 42
    doubled.close()
    assert module.number is own


def test_a_module_is_wrapped_when_it_is_imported_later(doubled):
    doubled.open()
    assert NAME not in sys.modules
    module = importlib.import_module(NAME)
    assert module.number() == 42
    doubled.close()
    assert module.number() == 21


def test_after_the_end_an_import_is_left_alone(doubled):
    finders = list(sys.meta_path)
    doubled.open()
    doubled.close()
    assert importlib.import_module(NAME).number() == 21
    assert sys.meta_path == finders
