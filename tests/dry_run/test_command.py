"""`memprof dry-run` from end to end: the answer, its exit statuses, and what the run file says."""

from __future__ import annotations

import json
import sys

import pytest

from memprof.dry_run.cards import listed
from memprof.loading import load
from memprof_cli.limits import EXIT_ABOVE

MIB = 1 << 20
TRAINING = """\
import sys
import torch

model = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.Linear(4096, 1024)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for number in range(int(sys.argv[1])):
    loss = model(torch.ones(int(sys.argv[2]), 1024, device="cuda")).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if loss.item() > 1:
        print("never")
    print("step", number)
"""
PARAMETERS = 4 * (1024 * 4096 * 2 + 4096 + 1024)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train.py").write_text(TRAINING)
    return tmp_path


def test_a_program_that_fits_is_answered_with_its_peak_and_what_is_left(dry_run, folder):
    done = dry_run("--gpu", "t4", "-o", "run.json", "--json", "train.py", 3, 64, cwd=folder)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout[done.stdout.index("{") :])
    card = listed()["t4"]
    (device,) = answer["devices"]
    assert answer["fits"]
    assert device["fits"]
    assert answer["dry_run"]["card"] == card.name
    assert device["total_bytes"] == card.total_bytes
    used = device["left_bytes"] + device["peak_reserved_bytes"] + card.context_bytes
    assert used == card.total_bytes
    assert device["peak_allocated_bytes"] > 4 * PARAMETERS  # with gradients and AdamW's two
    assert answer["program_status"] == 0


def test_the_run_file_says_that_it_was_no_card(dry_run, folder):
    done = dry_run("--gpu", "t4", "-o", "run.json", "train.py", 2, 8, cwd=folder)
    assert done.returncode == 0, done.stderr
    card, header = listed()["t4"], load(folder / "run.json").header
    assert header.dry_run.card == card.name
    assert header.dry_run.total_bytes == card.total_bytes
    assert header.dry_run.capability == "7.5"
    first, *_ = done.stdout[done.stdout.index("\nfits:") + 1 :].splitlines()
    assert first.endswith("of 14.6 GiB left")
    assert "dry run for Tesla T4: no kernel ran" in done.stdout


def test_a_line_that_reads_from_the_device_is_listed(dry_run, folder):
    dry_run("--gpu", "t4", "-o", "run.json", "train.py", 4, 8, cwd=folder)
    notes = [note.message for note in load(folder / "run.json").notes if note.source == "dry run"]
    line = TRAINING.splitlines().index("    if loss.item() > 1:") + 1
    (note,) = notes
    where = f"{folder}/train.py:{line} in <module>"
    assert note.startswith(f"{where} read 4 B from the device 4 times: zeros")


def test_a_program_ends_after_the_steps_that_were_asked_for(dry_run, folder):
    done = dry_run("--gpu", "t4", "-o", "run.json", "--steps", 2, "train.py", 100, 8, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "step 0" in done.stdout
    assert "step 2" not in done.stdout
    run = load(folder / "run.json")
    assert run.footer.status == "ok"
    assert run.footer.steps == 2


def test_a_program_that_does_not_fit_is_answered_with_the_post_mortem(dry_run, folder):
    rows = 1 << 20  # 16 GiB of activations of 4096 floats each
    done = dry_run("--gpu", "t4", "-o", "run.json", "train.py", 1, rows, cwd=folder)
    assert done.returncode == 1
    assert "does not fit: memory ran out" in done.stdout
    assert "What would have helped" in done.stdout
    assert "OutOfMemoryError" in done.stderr


@pytest.mark.parametrize(
    ("limit", "rows", "status"),
    [("100MiB", 8, EXIT_ABOVE), ("14GiB", 8, 0), ("14GiB", 1 << 20, EXIT_ABOVE)],
    ids=["above", "below", "out of memory"],
)
def test_a_limit_that_does_not_hold_ends_with_three(dry_run, folder, limit, rows, status):
    words = ["--gpu", "t4", "--fail-above", limit, "-o", "run.json", "train.py", 1, rows]
    assert dry_run(*words, cwd=folder).returncode == status


def test_the_status_of_the_program_is_that_of_the_command(dry_run, folder):
    (folder / "fail.py").write_text(
        "import torch\ntorch.ones(3, device='cuda')\nraise SystemExit(7)"
    )
    done = dry_run("--gpu", "t4", "-o", "run.json", "fail.py", cwd=folder)
    assert done.returncode == 7
    assert "the program failed; until then it fits: 512 B allocated" in done.stdout


def test_a_module_runs_as_python_would_run_it(dry_run, folder):
    done = dry_run("--gpu", "t4", "-o", "run.json", "-m", "train", 1, 8, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "step 0" in done.stdout


def test_a_program_without_any_tensor_on_the_card_is_told_so(dry_run, folder):
    (folder / "idle.py").write_text("import torch\ntorch.ones(3)")
    done = dry_run("--gpu", "t4", "-o", "run.json", "idle.py", cwd=folder)
    assert "nothing was allocated on it" in done.stdout


def test_any_command_finds_the_card_and_nothing_is_recorded(dry_run, folder):
    ask = "import torch; print(torch.cuda.get_device_name(), torch.cuda.device_count())"
    done = dry_run(
        "--gpu", "a40", "--gpus", 3, "--no-record", sys.executable, "-c", ask, cwd=folder
    )
    assert done.stdout == "NVIDIA A40 3\n"
    assert [path.name for path in folder.iterdir()] == ["train.py"]


def test_a_child_may_have_the_machines_own_cuda_again(dry_run, folder):
    (folder / "child.py").write_text(
        "import os, subprocess, sys\n"
        "plain = {n: v for n, v in os.environ.items() if n != 'LD_PRELOAD'}\n"
        "plain.pop('LD_LIBRARY_PATH')\n"
        "ask = 'import torch; print(torch.cuda.is_available())'\n"
        "subprocess.run([sys.executable, '-c', ask])\n"
        "subprocess.run([sys.executable, '-W', 'ignore', '-c', ask], env=plain)\n"
    )
    words = ["--gpu", "t4", "--no-record", sys.executable, "child.py"]
    answers = dry_run(*words, cwd=folder).stdout.split()
    assert answers[0] == "True"
    assert len(answers) == 2
