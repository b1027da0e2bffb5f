"""growing-container and unread-field, where a list keeps all that `generate` returned."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from tests.rules.recorded import findings_of

VOCABULARY, TOKENS = 4096, 8


@dataclass
class GenerateDecoderOnlyOutput:
    """Named as that of transformers is."""

    sequences: torch.Tensor
    scores: tuple
    past_key_values: tuple


def generate(part):
    parts = tuple(torch.rand(8, VOCABULARY) for _ in range(TOKENS))
    of_part = {"scores": (), "past_key_values": (), part: parts}
    return GenerateDecoderOnlyOutput(sequences=torch.zeros(8, TOKENS), **of_part)


def ranking(part):
    """Each answer's scores are read; what its tokens were computed with is read by nothing."""

    def program():
        answers = []

        def step(number):
            answers.append(generate(part))
            return [step.log_softmax(-1).max().item() for one in answers for step in one.scores]

        return step

    return program


@pytest.mark.parametrize(
    ("part", "rule", "fix", "text"),
    [
        ("scores", "growing-container", "reduce_predictions", "its `scores` as well"),
        ("past_key_values", "unread-field", "del_ref", "Nothing reads the `past_key_values`"),
    ],
)
def test_what_is_needed_of_each_is_to_be_kept(part, rule, fix, text, tmp_path):
    found = findings_of(ranking(part), tmp_path / "run.json")[0]
    first = found.remedies[0]
    assert (found.rule, first.fix, first.code) == (rule, fix, "answers.append(generate(part))")
    assert text in first.why
    assert found.bytes_per_step == (TOKENS * VOCABULARY + TOKENS) * 8 * 4
