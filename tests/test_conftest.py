"""The guard that looks after every test is itself looked after: each kind of leftover is seen."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# One test a leftover, each told apart by its name; those named clean leave nothing.
PROGRAM = """
import gc, signal, sys, threading, time

def hook(*_, **__):
    return None

def test_thread():
    work = threading.Thread(target=time.sleep, args=(600,), name="memprof-sampler", daemon=True)
    work.start()

def test_collector(): gc.callbacks.append(hook)

def test_signal(): signal.signal(signal.SIGTERM, hook)

def test_patched_name(): sys.excepthook = hook

def test_clean_without_torch(): assert "torch" not in sys.modules
"""
WITH_TORCH = """
import torch
from torch.nn.modules import module
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

def hook(*_, **__):
    return None

def test_clean_training():
    model = torch.nn.Linear(3, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()

def test_clean_hook():
    handle = module.register_module_forward_hook(hook)
    handle.remove()

def test_module_hook(): module.register_module_forward_hook(hook)

def test_optimizer_hook(): register_optimizer_step_post_hook(hook)

def test_saved_tensor_hook(): torch.autograd.graph.saved_tensors_hooks(hook, hook).__enter__()

def test_patched_method(): torch.Tensor.backward = hook

def test_function_mode(): TorchFunctionMode().__enter__()

def test_dispatch_mode(): TorchDispatchMode().__enter__()
"""


def outcomes(folder: Path, program: str) -> str:
    """Pytest's closing line for a program that lies beside our own conftest."""
    (folder / "tests").mkdir()
    shutil.copy(ROOT / "pyproject.toml", folder)
    for name in ("conftest.py", "unhurried.py"):
        shutil.copy(ROOT / "tests" / name, folder / "tests")
    (folder / "tests" / "test_program.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q"],
        check=False,
        cwd=folder,
        env=os.environ | {"PYTEST_ADDOPTS": "", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
    )
    return done.stdout.splitlines()[-1]


def test_what_a_test_leaves_in_the_process_is_seen(tmp_path):
    assert outcomes(tmp_path, PROGRAM).startswith("5 passed, 4 errors")


@pytest.mark.slow
def test_what_a_test_leaves_in_torch_is_seen(tmp_path):
    pytest.importorskip("torch", reason="needs torch")
    assert outcomes(tmp_path, WITH_TORCH).startswith("8 passed, 6 errors")
