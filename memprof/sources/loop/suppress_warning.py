"""One warning that our own hooks would cause, kept from the program."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable

__all__ = ["silence"]


def silence(message: str) -> Callable[[], None]:
    """Ignore a ``UserWarning`` that begins with this pattern; returns what undoes it.

    The list of filters is changed and nobody is told: `warnings.filterwarnings` has Python forget
    what it has warned of, and what the program was told once would be told again. What is ignored
    is not remembered, so there is nothing to forget.
    """
    entry = ("ignore", re.compile(message, re.IGNORECASE), UserWarning, None, 0)
    warnings.filters.insert(0, entry)  # type: ignore[attr-defined]

    def undo() -> None:
        # A `catch_warnings` that has ended since has put a list back that is without it.
        remaining = [one for one in warnings.filters if one is not entry]
        if len(remaining) < len(warnings.filters):
            warnings.filters[:] = remaining  # type: ignore[index]

    return undo
