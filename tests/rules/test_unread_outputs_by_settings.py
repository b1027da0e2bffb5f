"""unread-outputs: a configuration asks for what nothing reads, not the call itself.

Each program is a file of its own: the one place that asks is looked for in every file that stands
in the stacks, and so are those that read a field.
"""

from __future__ import annotations

import runpy

import pytest

from tests.rules.layered_models import DEPTH, ROWS, WIDTH
from tests.rules.recorded import findings_of

STATES = """
import torch
from types import SimpleNamespace
from tests.rules.layered_models import ROWS, WIDTH, configured

DEEP = True
{making}


def program():
    model = configured(config)

    @torch.no_grad()
    def step(number):
        last = model(torch.randn(ROWS, WIDTH)){field}
        return torch.ones(1).item()

    return step
"""
TOKENS = """
import torch
from types import SimpleNamespace
from tests.rules.layered_models import ROWS, WIDTH, decoder, library

generation = library("generation", "transformers/generation/utils.py")
settings = SimpleNamespace(output_scores={asked})


def program():
    model = decoder()

    @torch.no_grad()
    def step(number):
        out = generation.sample(model, torch.randn(ROWS, WIDTH), 6, settings=settings)
        return out{field}[0].sum().item()

    return step
"""


def unread(text, tmp_path):
    path = tmp_path / "train.py"
    path.write_text(text)
    every = findings_of(runpy.run_path(str(path))["program"], tmp_path / "run.json")
    return [
        (one.bytes, one.remedies[0].fix, one.remedies[0].code)
        for one in every
        if one.rule == "unread-outputs"
    ]


@pytest.mark.parametrize(
    "making",
    [
        "config = SimpleNamespace()\nconfig.output_hidden_states = True",
        "config = SimpleNamespace()\nconfig.output_hidden_states = DEEP",
        "config = SimpleNamespace(output_hidden_states=True)",
    ],
)
def test_a_configuration_that_asks_is_named(making, tmp_path):
    (found,) = unread(STATES.format(making=making, field=".last"), tmp_path)
    nbytes = DEPTH * ROWS * WIDTH * 4  # all but the last, which is read, and what it is a sum with
    assert found == (nbytes, "drop_outputs", making.splitlines()[-1])


def test_states_that_are_read_or_not_asked_for_are_none(tmp_path):
    making = "config = SimpleNamespace(output_hidden_states={})"
    for asked, field in ((True, ".hidden_states"), (False, ".last")):
        assert unread(STATES.format(making=making.format(asked), field=field), tmp_path) == []


def test_settings_of_a_generation_ask_as_well(tmp_path):
    ((nbytes, fix, code),) = unread(TOKENS.format(asked=True, field='["sequences"]'), tmp_path)
    # at the peak the last token's are not there yet
    assert (nbytes, fix) == (5 * ROWS * WIDTH * 4, "drop_outputs")
    assert code == "settings = SimpleNamespace(output_scores=True)"
    for asked, field in ((True, '["scores"]'), (False, '["sequences"]')):
        assert unread(TOKENS.format(asked=asked, field=field), tmp_path) == []
