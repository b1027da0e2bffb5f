"""Limits that no machine reaches, however busy it is with other things."""

from __future__ import annotations

__all__ = ["LONG_S"]

LONG_S = 600.0
"""An allowance that keeps a window open, or a budget that lets a search come to its end."""
