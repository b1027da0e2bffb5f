"""The public API of memprof: what is not named here is not promised."""

from __future__ import annotations

__version__ = "0.1.0"
__all__: list[str] = ["__version__"]
