"""One warning that our own hooks would cause, kept from the program."""

from __future__ import annotations

import warnings
from collections.abc import Callable

__all__ = ["silence"]


def silence(message: str) -> Callable[[], None]:
    """Ignore a ``UserWarning`` that begins with this pattern; returns what undoes it."""
    warnings.filterwarnings("ignore", message=message, category=UserWarning)
    entry = warnings.filters[0]

    def undo() -> None:
        remaining = [f for f in warnings.filters if f is not entry]
        if len(remaining) < len(
            warnings.filters
        ):  # else a `catch_warnings` has put the old list back
            warnings.filters[:] = remaining  # type: ignore[index]
            # Caches of what was warned of must be thrown away, which only this module can say.
            warnings.simplefilter("ignore", category=_Never, append=True)
            warnings.filters.pop()  # type: ignore[attr-defined]

    return undo


class _Never(UserWarning):
    """Raised by nobody."""
