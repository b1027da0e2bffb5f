"""A script under `memprof run` behaves as under python: compared side by side, in real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="there is nothing to record without torch")

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {
    **{n: v for n, v in os.environ.items() if not n.startswith("MEMPROF")},
    "PYTHONPATH": os.pathsep.join(str(ROOT / folder) for folder in (".", "cli", "dashboards")),
    "OMP_NUM_THREADS": "1",
}
PLAIN = [sys.executable]
RECORDED = [sys.executable, "-m", "memprof_cli", "run", "-q", "-o", "out/run.json"]


def run(
    command: list[str], *words: str, cwd: Path, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, *words],
        env=ENVIRONMENT,
        cwd=cwd,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def assert_same(folder: Path, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Both ways of running print and exit alike; what the plain one did."""
    plain = run(PLAIN, *words, cwd=folder, stdin=stdin)
    recorded = run(RECORDED, *words, cwd=folder, stdin=stdin)
    assert recorded.stdout == plain.stdout
    assert recorded.stderr == plain.stderr
    assert recorded.returncode == plain.returncode
    return plain


LOOK = """
import sys, __main__
names = {k: repr(v) for k, v in vars(__main__).items() if k in (
    "__name__", "__file__", "__doc__", "__package__", "__cached__")}
print(sorted(names.items()), type(__loader__).__name__, getattr(__spec__, "name", None))
print(sys.argv, sys.path[:2], type(__builtins__).__name__)
print(__main__.__dict__ is globals(), [n for n in globals() if not n.startswith("__")])
"""


def test_a_script_sees_what_it_would_see_under_python(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "show.py").write_text(LOOK)
    done = assert_same(tmp_path, "folder/show.py", "--epochs", "3", "-m", "-o", "x")
    assert "--epochs" in done.stdout


def test_a_module_sees_what_it_would_see_under_python(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "show.py").write_text(LOOK)
    done = assert_same(tmp_path, "-m", "package.show", "-q", "7")
    assert "'-q', '7'" in done.stdout


@pytest.mark.parametrize("kind", ["folder", "archive"])
def test_a_folder_or_an_archive_with_a_main_runs(tmp_path, kind):
    if kind == "folder":
        (tmp_path / "app").mkdir()
        (tmp_path / "app" / "__main__.py").write_text(LOOK)
    else:
        with zipfile.ZipFile(tmp_path / "app", "w") as archive:
            archive.writestr("__main__.py", LOOK)
    assert assert_same(tmp_path, "app", "word").returncode == 0


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("import sys; sys.exit(3)", 3),
        ("import sys; sys.exit('gone')", 1),
        ("import sys; sys.exit()", 0),
        ("raise ValueError('mine')", 1),
        (
            "def f():\n    g()\ndef g():\n    try: 1/0\n    except Exception as e: raise KeyError(2) from e\nf()",
            1,
        ),
        ("x = (", 1),
        ("import os; os._exit(9)", 9),
        ("import os; os.abort()", -signal.SIGABRT),
        (
            "import sys; sys.excepthook = lambda *a: print('hook', a[0].__name__)\nraise ValueError",
            1,
        ),
        ("raise KeyboardInterrupt", -signal.SIGINT),
        ("import atexit; atexit.register(print, 'bye')\nraise SystemExit(4)", 4),
        ("import warnings; warnings.warn('old', DeprecationWarning)", 0),
        ("import sys; sys.stderr.close()", 0),
    ],
)
def test_a_script_ends_as_it_would_end_under_python(tmp_path, code, status):
    (tmp_path / "script.py").write_text(code)
    assert assert_same(tmp_path, "script.py").returncode == status


@pytest.mark.parametrize(
    "words", [("missing.py",), ("-m", "missing_module"), ("-m", "json.missing")]
)
def test_what_is_not_there_is_refused_as_python_does(tmp_path, words):
    assert assert_same(tmp_path, *words).returncode in (1, 2)


