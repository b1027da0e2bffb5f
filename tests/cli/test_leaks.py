"""``memprof leaks``: what it prints, what it writes and how it exits."""

from __future__ import annotations

import importlib
import json
import subprocess

import pytest
from click.testing import CliRunner

from memprof.errors import MemprofError
from memprof.loading import load
from memprof.records import Site, WindowRecord
from memprof.report.summary import summarize
from memprof.rules.finding import Kind, Remedy, RuleFinding
from memprof.rules.ranked_findings import findings
from memprof.source_code.patch import diff, replaced
from memprof.source_code.program import program_of
from memprof.testing import (
    TraceBuilder,
    save_snapshot,
    segments_only,
    snapshot,
    step_columns,
    write_run,
)
from memprof.trace import Frame
from memprof.views.examination import examine
from memprof_cli.leaks import command

leaks = importlib.import_module("memprof_cli.leaks")


@pytest.fixture
def leaking(tmp_path):
    builder = TraceBuilder()
    for step in range(30):
        builder.label(step=step).alloc(4096, f"kept{step}", stack=[Frame("go", "/me/train.py", 3)])
    return write_run(tmp_path / "run.json", builder.label(step=30).alloc(512, "x").build())


@pytest.fixture
def healthy(tmp_path):
    builder = TraceBuilder()
    for step in range(30):
        builder.label(step=step).alloc(4096, "batch").free("batch")
    return write_run(tmp_path / "run.json", builder.label(step=30).alloc(512, "x").build())


def invoke(*arguments):
    return CliRunner().invoke(command, [str(a) for a in arguments])


def test_the_json_has_the_documented_keys(leaking):
    found = json.loads(invoke(leaking, "--json").output)["findings"][0]
    assert (found["kind"], found["bytes_per_step"]) == ("leak", 4096)
    assert found["site"] == {"filename": "/me/train.py", "line": 3, "function": "go", "code": ""}
    assert found["holders"] == []
    keys = {"fix", "rule", "why", "filename", "line", "code", "saves_bytes", "patch"}
    assert [remedy for remedy in found["remedies"] if not keys <= set(remedy)] == []


def test_the_rule_of_a_finding_and_its_fix_are_explained(given_back):
    found = json.loads(invoke(given_back, "--json").output)["findings"][0]
    assert found["rule"] == "kept-attribute"
    assert [remedy["rule"] for remedy in found["remedies"]] == ["kept-attribute"]
    last = invoke(given_back).output.splitlines()[-1]
    assert last == (
        "More: memprof explain kept-attribute (what it is), memprof explain del_ref (what to do)"
    )


def test_the_text_says_how_fast_and_where(leaking):
    output = invoke(leaking).output
    assert "1. leak" in output
    assert "4 KiB per step" in output
    assert "me/train.py:3" in output


@pytest.fixture
def given_back(tmp_path):
    """A leak whose tensors all go when the function that trains returns, after the last step."""
    source = tmp_path / "train.py"
    source.write_text("kept.append(make().detach())  # why not\n")
    builder = TraceBuilder()
    for step in range(30):
        frame = Frame("train", str(source), 1)
        builder.label(step=step, module="Net.head").alloc(4096, f"kept{step}", stack=[frame])
    builder.label(step=30).alloc(512, "x")
    for step in range(30):
        builder.free(f"kept{step}")
    return write_run(tmp_path / "run.json", builder.build())


def test_what_is_given_back_after_the_last_step_was_kept_all_the_same(given_back):
    found = json.loads(invoke(given_back, "--json").output)["findings"][0]
    assert (found["kind"], found["bytes_per_step"]) == ("leak", 4096)
    assert (found["first_step"], found["last_step"]) == (0, 27)  # the last ones are too young
    assert found["bytes"] == 28 * 4096
    assert found["module"] == "Net.head"
    remedy = found["remedies"][0]
    assert (remedy["saves_bytes"], remedy["peak_before"]) == (4096, 30 * 4096 + 512)
    assert remedy["peak_after"] == 4096  # of the step under way


def test_a_line_is_quoted_once_and_the_saving_says_of_what(given_back):
    output = invoke(given_back).output
    assert output.count("kept.append(make().detach())") == 1
    assert "saves 4 KiB per step; peak 120 KiB → 4 KiB" in " ".join(output.split())


def test_a_line_of_a_file_that_is_not_what_ran_is_not_quoted(given_back):
    records = json.loads(given_back.read_bytes())
    name = str(given_back.parent / "train.py")
    records.insert(1, {"kind": "source_files", "names": [name], "digests": ["0" * 32]})
    given_back.write_text("[\n" + ",\n".join(map(json.dumps, records)) + "\n]\n")
    found = json.loads(invoke(given_back, "--json").output)["findings"][0]
    assert found["site"] == {"filename": name, "line": 1, "function": "train", "code": ""}
    assert [remedy["code"] for remedy in found["remedies"] if remedy["code"]] == []


def test_the_verdict_says_where_it_is_made_and_how_much_there_is(given_back):
    verdict = summarize(examine(load(given_back)), findings(load(given_back))).verdict
    assert verdict.level == "leak"
    where = f"{given_back.parent.name}/train.py:1"
    made = f"made at {where}: `kept.append(make().detach())`"
    assert verdict.why == f"{made}; 112 KiB in all after step 27"


