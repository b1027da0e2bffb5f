"""What a dry run leaves alone: the machine's card, torch's files, everything but the run file."""

from __future__ import annotations

import json
from pathlib import Path

from memprof.dry_run.build import find_torch

LOOKS = """\
import json, os, subprocess, sys
import torch

torch.ones(3, device="cuda")


def seen():
    maps = open("/proc/self/maps").read().split()
    drivers = sorted({name for name in maps if "/libcuda.so" in name or "/libnvidia-ml" in name})
    names = []
    for number in os.listdir("/proc/self/fd"):
        try:
            names.append(os.readlink(f"/proc/self/fd/{number}"))
        except OSError:  # the one that listed them
            pass
    return {"drivers": drivers, "devices": [name for name in names if "/dev/nvidia" in name]}


print(json.dumps(seen()))
"""
CHILD = """\
import os, subprocess, sys

ask = (
    "import json, sys, torch.distributed.distributed_c10d as c10d\\n"
    "maps = open('/proc/self/maps').read()\\n"
    "ours = 'memprof_dry_run' in maps or '/dry-run/' in maps\\n"
    "wrapped = hasattr(c10d.all_gather_object, '__wrapped__') and 'memprof' in str("
    "c10d.all_gather_object.__code__.co_filename)\\n"
    "print(json.dumps({'ours': ours, 'changed': wrapped}))\\n"
)
plain = {n: v for n, v in os.environ.items() if n not in ("LD_PRELOAD", "LD_LIBRARY_PATH")}
for environment in (os.environ, plain):
    subprocess.run([sys.executable, "-c", ask], env=environment, check=True)
"""


def listed(folder: Path) -> dict[str, tuple[int, int]]:
    """Every file below a folder, its size and when it was changed."""
    return {
        str(file.relative_to(folder)): (file.stat().st_size, file.stat().st_mtime_ns)
        for file in folder.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }


def test_no_driver_but_the_stand_in_is_loaded_and_no_device_opened(dry_run, tmp_path):
    (tmp_path / "looks.py").write_text(LOOKS)
    done = dry_run("--gpu", "t4", "-o", "run.json", "looks.py", cwd=tmp_path)
    told = json.loads(done.stdout.splitlines()[0])
    (driver,) = told["drivers"]
    assert Path(driver).parent.parent.name == "dry-run"
    assert told["devices"] == []


def test_a_choice_among_the_machines_cards_does_not_hide_the_simulated_one(dry_run, tmp_path):
    (tmp_path / "looks.py").write_text(LOOKS)
    for hidden in ("", "-1", "7"):
        done = dry_run(
            *("--gpu", "t4", "-o", "run.json", "looks.py"),
            cwd=tmp_path,
            CUDA_VISIBLE_DEVICES=hidden,
        )
        assert done.returncode == 0, done.stderr[-3000:]


def test_nothing_is_left_but_the_run_file_and_torch_is_as_it_was(dry_run, tmp_path):
    folders = {name: tmp_path / name for name in ("work", "home", "temporary")}
    for folder in folders.values():
        folder.mkdir()
    (folders["work"] / "looks.py").write_text(LOOKS)
    torch = find_torch().folder
    before = listed(torch / "lib"), listed(torch / "distributed")
    done = dry_run(
        *("--gpu", "t4", "-o", "run.json", "looks.py"),
        cwd=folders["work"],
        MEMPROF_CACHE=str(tmp_path / "cache"),
        HOME=str(folders["home"]),
        TMPDIR=str(folders["temporary"]),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert sorted(listed(folders["work"])) == ["looks.py", "run.json"]
    assert listed(folders["home"]) == {}
    assert listed(folders["temporary"]) == {}
    kept = {Path(name).name for name in listed(tmp_path / "cache")}
    assert kept <= {"libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1"}
    assert (listed(torch / "lib"), listed(torch / "distributed")) == before


def test_a_child_without_the_library_finds_the_machine_and_torch_as_they_are(
    dry_run, site, tmp_path
):
    (tmp_path / "child.py").write_text(CHILD)
    job = ("--gpu", "t4", "--rank", 0, "--world-size", 2, "-o", "run.json", "child.py")
    done = dry_run(*job, cwd=tmp_path, site=site)
    below, plain = (json.loads(line) for line in done.stdout.splitlines()[:2])
    assert below == {"ours": True, "changed": True}
    assert plain == {"ours": False, "changed": False}
