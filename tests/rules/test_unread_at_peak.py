"""unread-at-peak: tensors are there at the peak that no operator reads any more."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from memprof.loading import load
from memprof.rules.ranked_findings import findings
from tests.rules.recorded import findings_of, named_by, record

ROWS, WIDTH, LAYERS = 1024, 128, 6
RESULT = ROWS * WIDTH * 4


class Teacher(nn.Module):
    """Keeps what its layers return until the next pass."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.maps = {}

    @torch.no_grad()
    def forward(self, x):
        for at, layer in enumerate(self.layers):
            x = layer(x)
            self.maps[at] = x
        return sum(one.mean() for one in self.maps.values())


class Student(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).tanh()
        return x


def learning(after=lambda teacher: None):
    teacher, student = Teacher(), Student()
    x = torch.randn(ROWS, WIDTH)

    def step(number):
        target = teacher(x)
        after(teacher)
        out = student(x)
        (out.mean() - target).square().backward()
        student.zero_grad()

    return step


def fires():
    return learning()


def looks_alike():
    return learning(lambda teacher: teacher.maps.clear())


def own(found):
    return [one for one in found if one.rule == "unread-at-peak"]


def test_what_a_frozen_model_keeps_of_its_layers_is_read_long_before_the_peak(tmp_path):
    (finding,) = own(findings_of(fires, tmp_path / "run.json"))

    assert finding.bytes == LAYERS * RESULT
    assert finding.title.endswith(
        "are there at the peak, though nothing reads them after line "
        f"{Teacher.forward.__wrapped__.__code__.co_firstlineno + 5}"
    )
    assert finding.site.line == Teacher.forward.__wrapped__.__code__.co_firstlineno + 4
    (remedy,) = finding.remedies
    assert remedy.fix == "del_ref"
    assert remedy.why.startswith("dict `maps` (6 items)")
    assert remedy.why.endswith("empty it there.")
    assert remedy.saves_bytes == LAYERS * RESULT


def test_what_is_emptied_after_its_last_read_is_not_there(tmp_path):
    assert own(findings_of(looks_alike, tmp_path / "run.json")) == []


def read_again_later():
    """A product of the layers' results and the student's: its backward pass reads them."""
    teacher, student = Teacher(), Student()
    x = torch.randn(ROWS, WIDTH)

    def step(number):
        teacher(x)
        out = student(x)
        sum((out * one).mean() for one in teacher.maps.values()).backward()
        student.zero_grad()

    return step


def cached():
    """A few results, each for some steps: read when an input comes again."""
    teacher, student = Teacher(), Student()
    x = torch.randn(ROWS, WIDTH)
    kept = {}

    def step(number):
        teacher(x)
        kept[number] = teacher.maps
        teacher.maps = {}
        if len(kept) > 3:
            kept.pop(min(kept))
        student(x).mean().backward()
        student.zero_grad()

    return step


@pytest.mark.parametrize("program", [read_again_later, cached])
def test_what_may_be_read_later_is_not_meant(program, tmp_path):
    assert own(findings_of(program, tmp_path / "run.json")) == []


def held_by_a_variable():
    teacher, student = Teacher(), Student()
    x = torch.randn(ROWS, WIDTH)

    def step(number):
        noise = torch.randn(LAYERS * ROWS, WIDTH)
        scale = noise.std()
        teacher.maps.clear()
        (student(x) * scale).mean().backward()
        student.zero_grad()

    return step


def test_a_variable_of_a_function_that_runs_is_named(tmp_path):
    """What the source shows of a variable is another rule's: it is smaller by nothing."""
    found = findings_of(held_by_a_variable, tmp_path / "run.json")

    rules = {name for one in found for name in named_by(one)}
    assert rules & {"unread-value", "unread-at-peak"}
    (finding,) = [one for one in found if one.rule in ("unread-value", "unread-at-peak")]
    assert finding.bytes == LAYERS * RESULT
    line = held_by_a_variable.__code__.co_firstlineno + 6
    assert f"after line {line}" in finding.title
    assert "`del noise`" in finding.remedies[0].why


class Refiner(nn.Module):
    """Returns what each of its layers makes, which a loss in training reads."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def refine(self, x):
        return self.layer(x).sigmoid()

    def forward(self, x):
        results = []
        for _ in range(LAYERS):
            results.append(self.refine(x))
        return results


def keeping_all():
    model = Refiner()
    x = torch.randn(ROWS, WIDTH)

    @torch.no_grad()
    def step(number):
        return model(x)[-1].mean()

    return step


def test_what_nothing_ever_reads_is_told_at_the_line_that_keeps_it(tmp_path):
    (finding,) = own(findings_of(keeping_all, tmp_path / "run.json"))

    assert finding.bytes == (LAYERS - 1) * RESULT
    assert finding.title.endswith("though nothing ever reads them")
    line = Refiner.forward.__code__.co_firstlineno + 3
    assert finding.site.line == line
    remedy = finding.remedies[0]
    assert (remedy.fix, remedy.line) == ("del_ref", line)
    assert remedy.why.startswith("`results` keeps 2.50 MiB that nothing ever reads")


def test_a_recording_without_reads_says_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("memprof.sources.cpu.dispatch_source.is_used", lambda: True)
    record(fires, tmp_path / "run.json")

    assert own(findings(load(tmp_path / "run.json"))) == []
