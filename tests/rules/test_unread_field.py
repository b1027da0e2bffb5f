"""unread-field: each item of a container keeps something that nothing reads."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter

import pytest
import torch

import memprof
from tests.rules.recorded import findings_of, names

WIDTH = 64


@dataclass
class Answer:
    certainty: float
    whole_output: torch.Tensor


@dataclass
class Scored:
    certainty: float
    shown_output: torch.Tensor


def fires():
    """Of each answer the certainty is read, and the output is kept beside it."""
    answers = []

    def step(number):
        out = torch.rand(WIDTH, WIDTH)
        answers.append(Answer(certainty=out.max().item(), whole_output=out))
        return sum(one.certainty for one in answers)

    return step


def looks_alike():
    """What is kept is read: it is the container that grows."""
    answers = []

    def step(number):
        out = torch.rand(WIDTH, WIDTH)
        answers.append(Scored(certainty=out.max().item(), shown_output=out))
        return max(answers, key=lambda one: one.certainty).shown_output.sum().item()

    return step


def fires_on_an_entry():
    """The same with dicts."""
    rows = []

    def step(number):
        out = torch.rand(WIDTH, WIDTH)
        rows.append({"surety": out.max().item(), "whole_logits": out})
        return sum(one["surety"] for one in rows)

    return step


class Log:
    """What it is given by keywords becomes a dict."""

    def __init__(self):
        self.rows = []

    def add(self, **row):
        self.rows.append(row)


def fires_on_a_keyword():
    log = Log()

    def step(number):
        out = torch.rand(WIDTH, WIDTH)
        log.add(sureness=out.max().item(), every_logit=out)
        return sum(one["sureness"] for one in log.rows)

    return step


class NumberedLog:
    """What it is given by keywords stands in a dict with more."""

    def __init__(self):
        self.pages = []

    def put(self, number, **values):
        self.pages.append({"at": number, **values})


def fires_on_a_keyword_beside_others():
    log = NumberedLog()

    def step(number):
        out = torch.rand(WIDTH, WIDTH)
        log.put(number, surest=out.max().item(), each_logit=out)
        return sum(one["surest"] for one in log.pages[::2])

    return step


def hands_on():
    """Each dict is handed on as a whole."""
    rows = []

    def step(number):
        out = torch.rand(WIDTH, WIDTH)
        rows.append({"doubt": out.min().item(), "whole_scores": out})
        return torch.utils.data.default_collate(rows[-1:])

    return step


def test_the_items_stay_and_the_field_goes(tmp_path):
    (found,) = findings_of(fires, tmp_path / "run.json")
    first = found.remedies[0]
    assert found.rule == first.rule == "unread-field"
    assert found.bytes_per_step == WIDTH * WIDTH * 4
    assert (first.fix, first.saves_bytes) == ("del_ref", WIDTH * WIDTH * 4)
    assert first.code == "answers.append(Answer(certainty=out.max().item(), whole_output=out))"
    assert first.why.startswith("Nothing reads the `whole_output` of `Answer`, which 1")


def test_what_is_read_is_none(tmp_path):
    assert "unread-field" not in names(looks_alike, tmp_path / "run.json")


def test_an_entry_that_nothing_reads_goes(tmp_path):
    (found,) = findings_of(fires_on_an_entry, tmp_path / "run.json")
    first = found.remedies[0]
    assert found.rule == first.rule == "unread-field"
    assert (first.fix, first.saves_bytes) == ("del_ref", WIDTH * WIDTH * 4)
    assert first.code == 'rows.append({"surety": out.max().item(), "whole_logits": out})'


def test_an_entry_that_is_given_by_a_keyword_goes_there(tmp_path):
    found, *_ = findings_of(fires_on_a_keyword, tmp_path / "run.json", 64)
    first = found.remedies[0]
    assert (first.rule, first.fix) == ("unread-field", "del_ref")
    assert "Nothing reads the `every_logit` that each of" in first.why
    assert first.code == "log.add(sureness=out.max().item(), every_logit=out)"


def test_an_entry_that_is_given_by_a_keyword_beside_others_goes_there(tmp_path):
    found, *_ = findings_of(fires_on_a_keyword_beside_others, tmp_path / "run.json", 64)
    first = found.remedies[0]
    assert (first.rule, first.fix) == ("unread-field", "del_ref")
    assert "Nothing reads the `each_logit` that each of" in first.why
    assert first.code == "log.put(number, surest=out.max().item(), each_logit=out)"


def test_what_is_handed_on_may_be_read(tmp_path):
    assert "unread-field" not in names(hands_on, tmp_path / "run.json")


@dataclass
class Sorted:
    certainty: float
    sorted_output: torch.Tensor


@dataclass
class Matched:
    certainty: float
    matched_output: torch.Tensor


def read_by_its_name_as_a_text():
    answers = []

    def step(number):
        out = torch.rand(WIDTH, WIDTH)
        answers.append(Sorted(certainty=out.max().item(), sorted_output=out))
        return sum(one.sum().item() for one in map(attrgetter("sorted_output"), answers))

    return step


def read_by_a_pattern():
    answers = []

    def step(number):
        out = torch.rand(WIDTH, WIDTH)
        answers.append(Matched(certainty=out.max().item(), matched_output=out))
        return sum(map(matched_sum, answers))

    return step


def matched_sum(answer):
    match answer:
        case Matched(certainty=certainty, matched_output=output):
            return certainty + output.sum().item()


@pytest.mark.parametrize("program", [read_by_its_name_as_a_text, read_by_a_pattern])
def test_what_is_read_without_a_dot_is_read(program, tmp_path):
    assert "unread-field" not in names(program, tmp_path / "run.json")


def trained(number):
    """A model, and the one number that is read of it later."""
    model = torch.nn.Linear(WIDTH, WIDTH, bias=False)
    score = model(torch.ones(1, WIDTH)).sum().item()
    memprof.step()
    return model, score


def scores_alone():
    results = [trained(number) for number in range(40)]
    best = min(score for _, score in results)
    return lambda number: best


def models_as_well():
    results = [trained(number) for number in range(40)]
    outputs = [model(torch.ones(1, WIDTH)) * score for model, score in results]
    return lambda number: outputs


def test_of_tuples_that_a_comprehension_makes_an_item_is_never_read(tmp_path):
    found = findings_of(scores_alone, tmp_path / "run.json", steps=0)[0]
    first = found.remedies[0]
    assert found.rule == first.rule == "unread-field"
    assert found.bytes_per_step == WIDTH * WIDTH * 4
    assert (first.fix, first.code) == ("del_ref", "return model, score")
    assert "Nothing reads the `model` that each of" in first.why


def test_models_of_a_comprehension_that_are_read_are_an_ensemble(tmp_path):
    found = findings_of(models_as_well, tmp_path / "run.json", steps=0)
    assert not any(one.bytes_per_step for one in found)