def test_a_final_state_is_said_to_be_one_with_what_to_type(tmp_path, monkeypatch):
    monkeypatch.setattr(leaks, "findings", lambda run, examination: ())
    trace = TraceBuilder("cuda:0").alloc(4096, "x").build()
    bare = save_snapshot(tmp_path / "bare.pickle", segments_only(trace))
    shot = snapshot(trace)
    shot["device_traces"] = [[{"action": "snapshot", "addr": 0, "size": 0, "stream": 0}]]
    marked = save_snapshot(tmp_path / "marked.pickle", shot)
    for file in (bare, marked):
        name, *said = invoke(file).output.splitlines()
        assert name == str(file)
        assert " ".join(" ".join(said).split()) == (
            "the file holds a final state and no steps, so nothing shows what grows: "
            "record at least 12 steps with `memprof run train.py`"
        )
    empty = save_snapshot(tmp_path / "empty.pickle", snapshot())
    assert "no data: the file holds no allocations" in invoke(empty).output


def test_a_leak_fails_the_command_only_when_asked_to(leaking):
    assert invoke(leaking).exit_code == 0
    assert invoke(leaking, "--fail-on-leak").exit_code == 3


def test_a_healthy_run_passes(healthy):
    done = invoke(healthy, "--fail-on-leak")
    assert done.exit_code == 0
    assert "1. leak" not in done.output


def test_what_cannot_be_judged_does_not_pass(tmp_path):
    trace = TraceBuilder("cuda:0").alloc(4096, "x").build()
    file = save_snapshot(tmp_path / "no-steps.pickle", snapshot(trace))
    assert invoke(file).exit_code == 0
    failed = invoke(file, "--fail-on-leak").exception
    assert isinstance(failed, MemprofError)
    assert failed.exit_code == 1
    assert failed.message == (
        f"{file} cannot show whether anything leaks: "
        "no steps are marked in this file, so growth from step to step cannot be seen"
    )


@pytest.mark.parametrize(
    ("counted", "said"),
    [
        (4, "nothing found in 4 of the 61 steps; record at least 12 to see a leak"),
        (20, "no leak in 20 of the 61 steps"),
        (61, "no leak in 61 steps"),
    ],
)
def test_steps_that_nobody_looked_at_are_none_without_a_leak(tmp_path, counted, said):
    """A window that has used up its allowance leaves steps without any figure."""
    builder = TraceBuilder(device="cpu")
    for step in range(4):
        builder.label(step=step).alloc(4096, "batch").free("batch")
    rest = [-1] * (61 - counted)
    steps = step_columns(allocated=[0] * counted + rest, window=[0] * 4 + [-1] * 57)
    file = write_run(tmp_path / "run.json", builder.build(), steps=steps)
    assert said in invoke(file).output
    assert (invoke(file, "--fail-on-leak").exception is None) is (counted >= 12)


@pytest.mark.parametrize(
    ("gap", "mib", "is_said"), [(40, 64, True), (40, 16, False), (0, 64, False)]
)
def test_what_is_there_after_steps_that_nobody_saw_is_said(tmp_path, gap, mib, is_said):
    builder = TraceBuilder(device="cpu")
    for step in range(4):
        builder.label(step=step).alloc(4096, "batch").free("batch")
    steps = step_columns(
        allocated=[0] * 20 + [-1] * gap + [mib << 20],
        peak_allocated=[4096] * 20 + [-1] * gap + [mib << 20],
        window=[0] * 4 + [-1] * (17 + gap),
    )
    limit = WindowRecord(window=0, reason="start", end="allowance", start_us=0, end_us=1)
    file = write_run(tmp_path / "run.json", builder.build(), steps=steps, more=[limit])
    said = " ".join(invoke(file).output.split())
    text = (
        "no leak in 21 of the 61 steps; 64 MiB are there in the last, where those seen before it "
        "had 4 KiB at most, and nothing was recorded in between (the allowance was used up; raise "
        "--allowance)"
    )
    assert (text in said) is is_said


def test_what_kept_a_recording_from_more_steps_is_said(tmp_path):
    trace = TraceBuilder(device="cpu").label(step=3).alloc(4096, "batch").build()
    limit = WindowRecord(window=0, reason="start", end="allowance", start_us=0, end_us=1)
    file = write_run(tmp_path / "run.json", trace, more=[limit])
    why = "(the allowance was used up; raise --allowance)"
    assert f"record at least 12 to see a leak {why}" in " ".join(invoke(file).output.split())


def test_no_patch_is_written_as_an_empty_file_and_said_to_be_none(leaking, tmp_path):
    patch = tmp_path / "fix.diff"
    done = invoke(leaking, "--patch", patch)
    assert done.exit_code == 0
    assert patch.read_text() == ""
    assert (
        f"no patch: none of the fixes is surely right without a look at it; {patch} is empty"
        in (done.output)
    )


def test_the_patches_of_all_findings_are_one_diff_for_git(leaking, tmp_path, monkeypatch):
    source = tmp_path / "job ü.py"
    source.write_bytes("# ü\r\na = x\r\nb = y\r\n".encode())
    program = program_of(str(source))
    patches = [
        diff(program, replaced(n.value, f"{n.value.id}.detach()")) for n in program.tree.body
    ]
    site = Site(str(source), 2)
    found = [
        RuleFinding(Kind.LEAK, "cpu", site, "", remedies=(Remedy("detach", "", patch=patch),))
        for patch in [*patches, patches[0]]
    ]
    monkeypatch.setattr(leaks, "findings", lambda run, examination: found)
    monkeypatch.chdir(tmp_path)
    assert "2 patches written" in invoke(leaking, "--patch", "fix.diff").output
    subprocess.run(["git", "apply", "--whitespace=nowarn", "fix.diff"], check=True)
    assert source.read_bytes().decode() == "# ü\r\na = x.detach()\r\nb = y.detach()\r\n"


def test_a_patch_that_cannot_be_written_is_an_error_with_a_hint(leaking, tmp_path):
    done = invoke(leaking, "--patch", tmp_path / "missing" / "fix.diff")
    assert "cannot write" in str(done.exception)
