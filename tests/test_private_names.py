"""No test reads a private name of memprof's: what a test needs has a public one, with its reason."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("memprof", "cli", "dashboards")
PRIVATE = re.compile(r"_[A-Za-z]\w*")
WORD = re.compile(r"\b_[A-Za-z]\w*")
IN_TEXT = re.compile(r"[\w)\]]\.(_[A-Za-z]\w*)")
"""In a string: a name to be patched, or a line of a program that runs in another process."""
OF_OTHERS = {
    "_C", "_base", "_buffers", "_count", "_indices", "_inductor", "_lazy_call", "_modules", "_queue", "_registry",
    "_repr_html_", "_set_memory_metadata", "_snapshot", "_values",
}  # fmt: skip
"""Names of torch's, Python's and notebooks' that memprof or its stand-in have as well."""


def definitions(tree: ast.AST) -> Iterator[str]:
    """The private names that a file gives to modules, classes and objects."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def uses(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The lines on which names are looked up in something, imported or named in a string."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            if not (isinstance(node.value, ast.Name) and node.value.id == "self"):
                yield node.lineno, node.attr
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if PRIVATE.fullmatch(node.value):
                yield node.lineno, node.value
            for found in IN_TEXT.finditer(node.value):
                yield node.lineno + node.value[: found.start()].count("\n"), found[1]


def parsed(folder: Path, names: set[str]) -> Iterator[tuple[Path, ast.Module]]:
    """The files that have one of ``names`` in their text: to parse all would take seconds."""
    for path in sorted(folder.rglob("*.py")):
        text = path.read_text()
        if not names.isdisjoint(WORD.findall(text)):
            yield path, ast.parse(text)


@pytest.fixture(scope="module")
def private() -> set[str]:
    """Names that memprof's own files, and nobody else's, are to read; of those in our texts."""
    texts = (path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    words = {word for text in texts for word in WORD.findall(text)} - OF_OTHERS
    return {
        name
        for package in PACKAGES
        for _, tree in parsed(ROOT / package, words)
        for name in definitions(tree)
        if name in words
    }


def test_what_a_test_reads_is_seen(private: set[str]) -> None:
    """A private name of memprof's that this file has in its text, read in the three ways."""
    (name,) = private & {"_module_root"}
    program = f"roots.{name}\nfrom memprof import {name}\npatch('roots.{name}')\n{name} = 1"
    assert sorted(at for at, one in uses(ast.parse(program)) if one == name) == [1, 2, 3]


def test_no_test_reads_a_private_name_of_memprofs(private: set[str]) -> None:
    read = []
    for path, tree in parsed(ROOT / "tests", private):
        if path == Path(__file__) or "golden" in path.parts:
            continue
        own = set(definitions(tree))
        read += [
            f"{path.relative_to(ROOT)}:{line}: {name}"
            for line, name in uses(tree)
            if name in private - own
        ]
    assert read == []
