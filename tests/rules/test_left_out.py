"""A rule that fails on a recording is left out, and the others speak."""

from __future__ import annotations

import pytest

from memprof.errors import MissingError
from memprof.loading import load
from memprof.rules.left_out import STRICT
from memprof.rules.load_rules import growth_rules, rule_named, run_rules
from memprof.rules.ranked_findings import findings
from tests.rules.recorded import record


def keeps():
    import torch

    samples = []
    return lambda _: samples.append(torch.ones(4096))


@pytest.fixture
def run(tmp_path):
    """Of a program that fills a list, which the rule `growing-container` explains."""
    record(keeps, tmp_path / "run.json", 16)
    return load(tmp_path / "run.json")


def fails(*_):
    raise RecursionError("maximum recursion depth exceeded")


@pytest.mark.parametrize(
    "name", ["unread-value", run_rules()[0].name, next(iter(growth_rules())).name]
)
def test_the_other_rules_speak_and_the_log_names_the_one_that_failed(
    name, run, monkeypatch, caplog
):
    (leak,) = findings(run)
    rule = rule_named(name)
    monkeypatch.setattr(type(rule), "matches" if hasattr(rule, "matches") else "match", fails)
    with pytest.raises(RecursionError):
        findings(run)
    monkeypatch.delenv(STRICT)
    (again,) = findings(run)
    assert (again.title, again.remedies) == (leak.title, leak.remedies)
    assert leak.rule == "growing-container"
    assert {one.message for one in caplog.records if one.name == "memprof"} == {
        (
            f"memprof: the rule {name} failed on this recording and is left out: RecursionError: "
            "maximum recursion depth exceeded; please report it"
        )
    }


def test_what_is_no_error_of_the_rule_is_raised(run, monkeypatch):
    def lacks(*_):
        raise MissingError("nothing is here", "put it there")

    monkeypatch.delenv(STRICT)
    monkeypatch.setattr(type(rule_named("unread-value")), "matches", lacks)
    with pytest.raises(MissingError):
        findings(run)
