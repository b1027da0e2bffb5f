"""Names of memprof that tests for a GPU patch by their text: nobody else meets a name that is gone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "gpu"


def patched_names(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            parts = node.value.split(".")
            if parts[0] == "memprof" and len(parts) > 1 and all(map(str.isidentifier, parts)):
                yield node.value


NAMES = sorted({name for path in FOLDER.glob("*.py") for name in patched_names(path)})


def test_there_are_such_names():
    assert "memprof.sources.cuda.memory_history.ROW_US" in NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_is_patched_where_there_is_a_gpu_exists(name):
    pytest.importorskip("torch", reason="the recorder's modules name torch")
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found = import_module(".".join(parts[:count]))
        except ModuleNotFoundError as error:
            if not name.startswith(f"{error.name}"):
                raise
            continue
        for part in parts[count:]:
            assert hasattr(found, part), f"{name}: {part} is gone"
            found = getattr(found, part)
        return
    raise AssertionError(f"{name} begins with no module")
