"""Records the programs of `tests/golden/recordings` anew: ``python tests/golden/record.py [NAME …]``.

Expected outputs follow from a recording, so a new one needs `outputs.py` after it.
"""

from __future__ import annotations

import gzip
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
FOLDER = HERE / "recordings"

sys.path[:0] = [str(ROOT)]

PROGRAMS = {
    "weakref-registry": "weakref/class-registry",
    "bound_cache-memoized-lru_cache": "bound_cache/functools-cache/lru_cache",
    "clear_traceback-kept": "clear_traceback/advice_on_exception",
    "break_cycle-checkpoint": "break_cycle/reentrant-checkpoint",
    "save_for_backward-ctx_attribute": "save_for_backward/context-attribute",
    "item-running_sum": "item/running-sum",
    "detach-history": "detach/assigned-history",
    "detach-carried": "detach/carried-state",
    "no_grad-no_backward": "no_grad/no-backward",
    "detach-kept_results-called": "detach/kept-graph/called",
    "clone_view-view": "clone_view/advice_on_view",
    "no_grad-of_pattern": "no_grad/evaluation-graph",
    "set_to_none-gradients": "set_to_none/held-gradients",
    "foreach_false-optimizer": "foreach_false/optimizer-temporaries",
    "disable_autocast_cache-autocast": "disable_autocast_cache/autocast-cache",
    "del_ref-lingering": "del_ref/lingering",
    "no_retain_graph-retained": "no_retain_graph/retaining",
    "detach-old_graphs": "detach/old-graphs",
    "bucket_view-buckets": "bucket_view/buckets",
}
"""Programs by the name of their recording: a recording holds it, so it does not change."""
LONE = (
    "queue_never_read",
    "forward_hook_appends",
    "collection_copied_at_every_call",
    "suspended_generators",
    "long_deque_still_filling",
    "key_value_cache_of_a_generation",
    "lbfgs_with_a_long_history",
    "validation_with_a_local_list",
)
"""Functions of `tests/programs/leaks.py`; the last five are healthy."""

LOOP = """

def main(path, steps=40):
    import memprof

    with memprof.track(path, sources=["cpu"], allowance_s=600) as tracker:
        step = {name}()
        for i in range(steps):
            step(i)
            tracker.step()
"""

RUN = """
import importlib.util, sys
from memprof.referrers import bounded_search as searches
from memprof.referrers import survivors

# However busy the machine is:
searches.WHOLE_S = searches.WHOLE_AFTER_S = searches.BUDGET_S = survivors.LAST_S = 60.0
spec = importlib.util.spec_from_file_location("train", sys.argv[1])
train = importlib.util.module_from_spec(spec)
sys.modules["train"] = train
spec.loader.exec_module(train)
train.main(sys.argv[2])
"""

ENVIRONMENT = re.compile(rb'"[^"]*?/(?:site-packages|dist-packages|lib/python3\.\d+)/')
"""What a name of torch's or Python's own file begins with, where this machine has it."""

PLATFORM = re.compile(rb'("platform":")[^"]*')


def sources() -> dict[str, str]:
    """The text of every program, by name."""
    from tests.programs import leaks
    from tests.programs.patchable import program

    texts = {name: program(case) for name, case in PROGRAMS.items()}
    whole = inspect.getsource(leaks)
    head = whole[: whole.index("LEAKING: dict")].partition('"""\n\n')[2]
    for name in LONE:
        function = getattr(leaks, name)
        named = inspect.getsource(function).partition("def ")[2]
        needed = [inspect.getsource(getattr(leaks, x)) for x in ("mlp", "trainer")]
        texts[name] = head + "\n\n".join([*needed, "def " + named]) + LOOP.replace("{name}", name)
    return texts


def record(name: str, text: str, folder: Path) -> None:
    """Record the program into ``recordings``, with no path of this machine in the file."""
    program = folder / f"{name}.py"
    program.write_text(text)
    (FOLDER / program.name).write_text(text)
    path = folder / f"{name}.json"
    environment = os.environ | {"MEMPROF_NATIVE": "0", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", RUN, program, path]
    subprocess.run(command, check=True, cwd=folder, env=environment, timeout=300)
    recorded = PLATFORM.sub(rb"\1Linux", ENVIRONMENT.sub(b'"/python/', path.read_bytes()))
    with gzip.GzipFile(FOLDER / f"{name}.json.gz", "wb", mtime=0) as file:
        file.write(recorded)


def main(names: list[str]) -> None:
    """Record the programs called ``names``, or all."""
    folder = Path("/train")  # short, and nobody's: the recordings name it
    folder.mkdir(exist_ok=True)
    for name, text in sources().items():
        if not names or name in names:
            record(name, text, folder)
            print(name, (FOLDER / f"{name}.json.gz").stat().st_size)


if __name__ == "__main__":
    main(sys.argv[1:])
