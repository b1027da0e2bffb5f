"""A stand-in for the IPython shell that runs a notebook, with the parts that keep results."""

from __future__ import annotations

import sys
import types
from typing import Any

__all__ = ["MODULE", "start_shell"]

MODULE = "IPython.core.interactiveshell"


def start_shell() -> dict[str, Any]:
    """The namespace of a shell that runs from now on; ``Out`` and ``_oh`` are one dict in it.

    Whoever starts one takes `MODULE` out of ``sys.modules`` in the end.
    """
    results: dict[int, object] = {}
    namespace: dict[str, Any] = {"In": [""], "Out": results, "_oh": results}
    running = types.SimpleNamespace(user_ns=namespace)
    module = types.ModuleType(MODULE)
    module.InteractiveShell = type("InteractiveShell", (), {"_instance": running})  # type: ignore[attr-defined]
    sys.modules[MODULE] = module
    return namespace
