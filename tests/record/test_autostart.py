"""MEMPROF=run.json in real processes: who writes which file, and what it costs to the rest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from memprof.record.autostart import claim

pytest.importorskip("torch", reason="there is nothing to record without torch")

ROOT = Path(__file__).resolve().parents[2]
TRAIN = """
import torch
def train():
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
"""Three steps of an optimizer, the first of which imports half of torch."""
THRICE = """
import memprof, torch
def train():
    for _ in range(3):
        torch.nn.Linear(8, 1)(torch.ones(2, 8)).sum().backward()
        memprof.step()
"""
"""Three steps that the program tells, for tests of who writes which file."""
ONCE = """
import torch
def train():
    torch.nn.Linear(8, 1)(torch.ones(2, 8)).sum().backward()
"""


@pytest.fixture
def site(tmp_path) -> Path:
    """A folder whose sitecustomize does what the start hook in site-packages does."""
    folder = tmp_path / "site"
    folder.mkdir()
    hook = (ROOT / "memprof" / "record" / "startup.pth").read_text()
    (folder / "sitecustomize.py").write_text(hook)
    return folder


def python(
    site: Path, *words: object, run_file: Path | str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    plain = {n: v for n, v in os.environ.items() if not n.startswith(("MEMPROF", "PYTHON"))}
    paths = os.pathsep.join(map(str, (site, ROOT, ROOT / "cli", ROOT / "dashboards")))
    wanted = {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "MEMPROF": str(run_file)}
    return subprocess.run(
        [sys.executable, *map(str, words)],
        env=plain | wanted | environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def record(path: Path, kind: str) -> dict:
    return [r for r in json.loads(path.read_text()) if r["kind"] == kind][-1]


def files(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if p.is_file())


@pytest.fixture
def out(tmp_path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


def test_a_script_is_recorded_and_nothing_is_printed(site, out, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(TRAIN + "train()")
    done = python(site, script, run_file=out / "run.json")
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)
    assert record(out / "run.json", "footer")["steps"] == 3
    assert record(out / "run.json", "header")["argv"] == [str(script)]
    assert record(out / "run.json", "header")["torch_version"]


def test_a_python_that_never_imports_torch_leaves_no_file_and_loads_no_numpy(site, out):
    code = "import sys; print('numpy' in sys.modules, 'memprof.record.autostart' in sys.modules)"
    done = python(site, "-c", code, run_file=out / "run.json")
    assert done.stdout == "False True\n", done.stderr
    assert files(out) == []


def test_a_process_that_imports_torch_and_trains_nothing_leaves_no_file(site, out):
    done = python(site, "-c", "import torch", run_file=out / "run.json")
    assert (done.stderr, done.returncode) == ("", 0)
    assert files(out) == []


def test_options_come_from_the_environment(site, out):
    python(
        site,
        "-c",
        ONCE + "train()",
        run_file=out / "run.json",
        MEMPROF_BUDGET="0.5",
        MEMPROF_WINDOW_STEPS="9",
    )
    options = record(out / "run.json", "header")["options"]
    assert (options["budget"], options["window_steps"]) == (0.5, 9)


def test_a_wrong_option_is_a_warning_and_not_the_end_of_the_job(site, out):
    done = python(
        site, "-c", ONCE + "train(); print('done')", run_file=out / "r.json", MEMPROF_BUDGET="much"
    )
    assert done.stdout == "done\n"
    assert "this job is not recorded: MEMPROF_BUDGET='much' is no number\n" in done.stderr
    assert "Traceback" not in done.stderr
    assert files(out) == []


@pytest.mark.parametrize(("value", "written"), [("1", ["memprof-run.json"]), ("0", [])])
def test_a_value_that_is_no_name_turns_recording_on_or_off(site, out, tmp_path, value, written):
    script = tmp_path / "train.py"
    script.write_text(ONCE + f"import os; os.chdir({str(out)!r}); train(); print('done')")
    done = python(site, script, run_file=value)
    assert done.stdout == "done\n", done.stderr
    assert files(out) == written


def test_a_file_that_cannot_be_written_is_a_warning_and_not_the_end_of_the_job(site, out):
    (out / "file").write_text("")
    done = python(site, "-c", ONCE + "train(); print('done')", run_file=out / "file" / "run.json")
    assert done.stdout == "done\n"
    assert "the job goes on" in done.stderr
    assert done.returncode == 0


def test_a_script_that_tracks_itself_is_recorded_once(site, out):
    code = ONCE + f"import memprof\nwith memprof.track({str(out / 'own.json')!r}): train()"
    assert python(site, "-c", code, run_file=out / "run.json").returncode == 0
    assert files(out) == ["run.json"]


def test_memprof_run_under_the_variable_writes_its_own_file_only(site, out, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(ONCE + "train()")
    words = ("-m", "memprof_cli", "run", "-q", "-o", out / "own.json", script)
    done = python(site, *words, run_file=out / "run.json")
    assert (done.stderr, done.returncode) == ("", 0)
    assert files(out) == ["own.json"]


def test_a_child_process_writes_a_file_of_its_own(site, out, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        THRICE
        + """
import multiprocessing
if __name__ == "__main__":
    train()
    child = multiprocessing.get_context("spawn").Process(target=train)
    child.start(); child.join(); print(child.pid)
"""
    )
    done = python(site, script, run_file=out / "run.json")
    assert done.returncode == 0, done.stderr
    child = f"run.pid{int(done.stdout)}.json"
    assert files(out) == sorted(["run.json", child])
    assert [record(out / name, "footer")["steps"] for name in ("run.json", child)] == [3, 3]


def test_a_child_of_a_python_without_torch_writes_the_file_itself(site, out, tmp_path):
    (tmp_path / "script.py").write_text(ONCE + "train()")
    code = "import subprocess, sys; subprocess.run([sys.executable, sys.argv[1]], check=True)"
    done = python(site, "-c", code, tmp_path / "script.py", run_file=out / "run.json")
    assert done.returncode == 0, done.stderr
    assert files(out) == ["run.json"]


def test_a_file_of_an_earlier_launch_is_replaced(site, out):
    (out / "run.json").write_text("[old]")
    assert python(site, "-c", THRICE + "train()", run_file=out / "run.json").returncode == 0
    assert files(out) == ["run.json"]
    assert record(out / "run.json", "footer")["steps"] == 3


@pytest.mark.slow
def test_under_torchrun_each_rank_writes_its_file_and_the_launcher_none(site, out, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        THRICE
        + """
import torch.distributed as dist
dist.init_process_group("gloo")
train()
dist.destroy_process_group()
"""
    )
    words = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", script)
    done = python(site, *words, run_file=out / "run.json")
    assert done.returncode == 0, done.stderr
    assert files(out) == ["run.rank0.json", "run.rank1.json"]
    for rank in (0, 1):
        header = record(out / f"run.rank{rank}.json", "header")
        assert (header["rank"], header["world_size"]) == (rank, 2)
        assert record(out / f"run.rank{rank}.json", "footer")["steps"] == 3


def test_a_name_is_claimed_once_a_launch(tmp_path):
    path = str(tmp_path / "new" / "run.json")
    began = time.time_ns() - 10**9
    assert claim(path, began)
    assert not claim(path, began)
    os.utime(path, ns=(began - 10**9, began - 10**9))
    assert claim(path, began)
    assert not claim(path, began)


def test_a_process_without_the_variable_has_no_import_hook(site):
    code = (
        "import sys; print([m for m in sys.modules if m.startswith('memprof')], len(sys.meta_path))"
    )
    done = python(site, "-c", code)
    assert done.stdout.startswith("[] "), done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudoterminals")
@pytest.mark.parametrize(("trains", "says"), [(True, True), (False, False)])
def test_the_file_is_named_at_the_end_to_whoever_sits_at_the_terminal(
    site, out, tmp_path, trains, says
):
    import pty

    script = tmp_path / "script.py"
    script.write_text(THRICE + ("train()" if trains else ""))
    ours, theirs = pty.openpty()
    environment = {n: v for n, v in os.environ.items() if not n.startswith(("MEMPROF", "PYTHON"))}
    environment["PYTHONPATH"] = os.pathsep.join(
        map(str, (site, ROOT, ROOT / "cli", ROOT / "dashboards"))
    )
    environment |= {"OMP_NUM_THREADS": "1", "MEMPROF": str(out / "run.json")}
    command = [sys.executable, str(script)]
    done = subprocess.run(command, env=environment, stderr=theirs, timeout=600, check=False)
    os.close(theirs)
    try:
        text = os.read(ours, 4096).decode()
    except OSError:  # nothing was written, and nobody has it open any more
        text = ""
    finally:
        os.close(ours)
    assert (f"memprof: recorded {out / 'run.json'}" in text) is says
    assert done.returncode == 0
