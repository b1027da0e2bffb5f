"""What every test shares: nothing of memprof is left behind, and what a machine lacks is said."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.unhurried import lift_limits

ROOT = Path(__file__).resolve().parent.parent

# A shared machine is slow at times, which is no failure; CI repeats the same examples each time.
settings.register_profile("local", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("local"), derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")

# readline, which pytest imports, puts them into the environment that workers of xdist inherit: what
# is printed would be as wide as a terminal that is not there, and only there.
for size in ("COLUMNS", "LINES"):
    os.environ.pop(size, None)

TORCH_REGISTRIES = (
    ("torch.nn.modules.module", "_global_"),
    ("torch.optim.optimizer", "_global_"),
)
# What a profiler is tempted to patch. Names that torch adds by itself in passing do not count.
PATCHABLE = (
    ("builtins", ""),
    ("pickle", ""),
    ("sys", ""),
    ("torch.amp.grad_scaler", "GradScaler"),
    ("torch._C", ""),
    ("torch.autograd", ""),
    ("torch.cuda.memory", ""),
    ("torch.nn.modules.module", "Module"),
    ("torch.optim.optimizer", "Optimizer"),
    ("torch.utils.checkpoint", ""),
    ("torch.utils.data.dataloader", "DataLoader"),
    ("torch", "Tensor"),
    ("torch", "UntypedStorage"),
)
SIGNALS = sorted(signal.valid_signals())
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell's job in the background has Ctrl-C ignored, and so would all that is started here.
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Attributes of sys that pytest or Python change during a test.
FLEETING = {"stdin", "stdout", "stderr", "last_exc", "last_type", "last_value", "last_traceback"}


def torch_hooks() -> dict[str, object]:
    """Whatever is registered with torch at this moment, empty entries left out."""
    if "torch" not in sys.modules:
        return {}
    found: dict[str, object] = {}
    for module, prefix in TORCH_REGISTRIES:
        for name, value in vars(sys.modules.get(module, object)).items():
            if name.startswith(prefix) and isinstance(value, dict):
                found[name] = list(value.values())
    found |= torch_modes()
    return {name: value for name, value in found.items() if value}


def torch_modes() -> dict[str, object]:
    """Modes on this thread's stacks, default saved-tensor hooks, a running profiler."""
    import torch
    from torch.utils import _python_dispatch

    from memprof import native

    part = native.load() if native.is_loaded() else None
    # Older versions of torch do not tell; theirs are not looked at.
    saved = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", lambda _: None)
    return {
        "dispatch modes": list(_python_dispatch._get_current_dispatch_mode_stack()),
        "function modes": list(torch.overrides._get_current_function_mode_stack()),
        "saved-tensor hooks": saved(True),
        "profiler": torch.autograd._profiler_enabled(),
        "CPU allocator": part is not None and part.cpu_is_installed(),
    }


def process_hooks() -> dict[str, object]:
    """Callbacks, threads and signal handlers of the process."""
    return {
        "gc.callbacks": [f for f in gc.callbacks if "hypothesis" not in str(f.__module__)],
        "threads": sorted(t.name for t in threading.enumerate() if t.name.startswith("memprof")),
        "trace and profile": [sys.gettrace(), sys.getprofile()],
        "import hooks": [f for f in sys.meta_path if type(f).__module__.startswith("memprof")],
        "threading.excepthook": threading.excepthook,
        "signals": {s: signal.getsignal(s) for s in SIGNALS},
    }


def patchable() -> dict[str, dict[str, object]]:
    """The attributes of the modules and classes that a profiler is tempted to patch."""
    found: dict[str, dict[str, object]] = {}
    for module, name in PATCHABLE:
        owner = sys.modules.get(module)
        owner = getattr(owner, name, None) if name else owner
        if owner is not None:
            found[".".join(filter(None, (module, name)))] = dict(vars(owner))
    return found


def patched(before: dict[str, dict[str, object]]) -> list[str]:
    """The functions and classes among them that are not what they were."""
    return [
        f"{owner}.{key}"
        for owner, values in patchable().items()
        for key, value in values.items()
        if (old := before.get(owner, {}).get(key, value)) is not value
        and callable(old)
        and callable(value)
        and key not in FLEETING
    ]


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """No hook, mode, thread, callback or patched name outlives the test that made it."""
    hooks, process, names = torch_hooks(), process_hooks(), patchable()
    yield
    assert torch_hooks() == hooks
    assert process_hooks() == process
    assert patched(names) == []


@pytest.fixture(autouse=True)
def time_is_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test records and finds never depends on how fast, or how busy, the machine is.

    Tests of what recording and searches may take set their own limits.
    """
    if "torch" in sys.modules:
        lift_limits(monkeypatch.setattr, monkeypatch.setitem)


@pytest.fixture(autouse=True)
def heap_of_one_test(request: pytest.FixtureRequest) -> Iterator[None]:
    """The collector, and so a search for holders, sees only what is made from now on.

    What all tests of this process have loaded is ten times what a program has, and each collection
    and each search goes through it. A test marked ``whole_heap`` needs what its module has made: it
    begins without the garbage that other tests have left, of which a search gives up on too much.
    """
    if "whole_heap" in request.keywords:
        gc.collect()
        yield
        return
    gc.freeze()
    yield
    gc.unfreeze()


# What somebody built on this machine is used by the tests that ask for it, and by no other.
os.environ.setdefault("MEMPROF_NATIVE", "0")
os.environ.setdefault("MEMPROF_STRICT", "1")  # an error of a rule's fails its test


@pytest.fixture(scope="session")
def native_part() -> object:
    """The native part for the torch of this Python, built where that is possible."""
    pytest.importorskip("torch", reason="the native part is built for a torch")
    from memprof import native
    from memprof.errors import MissingError

    os.environ.setdefault("MEMPROF_CACHE", str(Path(tempfile.gettempdir()) / "memprof-tests"))
    try:
        native.build()
    except MissingError as missing:
        pytest.skip(f"the native part cannot be built here: {missing}")
    return native.load()


@pytest.fixture
def with_native(native_part: object, monkeypatch: pytest.MonkeyPatch) -> object:
    """Recordings of this test use the native part."""
    monkeypatch.setenv("MEMPROF_NATIVE", "1")
    return native_part


@pytest.fixture(scope="session")
def shared() -> Path:
    """A folder of snapshots and leaking programs: beside the repository, or taken along in it."""
    for folder in (ROOT.parent / "shared", ROOT / "shared"):
        if folder.is_dir():
            return folder
    pytest.skip("needs the folder ../shared beside the repository")


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of a Chromium or Chrome on this machine."""
    for name in ("chromium", "chromium-browser", "google-chrome", "chrome"):
        if found := shutil.which(name):
            return found
    pytest.skip("needs Chromium or Chrome on PATH (Debian: apt install chromium)")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all of tests/gpu, so that no test there can be forgotten."""
    for item in items:
        if item.path.is_relative_to(ROOT / "tests" / "gpu"):
            item.add_marker(pytest.mark.gpu)
            # torch warns of its prototypes, of TF32 and of contexts: no failures of ours.
            item.add_marker(pytest.mark.filterwarnings("default"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a GPU where there is none; torch is asked for such a test only."""
    if item.get_closest_marker("gpu") is None:
        return
    torch = pytest.importorskip("torch", reason="needs torch and a CUDA device")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device, and torch sees none here")
    from memprof.record.process import is_dry_run

    if item.get_closest_marker("kernels") and is_dry_run():
        pytest.skip("needs kernels that run: this is a dry run")