def test_standard_input_is_the_scripts(tmp_path):
    (tmp_path / "script.py").write_text("print(input().upper(), input())")
    assert assert_same(tmp_path, "script.py", stdin="one\ntwo\n").stdout == "ONE two\n"


CHILDREN = """
import multiprocessing, pickle, sys

class Thing:
    pass

def work(thing):
    return type(thing).__module__, __name__

if __name__ == "__main__":
    assert type(pickle.loads(pickle.dumps(Thing()))) is Thing
    with multiprocessing.get_context(sys.argv[1]).Pool(1) as pool:
        print(pool.map(work, [Thing()]))
"""


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_children_find_the_classes_and_functions_of_the_main_module(tmp_path, method):
    (tmp_path / "script.py").write_text(CHILDREN)
    done = assert_same(tmp_path, "script.py", method)
    assert "__mp_main__" in done.stdout or "__main__" in done.stdout


LOADER = """
import torch
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self):
        return 16
    def __getitem__(self, i):
        return torch.full((8,), float(i))

if __name__ == "__main__":
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for batch in DataLoader(Numbers(), batch_size=4, num_workers=2):
        loss = model(batch).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(loss.item().hex())
"""


def test_a_data_loader_with_workers_gives_the_same_losses(tmp_path):
    (tmp_path / "train.py").write_text(LOADER)
    assert assert_same(tmp_path, "train.py").stdout.count("0x") == 4
    footer = json.loads((tmp_path / "out" / "run.json").read_text())[-1]
    assert (footer["kind"], footer["steps"]) == ("footer", 4)


def test_control_c_reaches_the_script(tmp_path):
    (tmp_path / "script.py").write_text(
        "import signal, time\n"
        # a shell's job in the background ignores it, and so does all that it starts
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "try:\n    print('go', flush=True); time.sleep(600)\n"
        "except KeyboardInterrupt:\n    print('caught'); raise SystemExit(6)"
    )
    job = subprocess.Popen(
        [*RECORDED, "script.py"], env=ENVIRONMENT, cwd=tmp_path, stdout=subprocess.PIPE
    )
    assert job.stdout.readline() == b"go\n"
    time.sleep(0.1)
    job.send_signal(signal.SIGINT)
    assert job.communicate(timeout=600)[0] == b"caught\n"
    assert job.returncode == 6
    assert json.loads((tmp_path / "out" / "run.json").read_text())[-1]["status"] == "SystemExit: 6"


def test_no_frame_of_ours_is_in_a_traceback(tmp_path):
    (tmp_path / "script.py").write_text("raise ValueError('mine')")
    said = run(RECORDED, "script.py", cwd=tmp_path).stderr
    assert said.count("File ") == 1
    assert "memprof" not in said


def test_at_the_end_it_says_what_to_type_next(tmp_path):
    (tmp_path / "script.py").write_text("print('hello')")
    loud = [word for word in RECORDED if word != "-q"]
    done = run(loud, "script.py", cwd=tmp_path)
    assert done.stdout == "hello\n"
    assert done.stderr == "memprof: recorded out/run.json; next: memprof report out/run.json\n"


def test_after_an_exception_the_traceback_comes_first(tmp_path):
    (tmp_path / "script.py").write_text("raise ValueError('mine')")
    loud = [word for word in RECORDED if word != "-q"]
    lines = run(loud, "script.py", cwd=tmp_path).stderr.splitlines()
    assert lines[-2:] == [
        "ValueError: mine",
        "memprof: recorded out/run.json; next: memprof report out/run.json",
    ]


def test_the_header_holds_the_scripts_own_words(tmp_path):
    (tmp_path / "script.py").write_text("import torch")
    run(RECORDED, "script.py", "--lr", "1", cwd=tmp_path)
    header = [
        r for r in json.loads((tmp_path / "out" / "run.json").read_text()) if r["kind"] == "header"
    ][-1]
    assert header["argv"] == ["script.py", "--lr", "1"]
    assert header["torch_version"]
