"""What an import costs: people import memprof in jobs, and type its command in shells."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if name != "MEMPROF"},
    "PYTHONPATH": os.pathsep.join(str(ROOT / folder) for folder in (".", "cli", "dashboards")),
}
# What `import memprof` may load beside the standard library.
ALLOWED = {"memprof", "msgspec", "numpy", "psutil"}


def python(*arguments: str) -> str:
    """What a fresh interpreter writes to its standard error."""
    done = subprocess.run(
        [sys.executable, *arguments],
        check=False,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def loaded(*arguments: str) -> set[str]:
    """The packages that a fresh interpreter loads, by their top-level names."""
    lines = python("-X", "importtime", *arguments).splitlines()
    modules = [line.rpartition("|")[2].strip() for line in lines if "import time:" in line]
    return {module.partition(".")[0] for module in modules}


def loaded_by(statement: str) -> set[str]:
    """The packages outside the standard library that a statement adds to those of a bare start."""
    return loaded("-c", statement) - loaded("-c", "pass") - set(sys.stdlib_module_names)


def test_importing_memprof_loads_neither_torch_nor_plotly_nor_click():
    packages = loaded_by("import memprof")
    assert "memprof" in packages
    assert {name for name in packages if not name.startswith("_")} <= ALLOWED


def test_the_whole_public_api_resolves_without_plotly_or_click():
    packages = loaded_by("import memprof; [getattr(memprof, name) for name in memprof.__all__]")
    assert packages.isdisjoint({"plotly", "click", "rich", "memprof_cli", "memprof_dashboards"})


def test_the_help_loads_neither_torch_nor_plotly_nor_click():
    packages = loaded("-m", "memprof_cli", "--help")
    assert "memprof_cli" in packages
    assert packages.isdisjoint({"torch", "plotly", "pynvml", "click", "rich", "numpy"})


def test_a_command_loads_neither_torch_nor_plotly():
    packages = loaded("-m", "memprof_cli", "report", "--help")
    assert "click" in packages
    assert packages.isdisjoint({"torch", "plotly", "pynvml"})
