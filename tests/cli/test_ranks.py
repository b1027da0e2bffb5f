"""memprof report on the ranks of a job: one screen, one JSON object, one page; and of a real job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from memprof.testing import TraceBuilder, write_rank
from tests.cli.test_report import run_main, small_snapshot

ROOT = Path(__file__).resolve().parent.parent.parent
GIB = 1 << 30


def job(folder: Path, count: int = 12, **of_last: Any) -> Path:
    """Ranks of 8 GiB; the last one as it is said."""
    for rank in range(count):
        trace = TraceBuilder().alloc(512, "a").build()
        write_rank(folder, rank, count, trace, **(of_last if rank == count - 1 else {}))
    return folder


def said(capsys: pytest.CaptureFixture[str]) -> str:
    """What was printed, without the padding of its lines."""
    return "\n".join(line.rstrip() for line in capsys.readouterr().out.splitlines())


def test_the_screen_says_who_was_read_the_verdict_the_peaks_who_differs_and_what_to_type(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    folder = job(tmp_path, ooms=1, status="OutOfMemoryError: CUDA out of memory.", peak=30 * GIB, reserved=31 * GIB)  # fmt: skip
    (folder / "run.rank3.json").unlink()
    (folder / "run.rank5.json").write_text("")
    assert run_main("report", ".", "--no-page") == 0
    text = said(capsys)
    assert text.splitlines()[:6] == [
        "train.py, started 2023-11-14 22:13:20 UTC",
        "Ranks    10 of 12 read; 2 missing: 3, 5",
        "         1 failed: rank 11: OutOfMemoryError: CUDA out of memory.",
        "         left out: run.rank5.json is empty",
        "Verdict  rank 11 ran out of memory, the only one of 10 ranks",
        "Why      rank 11's peak was 30 GiB of 80 GiB on cuda:0, in 100 steps; the median of all is 8 GiB",
    ]
    assert "peak allocated 8 GiB (rank 0) 8 GiB 30 GiB (rank 11)" in " ".join(text.split())
    assert "step time 300 ms on each" in " ".join(text.split())
    assert "Differ from the rest\n  peak allocated  rank 11  30 GiB, the median 8 GiB" in text
    chosen = "rank 11 (ran out of memory), rank 6 (median peak)"
    assert f"on the 2 of 10 ranks judged: {chosen}; --all judges each" in " ".join(text.split())
    assert text.endswith("Next  memprof oom run.rank11.json")
    assert len(text.splitlines()) < 30


def test_json_is_one_object(tmp_path, capsys):
    job(tmp_path, peak=30 * GIB, reserved=31 * GIB)
    assert run_main("report", tmp_path / "run.rank*.json", "--json") == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["world_size"], data["missing"], data["left_out"]) == (12, [], [])
    assert data["verdict"]["level"] == "outlier"
    assert data["next"] == f"memprof report {tmp_path / 'run.rank11.json'}"
    assert [(r["rank"], r["peak_allocated_bytes"]) for r in data["ranks"]][-2:] == [
        (10, 8 * GIB),
        (11, 30 * GIB),
    ]
    (peak,) = [one for one in data["deviations"] if one["measure"] == "peak_allocated"]
    assert peak == {
        "measure": "peak_allocated",
        "unit": "bytes",
        "higher": True,
        "rows": [11],
        "value": 30 * GIB,
        "median": 8 * GIB,
    }
    assert sorted(p.suffix for p in tmp_path.iterdir()) == [".json"] * 12


def test_every_field_of_the_json_is_in_the_docs(tmp_path, capsys):
    job(tmp_path)
    run_main("report", tmp_path, "--json")
    page = (ROOT / "docs" / "ranks.md").read_text()
    data = json.loads(capsys.readouterr().out)
    names = {*data, *data["ranks"][0], *data["spreads"][0], *data["findings"][0]}
    assert [name for name in sorted(names) if f"`{name}`" not in page] == []


def test_the_page_goes_beside_the_first_rank(tmp_path, capsys):
    assert run_main("report", job(tmp_path)) == 0
    page = tmp_path / "run.ranks.html"
    assert f"page: {page}" in capsys.readouterr().out
    assert page.read_text().startswith("<!DOCTYPE html>")


def test_when_devices_are_full_is_a_row_of_the_screen_and_in_the_json(tmp_path, capsys):
    for rank in range(3):
        full = {"full_step": 5000, "full_left_us": 7_200_000_000} if rank == 1 else {}
        write_rank(tmp_path, rank, 3, ending="interim", **full)
    assert run_main("report", tmp_path, "--no-page") == 0
    text = said(capsys)
    assert "rank 1 runs out of memory at about step 5,000, in 2 h 00 min from its last step" in text
    assert "time to full 2 h 00 min on each; of 1" in " ".join(text.split())
    run_main("report", tmp_path, "--json")
    rows = json.loads(capsys.readouterr().out)["ranks"]
    assert [(one["full_step"], one["full_left_us"]) for one in rows] == [
        (-1, -1),
        (5000, 7_200_000_000),
        (-1, -1),
    ]


def test_all_judges_each(tmp_path, capsys):
    run_main("report", job(tmp_path), "--all", "--no-page")
    assert "on the 12 ranks, all judged" in said(capsys)


def test_each_tells_every_file_by_itself(tmp_path, capsys):
    run_main("report", job(tmp_path, 2), "--each", "--json")
    assert len(json.loads(capsys.readouterr().out)["runs"]) == 2


def test_files_of_different_jobs_are_told_one_by_one(tmp_path, capsys):
    first = write_rank(tmp_path, 0, 2, argv=["a.py"], name="a.json")
    second = write_rank(tmp_path, 0, 2, argv=["b.py"], name="b.json")
    run_main("report", first, second, small_snapshot(tmp_path), "--json")
    assert [run["source"] for run in json.loads(capsys.readouterr().out)["runs"]] == [
        str(first),
        str(second),
        str(tmp_path / "snap.pickle"),
    ]


def test_a_folder_with_one_recording_is_that_recording(tmp_path, capsys):
    write_rank(tmp_path, 0, 1)
    assert run_main("report", tmp_path, "--json") == 0
    assert json.loads(capsys.readouterr().out)["source"] == str(tmp_path / "run.rank0.json")


def test_an_empty_folder_is_an_error_with_a_hint(tmp_path, capsys):
    assert run_main("report", tmp_path) == 1
    complaint = capsys.readouterr().err
    assert "holds no recording" in complaint
    assert "hint:" in complaint


def test_names_in_hostile_files_do_not_command_the_terminal(tmp_path, capsys):
    for rank in range(3):
        status = "ValueError: \x1b[2J\u202e" if rank == 1 else "ok"
        write_rank(tmp_path, rank, 3, argv=["\x1b]0;title\x07.py"], status=status)
    run_main("report", tmp_path, "--no-page")
    text = capsys.readouterr().out
    assert "\\x1b[2J\\u202e" in text
    assert "\x1b" not in text
    assert "\u202e" not in text


# -- a real job ------------------------------------------------------------------------------------

TRAIN = """
import time
import torch
import torch.distributed as dist

