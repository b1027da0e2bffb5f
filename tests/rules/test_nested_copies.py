"""kept-attribute: a deep copy of an object that is kept in it has in it all those before."""

from __future__ import annotations

import copy

import torch
from torch import nn

from tests.rules.recorded import findings_of

WIDTH = 128


class Student(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH, bias=False)
        self.teacher = None

    def forward(self, x):
        return self.layer(x)

    def begin_task(self):
        self.teacher = copy.deepcopy(self).requires_grad_(False)


def tasks():
    student = Student()

    def step(number):
        student.begin_task()
        student(torch.randn(4, WIDTH)).square().mean().backward()
        student.zero_grad()

    return step


def test_the_copy_is_to_be_made_without_the_one_before(tmp_path):
    found = next(one for one in findings_of(tasks, tmp_path / "run.json", 40) if one.bytes_per_step)
    first = found.remedies[0]
    assert (first.fix, first.typed) == ("del_ref", "self.teacher = None")
    assert first.code == "self.teacher = copy.deepcopy(self).requires_grad_(False)"
