"""The log of a job, in which whatever memprof says begins with its name."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

__all__ = ["LOG"]

if TYPE_CHECKING:
    _Adapter = logging.LoggerAdapter[logging.Logger]
else:
    _Adapter = logging.LoggerAdapter


class _Named(_Adapter):
    """Python's own handler, which most jobs have, prints a message without its logger's name."""

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[str, MutableMapping[str, Any]]:
        return f"memprof: {msg}", kwargs


LOG = _Named(logging.getLogger("memprof"), {})
