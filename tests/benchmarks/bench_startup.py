"""How long the command takes to answer, beside what importing plotly takes.

Wanted: ``memprof --help`` in under half of ``import plotly.graph_objects``.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

ROUNDS = 15


def seconds(*arguments: str) -> float:
    """Wall time of one fresh interpreter."""
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
    return time.perf_counter() - start


def main() -> None:
    """Measure in turns, so that both meet the same machine, and print medians and their ratio."""
    programs = {
        "python -c pass": ("-c", "pass"),
        "memprof --help": ("-m", "memprof_cli", "--help"),
        "import memprof": ("-c", "import memprof"),
        "import plotly.graph_objects": ("-c", "import plotly.graph_objects"),
    }
    times: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(ROUNDS):
        for name, arguments in programs.items():
            times[name].append(seconds(*arguments))
    medians = {name: statistics.median(values) for name, values in times.items()}
    for name, value in medians.items():
        print(f"{name:30} {value * 1e3:6.0f} ms")
    ratio = medians["memprof --help"] / medians["import plotly.graph_objects"]
    print(f"help over plotly's import      {ratio:6.2f} (wanted: under 0.5)")


if __name__ == "__main__":
    main()
