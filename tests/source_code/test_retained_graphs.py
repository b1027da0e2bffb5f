"""Which calls that go backward ask for their graph to be kept."""

from __future__ import annotations

import pytest

from memprof.source_code.program import Program, calls_in, program_of
from memprof.source_code.retained_graphs import asked_by_options, asks_to_retain


def program(folder, text) -> Program:
    path = folder / "job.py"
    path.write_text(text)
    one = program_of(str(path))
    assert one is not None
    return one


ASKING = [
    "loss.backward(retain_graph=True)",
    "loss.backward(None, True)",
    "torch.autograd.backward(loss, None, True)",
    "torch.autograd.backward(loss, retain_graph=keep)",
    "torch.autograd.grad(loss, x, None, True)",
    "backward(loss, None, True)",
    "self.manual_backward(loss, retain_graph=True)",
    "options = {'retain_graph': True}; loss.backward(**options)",
    "keep = True; options = dict(retain_graph=keep); loss.backward(**options)",
]
OTHERS = [
    "loss.backward()",
    "loss.backward(weights)",
    "loss.backward(retain_graph=False)",
    "loss.backward(None, False)",
    "torch.autograd.backward(loss, weights)",
    "torch.autograd.grad(loss, x, weights)",
    "options = {}; loss.backward(**options)",
    "options = {'retain_graph': False}; loss.backward(**options)",
    "loss.backward(*arguments)",
]


def asks(folder, text) -> bool:
    one = program(folder, text)
    (call,) = calls_in(one.tree, "backward", "grad", "manual_backward")
    return asks_to_retain(call, [one])


@pytest.mark.parametrize("text", ASKING)
def test_a_request_is_known_by_name_by_place_and_by_options(text, tmp_path):
    assert asks(tmp_path, text)


@pytest.mark.parametrize("text", OTHERS)
def test_other_calls_ask_for_nothing(text, tmp_path):
    assert not asks(tmp_path, text)


def test_the_options_that_may_ask_are_named(tmp_path):
    one = program(tmp_path, ASKING[-2])
    (call,) = calls_in(one.tree, "backward")
    options = asked_by_options(call, [one])
    assert options is not None
    assert one.text[options.col_offset : options.end_col_offset] == "options"
