"""memprof report: what it prints, what JSON carries, where the page goes, how errors end."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from memprof.records import WindowRecord
from memprof.testing import TraceBuilder, save_snapshot, segments_only, snapshot, write_run
from memprof_cli import main

MIB = 1 << 20


def run_main(*args: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in args])
    code = ended.value.code
    return code if isinstance(code, int) else 0


def small_snapshot(folder: Path, name: str = "snap.pickle") -> Path:
    builder = TraceBuilder().existing(MIB, "weights")
    builder.alloc(3000, "a").alloc(5 * MIB, "b").free("b").free("weights")
    return save_snapshot(folder / name, snapshot(builder.build()))


def figures(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(capsys.readouterr().out)
    return data


def test_json_counts_from_the_state_in_which_the_trace_began(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main("report", small_snapshot(tmp_path), "--json") == 0
    (device,) = figures(capsys)["devices"]
    assert device["device"] == "cuda:0"
    assert device["allocated_bytes"] == 3072
    assert device["peak_allocated_bytes"] == MIB + 3072 + 5 * MIB
    assert device["events"] == 7  # two allocs, two frees in two parts each, one segment taken


def test_json_alone_writes_no_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_main("report", small_snapshot(tmp_path), "--json")
    assert figures(capsys)["verdict"]["level"] == "ok"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["snap.pickle"]


def test_the_page_goes_beside_the_first_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = small_snapshot(tmp_path, "snap.pickle.gz")
    assert run_main("report", file) == 0
    assert (tmp_path / "snap.html").read_text().startswith("<!DOCTYPE html>")
    assert f"page: {tmp_path / 'snap.html'}" in capsys.readouterr().out


def test_several_files_make_one_page_and_a_list_of_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [small_snapshot(tmp_path, name) for name in ("one.pickle", "two.pickle")]
    page = tmp_path / "both.html"
    assert run_main("report", *files, "--json", "-o", page) == 0
    assert [run["source"] for run in figures(capsys)["runs"]] == [str(f) for f in files]
    assert "one.pickle" in page.read_text()
    assert "two.pickle" in page.read_text()


def test_nothing_measured_is_no_data_and_never_ok(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = save_snapshot(tmp_path / "empty.pickle", snapshot())
    assert run_main("report", file, "--json") == 0
    data = figures(capsys)
    assert data["verdict"]["level"] == "no data"
    assert data["devices"] == []
    run_main("report", file, "--no-page")
    text = capsys.readouterr().out
    assert "no data" in text
    assert "OK" not in text


def test_after_a_final_state_comes_a_recording(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = TraceBuilder().alloc(3 * MIB, "a").build()
    bare = save_snapshot(tmp_path / "bare.pickle", segments_only(trace))
    whole = save_snapshot(tmp_path / "whole.pickle", snapshot(trace))
    run_main("report", bare, "--json")
    data = figures(capsys)
    assert data["final_state"]
    assert data["verdict"]["line"] == "3 MiB in tensors on cuda:0 when the snapshot was taken"
    assert f"`memprof oom {bare}` says what filled it" in data["verdict"]["next"]
    assert "record with `memprof run train.py`" in data["verdict"]["next"]
    run_main("report", bare, "--no-page")
    text = capsys.readouterr().out
    assert "cuda:0  allocated 3 MiB, reserved 4 MiB" in text
    assert "in the end these were alive:" in text
    assert "at the peak" not in text
    run_main("report", whole, "--json")
    data = figures(capsys)
    assert not data["final_state"]
    assert "--fit" in data["verdict"]["next"]


@pytest.mark.parametrize(
    ("status", "said"), [("ok", ""), ("ValueError: boom", "ended: ValueError: boom\n")]
)
def test_how_the_program_ended_is_said_before_the_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], status: str, said: str
) -> None:
    file = write_run(tmp_path / "run.json", TraceBuilder().alloc(MIB, "a").build())
    text = file.read_text()
    assert '{"kind":"footer"' in text
    file.write_text(text.replace('"kind":"footer"', f'"kind":"footer","status":"{status}"'))
    run_main("report", file, "--no-page")
    out = capsys.readouterr().out
    assert out.split("Verdict")[0] == f"{file}\n{said}"


def test_a_file_without_an_end_is_said_to_be_of_a_job_that_was_killed_or_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_run(tmp_path / "run.json", TraceBuilder().alloc(MIB, "a").build())
    file.write_text(file.read_text().split('{"kind":"footer"')[0])
    run_main("report", file, "--no-page")
    out = capsys.readouterr().out
    assert "\nended: killed, or still running: the file has no end\nVerdict" in out


def test_a_recording_in_which_nothing_was_allocated_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_run(tmp_path / "run.json", TraceBuilder(device="cpu").existing(MIB, "w").build())
    run_main("report", file, "--json")
    data = figures(capsys)
    assert data["verdict"]["line"] == (
        "1 MiB in tensors on cpu, and nothing allocated while it recorded"
    )
    assert "cpu: no events, only the final state: nothing was allocated" in data["unseen"]


def test_an_empty_run_file_is_no_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main("report", write_run(tmp_path / "run.json"), "--json") == 0
    assert figures(capsys)["verdict"]["level"] == "no data"


@pytest.mark.parametrize(
    ("status", "then"),
    [("ok", "`MEMPROF=run.json` before the command"), ("ValueError: no", "see above how it ended")],
)
def test_a_recording_without_a_tensor_says_what_may_be_the_matter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], status: str, then: str
) -> None:
    file = write_run(tmp_path / "run.json")
    text = file.read_text()
    file.write_text(text.replace('"kind":"footer"', f'"kind":"footer","status":"{status}"'))
    run_main("report", file, "--json")
    verdict = figures(capsys)["verdict"]
    assert verdict["why"] == "the process that was recorded made no tensor"
    assert then in verdict["next"]


def test_a_recording_that_a_limit_ended_at_once_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    window = WindowRecord(0, "start", "allowance", 1, 2)
    run_main("report", write_run(tmp_path / "run.json", more=[window]), "--json")
    verdict = figures(capsys)["verdict"]
    assert verdict["why"] == "recording ended before anything was measured"
    assert verdict["next"] == "the allowance was used up; raise --allowance"


def test_running_out_of_memory_is_the_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = TraceBuilder().alloc(20 * MIB, "a").oom(30 * MIB, device_free=7 * MIB).build()
    file = save_snapshot(tmp_path / "oom.pickle", snapshot(trace))
    assert run_main("report", file, "--json") == 0
    verdict = figures(capsys)["verdict"]
    assert verdict["level"] == "oom"
    assert verdict["line"] == "cuda:0 ran out of memory: 30 MiB asked, 7 MiB free on the device"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"hello", "is no pickle and no run file: it begins with 'hello'"),
        (b"import torch\nx = 1", "it begins with 'import torch\\nx = 1'"),
        (b"<!DOCTYPE html>\n<html>", "it begins with '<!DOCTYPE html>"),
        (pickle.dumps([1, 2]), "a list of other things than segments"),
        (b"[1, 2]", "does not begin with a header"),
        (pickle.dumps({"no": "segments"}), "without a list of segments"),
        (pickle.dumps(os.getcwd), "loading it would run code"),
    ],
)
def test_bad_input_ends_in_an_error_with_a_hint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, says: str
) -> None:
    file = tmp_path / "bad.bin"
    file.write_bytes(content)
    assert run_main("report", file) == 1
    complaint = capsys.readouterr().err
    assert says in complaint
    assert "Traceback" not in complaint
    assert "hint:" in complaint


def test_a_missing_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main("report", tmp_path / "nowhere.json") == 1
    assert "nowhere.json" in capsys.readouterr().err


def test_a_page_that_cannot_be_written_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "no" / "such" / "folder.html"
    assert run_main("report", small_snapshot(tmp_path), "-o", page) == 1
    assert "cannot write" in capsys.readouterr().err


def test_every_real_snapshot_reports_its_own_sums(
    shared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = sorted((shared / "snapshots").glob("*.pickle"))
    assert files
    for file in files:
        assert run_main("report", file, "--json") == 0
        devices = {d["device"]: d for d in figures(capsys)["devices"]}
        wanted = _own_sums(file)
        assert {
            name: (d["allocated_bytes"], d["reserved_bytes"]) for name, d in devices.items()
        } == wanted


def _own_sums(file: Path) -> dict[str, tuple[int, int]]:
    data = pickle.loads(file.read_bytes())
    segments = data["segments"] if isinstance(data, dict) else data
    traces = data.get("device_traces", []) if isinstance(data, dict) else []
    devices = {s["device"] for s in segments} | {d for d, t in enumerate(traces) if t}
    return {
        f"cuda:{device}": (
            sum(s["allocated_size"] for s in segments if s["device"] == device),
            sum(s["total_size"] for s in segments if s["device"] == device),
        )
        for device in devices
    }


@pytest.mark.parametrize(
    ("overhead_us", "told"),
    [
        (4_000_000, "recording took 40 % of 10.0 s, within its start-up allowance of 5.0 s"),
        (6_000_000, "recording took 60 % of 10.0 s"),
    ],
)
def test_what_recording_took_is_told_with_what_it_may_take_at_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], overhead_us: int, told: str
) -> None:
    file = write_run(tmp_path / "run.json", TraceBuilder().alloc(MIB, "a").build())
    header, *between, footer = json.loads(file.read_text())
    header["options"] = {"allowance_s": 5.0}
    footer |= {"overhead_us": overhead_us, "ended_us": header["created_us"] + 10_000_000}
    lines = ",\n".join(map(json.dumps, [header, *between, footer]))
    file.write_text(f"[\n{lines}\n]\n")
    run_main("report", file, "--no-page")
    assert capsys.readouterr().out.splitlines()[-1] == told


@pytest.fixture
def of_cpu() -> Path:
    """A training on the CPU whose gradients stay through the next forward pass."""
    recordings = Path(__file__).resolve().parents[1] / "golden" / "recordings"
    return recordings / "set_to_none-gradients.json.gz"


def test_json_has_the_findings_as_leaks_has_them(
    of_cpu: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_main("report", of_cpu, "--json")
    found = figures(capsys)["findings"]
    run_main("leaks", of_cpu, "--json")
    assert found == figures(capsys)["findings"]
    assert [one["rule"] for one in found] == ["activations", "held-gradients"]
    assert all(one["minor"] for one in found)


def test_in_a_narrow_terminal_names_are_cut_and_figures_stay(
    of_cpu: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    run_main("report", of_cpu, "--no-page")
    lines = capsys.readouterr().out.splitlines()
    rows = [line for line in lines if line.startswith(("  category", "  module", "  line"))]
    assert len(rows) == 3
    assert all(" MiB " in row and "%" in row for row in rows)
    assert any(row.rstrip().endswith("…") for row in lines)


def test_of_a_cpu_no_modelled_figures_are_shown(
    of_cpu: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    run_main("report", of_cpu, "-o", page)
    assert "reserved" not in capsys.readouterr().out
    assert "<h3>Peak reserved</h3>" not in page.read_text()


def test_what_is_no_headline_has_a_line_in_leaks_and_is_whole_with_all(
    of_cpu: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_main("leaks", of_cpu)
    text = capsys.readouterr().out
    assert "no leak in 24 steps" in text
    assert "also seen" in text
    assert "fix " not in text
    # of what the program needs as it is: gradients that wait are no part of that
    assert text.count("where memory is short, ") == 1
    assert "where memory is short, `checkpoint` saves 384 KiB" in " ".join(text.split())
    run_main("leaks", of_cpu, "--all")
    assert "Write `optimizer.zero_grad(set_to_none=True)`." in " ".join(
        capsys.readouterr().out.split()
    )