def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    kept = []
    for step in range(30):
        loss = model(torch.randn(16, 64)).pow(2).mean()
        optimizer.zero_grad()
        if step > 15:
            time.sleep(0.12)  # each step's end writes what was recorded: the last write was before
        loss.backward()  # by now all of them have ended the step before
        if rank == 2 and step == 25:
            raise ValueError("a bad batch")
        optimizer.step()
        if rank == 1:
            kept.append(torch.zeros(2**16))

main()
"""
LEAK = 4 * 2**16


@pytest.mark.slow
def test_of_a_real_job_in_which_one_rank_leaks_and_one_dies_every_rank_is_told(tmp_path, capsys):
    pytest.importorskip("torch", reason="there is nothing to record without torch")
    site, out = tmp_path / "site", tmp_path / "out"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        (ROOT / "memprof" / "record" / "startup.pth").read_text()
    )
    (tmp_path / "train.py").write_text(TRAIN)
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3", "train.py")
    plain = {n: v for n, v in os.environ.items() if not n.startswith(("MEMPROF", "PYTHON"))}
    paths = os.pathsep.join(map(str, (site, ROOT, ROOT / "cli", ROOT / "dashboards")))
    wanted = {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "MEMPROF": str(out / "run.json")}
    wanted["MEMPROF_ALLOWANCE"] = "600"  # however busy the machine is, the window stays open
    done = subprocess.run(
        [sys.executable, *torchrun], cwd=tmp_path, env=plain | wanted, capture_output=True, timeout=600, check=False
    )  # fmt: skip
    assert done.returncode == 1, done.stderr

    assert run_main("report", out, "--json") == 0
    data = json.loads(capsys.readouterr().out)
    ranks = data["ranks"]
    assert [rank["rank"] for rank in ranks] == [0, 1, 2]
    assert (data["world_size"], data["missing"]) == (3, [])
    assert (ranks[2]["ended"], ranks[2]["status"]) == ("failed", "ValueError: a bad batch")
    assert ranks[2]["steps"] == 25
    # The others are told by the launcher to end, or find their peer gone.
    assert {ranks[0]["ended"], ranks[1]["ended"]} <= {"cut off", "failed"}
    assert [rank["bytes_per_step"] for rank in ranks] == [0, LEAK, 0]
    assert data["verdict"]["level"] == "leak"
    leak = data["findings"][0]
    assert (leak["ranks"], round(leak["bytes_per_step"])) == (["rank 1"], LEAK)
    assert leak["site"]["line"] == TRAIN.splitlines().index("            kept.append(torch.zeros(2**16))") + 1  # fmt: skip
    assert "`kept`" in leak["holder"]
    growth = [one for one in data["deviations"] if one["measure"] == "growth"]
    assert [one["rows"] for one in growth] == [[1]]
    assert data["next"] == f"memprof leaks {out / 'run.rank1.json'}"
