"""The version, where everything that writes it can import it; pyproject.toml has the same."""

from __future__ import annotations

__all__ = ["__version__"]

__version__ = "0.1.0"
