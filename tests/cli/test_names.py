"""A file, a module or a process may bear any name: every command prints it as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from memprof.records import Finding, Holder, Note, Readings
from memprof.reference_chain import Link
from memprof.testing import TraceBuilder, write_run
from memprof.trace import Category, Frame, Phase
from memprof_cli import main

MIB = 1 << 20
NAME = "[red]x[/nope]"
"""Markup to rich, which raises at the end of something that never began."""
EMOJI = "a:fire:b"
FOLDER = "[wip]"
STACK = (
    Frame(NAME, f"/home/me/{FOLDER}/train[a].py", 7),
    Frame(EMOJI, f"/home/me/{FOLDER}/main.py", 9),
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A leak that ends in a failed allocation, with such names wherever a file has names."""
    builder = TraceBuilder().alloc(8 * MIB, "model", stack=STACK[1:])
    for step in range(30):
        builder.label(
            step=step, phase=Phase.FORWARD, module=f"layers{NAME}", annotation=f"note{NAME}"
        )
        builder.alloc(4 * MIB, f"kept{step}", stack=STACK, category=Category.ACTIVATION)
    trace = builder.oom(60 * MIB, device_free=MIB).build()
    at_us = int(trace.events.time_us[-1])
    variable = Link("local", NAME, "step", "train[a].py", 7)
    holder = Holder("local", STACK[0].filename, 7, f"{NAME}.append(x)", [variable])
    beside = {"processes": [{"pid": 7, "name": NAME, "bytes": 9 * MIB}], "device_total": 900 * MIB}
    more = [
        Readings("nvml", "cuda:0", [at_us], {f"used by {NAME} 7": [9 * MIB]}),
        Finding("holders", "cuda:0", 29, at_us, 2, bytes=4 * MIB, count=30, holders=[holder]),
        Finding("oom", "cuda:0", 29, at_us, 2, 1, 60 * MIB, 1, details=beside),
        Note(NAME, f"nothing {NAME}", NAME),
    ]
    folder = tmp_path / NAME.replace("/", "")
    folder.mkdir()
    return write_run(folder / "run.json", trace, more=more)


def said(capsys: pytest.CaptureFixture[str], *args: object) -> str:
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in args])
    captured = capsys.readouterr()
    assert ended.value.code in (0, None), captured.err
    return captured.out


def test_oom_prints_names_as_they_are(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = said(capsys, "oom", file)
    assert out.splitlines()[0] == str(file)
    assert f"layers{NAME}" in out
    assert f"{FOLDER}/train[a].py:7 in {NAME}" in out
    assert f"{FOLDER}/main.py:9 in {EMOJI}" in out
    assert f"process 7 {NAME}: 9 MiB" in out


def test_report_prints_names_as_they_are(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = said(capsys, "report", "--no-page", file)
    assert f"layers{NAME}" in out
    assert f"{FOLDER}/train[a].py:7 in {NAME}" in out
    assert f"other processes on it: {NAME} 7 9 MiB" in out
    assert f"nothing {NAME}" in out


def test_leaks_prints_names_as_they_are(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = said(capsys, "leaks", file)
    assert f"local `{NAME}` of step() (train[a].py:7)" in out
    assert f"(layers{NAME})" in out
    assert f"{FOLDER}/train[a].py:7" in out


def test_what_if_prints_names_as_they_are(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = said(capsys, "what-if", file, "--gpu", "64MiB")
    assert f"asked by {FOLDER}/train[a].py:7 in {NAME}" in out
    assert f"in 13 blocks: {FOLDER}/train[a].py:7 in {NAME}" in out
    assert f"in 1 block: {FOLDER}/main.py:9 in {EMOJI}" in out


def test_replay_and_pages_take_such_names(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "cuda:0" in said(capsys, "replay", file)
    page = file.with_suffix(".html")
    assert f"page: {page}" in said(capsys, "report", file)
    assert NAME in page.read_text(encoding="utf-8")


def test_an_error_about_such_a_file_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "[red]x[nope].json"
    with pytest.raises(SystemExit) as ended:
        main(["oom", str(missing)])
    assert ended.value.code == 1
    assert str(missing) in capsys.readouterr().err


COMMANDING = "\x1b[2J\x1b]0;title\x07\x9b1mname"
"""Would clear the reader's screen, rename the window and set it in bold."""


@pytest.mark.parametrize("command", ["report", "oom", "leaks", "what-if"])
def test_a_name_does_not_command_the_reader_s_terminal(tmp_path, capsys, command):
    builder = TraceBuilder()
    stack = (Frame(COMMANDING, f"/home/me/{COMMANDING}.py", 7),)
    for step in range(12):
        builder.label(step=step, phase=Phase.FORWARD, module=COMMANDING, annotation=COMMANDING)
        builder.alloc(4 * MIB, f"kept{step}", stack=stack)
    trace = builder.oom(60 * MIB, device_free=MIB).build()
    file = write_run(tmp_path / "run.json", trace, more=[Note(COMMANDING, COMMANDING)])
    options = {"report": ["--no-page"], "what-if": ["--gpu", "64MiB"]}.get(command, [])
    out = said(capsys, command, file, *options)
    assert not set(out) & {"\x1b", "\x07", "\x9b"}
    assert r"\x1b[2J" in out
