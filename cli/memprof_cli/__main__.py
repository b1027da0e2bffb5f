"""``python -m memprof_cli``: the same as ``memprof``."""

from __future__ import annotations

from memprof_cli import main

main()
