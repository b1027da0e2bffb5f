"""What an import costs: people import memprof in jobs, and type its command in shells."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from memprof.loading import load

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


TORCH_FIRST = """
import dataclasses, sys, torch
before = set(sys.modules)
import memprof
from memprof.record.session import Session

def at_first_record(self):
    told = open(self.output.path).read()
    assert '"kind":"header"' in told and '"device":"cpu"' in told
    assert self.recording.window == 0  # it is open
    loaded = set(sys.modules) - before
    everything = [one for name in loaded for one in vars(sys.modules[name]).values()]
    made = {one for one in everything if isinstance(one, type) and dataclasses.is_dataclass(one)}
    made = {f"{one.__module__}:{one.__qualname__}" for one in made}
    sys.stderr.write("\\n".join(loaded | made))

Session.open_samplers = at_first_record
memprof.track(sys.argv[1], sources=("cpu", "host", "nvml")).start()
"""
LATER = {
    "memprof.rules",
    "memprof.views.trend",
    "memprof.loading",
    "memprof.runfile.reader",
    "memprof.snapshot.reader",
    "memprof.sources.cuda.source_with_owners",
    "memprof.sources.host",
    "memprof.sources.nvml",
    "memprof.sources.cuda.oom_messages",
    "memprof.sources.cuda.oom_observer",
    "memprof.sources.cuda.intern_tables",
    "memprof.referrers.survivors",
    "psutil",
    "pynvml",
    "statistics",
    "sysconfig",
    "numpy.typing",
    "memprof.record.device_figures",
    "memprof.record.oom_records",
    "memprof.record.sampler",
    "memprof.record.summaries",
    "memprof.referrers.survivor_watch",
    "memprof.runfile.remote_file",
    "memprof.source_code.frame_kind",
    "memprof.sources.owners.block_lifetimes",
    "memprof.units",
}
"""What only the end, a failed allocation, a driver or a reader of files needs, or the first step."""


MADE_OF_TEXT = {
    *(f"memprof.trace:{name}" for name in ("Blocks", "Events", "Segments")),
    *(f"memprof.trace:{name}" for name in ("State", "Tables", "Trace")),
    "memprof.sources.cpu.live_storages:LivingStorages",
}
"""Dataclasses that are made before the first record. Python writes and compiles their methods, some
0.5 ms for each; a Struct of msgspec takes 0.02."""


def test_the_first_record_waits_for_nothing_that_it_does_not_need(tmp_path: Path):
    pytest.importorskip("torch", reason="there is nothing to record without torch")
    written = set(python("-c", TORCH_FIRST, str(tmp_path / "run.json")).splitlines())
    made = {name for name in written if ":" in name}
    modules = written - made
    assert made <= MADE_OF_TEXT, made - MADE_OF_TEXT
    assert {"memprof.record.session", "memprof.sources.cpu.dispatch_source"} <= modules
    assert modules.isdisjoint(LATER), modules & LATER


MEMPROF_FIRST = """
import gc, sys
import memprof
memprof.track(sys.argv[1], sources=("cpu",)).start()
looked, get_objects = [], gc.get_objects
gc.get_objects = lambda *given, **named: looked.append(1) or get_objects(*given, **named)
import torch
assert torch._C._len_torch_dispatch_stack() == 1  # the window has begun
sys.stderr.write(f"{len(looked)} looks at the heap")
kept = torch.ones(1000)
memprof.stop()
assert looked
"""


def test_right_after_torch_was_imported_no_tensor_is_looked_for(tmp_path: Path):
    pytest.importorskip("torch", reason="there is nothing to record without torch")
    path = tmp_path / "run.json"
    assert python("-c", MEMPROF_FIRST, str(path)) == "0 looks at the heap"
    (cpu,) = load(path).devices
    assert 4000 in cpu.windows[0].events.size.tolist()
