"""unread-outputs: a configuration asks for the results of all layers, of which the last are read."""

from __future__ import annotations

import torch

from memprof.loading import load
from memprof.views.examination import examine
from tests.rules.layered_models import DEPTH, ROWS, WIDTH, stack_of_layers
from tests.rules.recorded import findings_of, record

NBYTES = ROWS * WIDTH * 4


class Configuration:
    def __init__(self, **settings):
        self.settings = settings


def configured():
    model = stack_of_layers()
    configuration = Configuration(
        width=WIDTH,
        output_hidden_states=True,
    )

    @torch.no_grad()
    def step(number):
        output = model(torch.ones(ROWS, WIDTH), **asked(configuration))
        return output.hidden_states[-1].sum().item()

    return step


def asked(configuration):
    name = "output_hidden_states"
    return {name: configuration.settings[name]}


def mended():
    model = stack_of_layers()

    @torch.no_grad()
    def step(number):
        output = model(torch.ones(ROWS, WIDTH))
        return output.last.sum().item()

    return step


def test_the_line_that_asks_is_told_and_what_all_but_the_last_take(tmp_path):
    found, *_ = findings_of(configured, tmp_path / "run.json")
    (remedy,) = found.remedies
    assert (found.rule, found.bytes) == ("unread-outputs", (DEPTH - 1) * NBYTES)
    assert found.title.endswith("are hidden states of all layers, of which the last are read")
    assert (remedy.fix, remedy.code) == ("drop_outputs", "output_hidden_states=True,")
    record(mended, tmp_path / "mended.json")
    (after,) = examine(load(tmp_path / "mended.json")).devices
    assert remedy.peak_after == after.peak_allocated
