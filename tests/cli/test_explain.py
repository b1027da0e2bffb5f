"""`memprof explain`: the page about a rule or a fix."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from memprof.rules import load_rules, pages
from memprof.rules.fixes import FIXES
from memprof_cli import main
from memprof_cli.explain import command

DOCS = Path(__file__).resolve().parents[2] / "docs" / "fixes"


def test_a_pipe_gets_the_page_as_it_is_written():
    result = CliRunner().invoke(command, ["detach"])
    assert result.exit_code == 0
    assert result.output.strip() == (DOCS / "detach.md").read_text().strip()


def test_without_a_name_every_rule_and_fix_is_listed_with_what_it_means():
    lines = CliRunner().invoke(command, []).output.splitlines()
    rules = {rule.name: rule.summary for rule in load_rules.rules()}
    listed = {"rules:": "", **rules, "fixes:": "", **FIXES}
    assert [line.split()[0] for line in lines] == list(listed)
    assert all(text in line for line, text in zip(lines, listed.values(), strict=True))


def test_the_page_of_a_rule_is_shown_as_well():
    result = CliRunner().invoke(command, ["held-gradients"])
    assert result.exit_code == 0
    assert (
        result.output.strip() == (DOCS.with_name("rules") / "held-gradients.md").read_text().strip()
    )


def test_a_name_that_is_no_fix_is_answered_with_the_nearest_one(capsys):
    with pytest.raises(SystemExit) as end:
        main(["explain", "detatch"])
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert "detatch is no rule and no fix" in said
    assert "did you mean detach?" in said


def test_an_install_without_its_pages_says_so(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(pages, "FOLDERS", {"fixes": (tmp_path,)})
    with pytest.raises(SystemExit) as end:
        main(["explain", "detach"])
    assert end.value.code == 1
    assert "lacks its page about detach" in capsys.readouterr().err
