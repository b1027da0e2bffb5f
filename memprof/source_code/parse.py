"""The syntax tree of a text, for whoever reads source: in the job and after it."""

from __future__ import annotations

import ast

__all__ = ["syntax_tree"]


def syntax_tree(text: str) -> ast.Module | None:
    """The tree of a text; None where it is no Python that this interpreter can parse."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
