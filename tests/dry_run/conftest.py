"""Programs run on simulated cards by the Python of the tests, where its torch has CUDA."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from memprof.dry_run.build import compiler, find_torch
from memprof.errors import MissingError

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = [str(ROOT / folder) for folder in (".", "cli", "dashboards")]
HOOK = ROOT / "memprof" / "record" / "startup.pth"
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """The variables of a user's shell; skips where there is no torch with CUDA."""
    try:
        find_torch()
        compiler()
    except MissingError as missing:
        pytest.skip(f"needs a torch with CUDA and a C compiler: {missing.message}")
    # Tests that run below a card of their own start from none, as a user's shell does.
    kept = ("LD_PRELOAD", "LD_LIBRARY_PATH")
    found = {
        name: value
        for name, value in os.environ.items()
        if name not in kept and (not name.startswith("MEMPROF") or name == "MEMPROF_CACHE")
    }
    # Packages that some programs need may lie where the shell says.
    others = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    return {**found, "PYTHONPATH": os.pathsep.join(dict.fromkeys([*FOLDERS, *others]))}


@pytest.fixture(scope="session")
def dry_run(environment: dict[str, str]) -> Run:
    """Runs ``memprof dry-run`` with these words."""

    def run(
        *words: object, cwd: Path, site: Path | None = None, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        paths = (
            {} if site is None else {"PYTHONPATH": f"{site}{os.pathsep}{environment['PYTHONPATH']}"}
        )
        return subprocess.run(
            [sys.executable, "-m", "memprof_cli", "dry-run", *map(str, words)],
            env={**environment, **paths, **variables},
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )

    return run


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder whose sitecustomize does what the start hook in site-packages does."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(HOOK.read_text())
    return folder
