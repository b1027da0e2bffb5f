"""The memprof command itself: help, version, unknown words."""

from __future__ import annotations

from pathlib import Path

import pytest

from memprof import __version__
from memprof.testing import TraceBuilder, write_run
from memprof_cli import COMMANDS, help_text, main
from memprof_cli.group import group


def run_main(*args: str) -> int | str | None:
    with pytest.raises(SystemExit) as ended:
        main(args)
    return ended.value.code


@pytest.mark.parametrize("words", [(), ("-h",), ("--help",)])
def test_the_help_names_every_command(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(*words) == 0
    text = capsys.readouterr().out
    assert text == help_text()
    assert all(f"\n  {name} " in text for name in COMMANDS)


def test_the_quick_help_says_what_clicks_own_does() -> None:
    slow = group.get_help(group.make_context("memprof", [], resilient_parsing=True))
    assert sorted(slow.split()) == sorted(help_text().split())


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main(name, "--help") == 0
    assert f"memprof {name}" in capsys.readouterr().out


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main("--version") == 0
    assert __version__ in capsys.readouterr().out


def test_an_unknown_command_ends_with_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main("explode") == 2
    assert "No such command 'explode'" in capsys.readouterr().err


@pytest.mark.parametrize(("typed", "meant"), [("leak", "leaks"), ("whatif", "what-if")])
def test_a_slip_is_told_the_command_that_was_meant(
    typed: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(typed, "run.json") == 2
    complaint = capsys.readouterr().err
    assert complaint.count("Did you mean") == 1
    assert f"'{meant}'?" in complaint


@pytest.mark.parametrize("name", ["leaks", "oom", "what-if", "replay"])
def test_a_folder_is_sent_to_the_command_that_reads_folders(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([name, str(tmp_path)])
    complaint = capsys.readouterr().err
    assert f"cannot read {tmp_path}: Is a directory" in complaint
    assert f"`memprof report {tmp_path}`" in complaint


def test_a_folder_that_was_removed_is_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    run = write_run(tmp_path / "run.json", TraceBuilder().alloc(1024, "a").build())
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert run_main("leaks", str(run)) == 1
    error = capsys.readouterr().err
    assert "the folder that this was started in was removed" in error
    assert "`cd` to one that is there" in error
