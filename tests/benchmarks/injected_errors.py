"""Trains under an error in each call of memprof's own, in Python and into C: some minutes.

The test suite tries an eighth of the calls in Python.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.injected_errors import INJECT, TRAIN


def main() -> None:
    """Try all, or every n-th."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--every", type=int, default=1, help="only every n-th call")
    words.add_argument("--first", type=int, default=0)
    words.add_argument("--native", choices="01", default="0", help="MEMPROF_NATIVE")
    words.add_argument("events", nargs="*", default=["call", "c_call"])
    asked = words.parse_args()
    environment = os.environ | {"MEMPROF_NATIVE": asked.native, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        for event in asked.events:
            path = str(Path(folder) / "run.json")
            arguments = [path, event, str(asked.first), str(asked.every)]
            subprocess.run(
                [sys.executable, "-c", TRAIN + INJECT, *arguments], env=environment, check=True
            )


if __name__ == "__main__":
    main()
