"""The results of cells that a notebook, or another interactive shell of IPython, keeps.

What counts is the shell that runs, not what something is called: a dict with a key ``Out``, or a
variable ``_``, is any program's to have.
"""

from __future__ import annotations

import sys

__all__ = ["cell_results", "keeps_results"]

_SHELL = "IPython.core.interactiveshell"
_HISTORY = "_oh"
"""The shell's own name for its dict of results; ``Out`` is another name of the same dict."""


def cell_results() -> dict[object, object] | None:
    """The dict that the running shell puts each cell's result into; None where there is no shell.

    A job that never imported IPython has none; nothing is imported to find out.
    """
    kind = getattr(sys.modules.get(_SHELL), "InteractiveShell", None)
    shell = vars(kind).get("_instance") if isinstance(kind, type) else None
    namespace = getattr(shell, "user_ns", None)
    results = namespace.get(_HISTORY) if type(namespace) is dict else None
    return results if isinstance(results, dict) else None


def keeps_results(name: str, value: object) -> bool:
    """Whether a variable is the shell's dict of results, or its ``_``, ``__``, ``_7`` for one."""
    results = cell_results()
    if results is None:
        return False
    own = name.strip("_") == "" or (name[:1] == "_" and name[1:].isdigit())
    return value is results or (own and any(one is value for one in list(results.values())))
