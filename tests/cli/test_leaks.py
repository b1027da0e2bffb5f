"""``memprof leaks``: what it prints, what it writes and how it exits."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from memprof.testing import TraceBuilder, write_run
from memprof.trace import Frame
from memprof_cli.leaks import command


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
    keys = {"fix", "why", "filename", "line", "code", "saves_bytes", "patch"}
    assert [remedy for remedy in found["remedies"] if not keys <= set(remedy)] == []


def test_the_text_says_how_fast_and_where(leaking):
    output = invoke(leaking).output
    assert "1. leak" in output
    assert "4 KiB a step" in output
    assert "me/train.py:3" in output


def test_a_leak_fails_the_command_only_when_asked_to(leaking):
    assert invoke(leaking).exit_code == 0
    assert invoke(leaking, "--fail-on-leak").exit_code == 3


def test_a_healthy_run_passes(healthy):
    done = invoke(healthy, "--fail-on-leak")
    assert done.exit_code == 0
    assert "1. leak" not in done.output


def test_no_patch_is_written_as_an_empty_file(leaking, tmp_path):
    patch = tmp_path / "fix.diff"
    assert invoke(leaking, "--patch", patch).exit_code == 0
    assert patch.read_text() == ""


def test_a_patch_that_cannot_be_written_is_an_error_with_a_hint(leaking, tmp_path):
    done = invoke(leaking, "--patch", tmp_path / "missing" / "fix.diff")
    assert "cannot write" in str(done.exception)
