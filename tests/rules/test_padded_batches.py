"""padded-batches: sequences are padded to a fixed length that none of them comes near."""

from __future__ import annotations

import runpy
import warnings

import pytest
import torch
from torch import nn

import memprof
from memprof.loading import load
from memprof.records import PaddedBatches
from tests.rules.recorded import findings_of, names

SEQUENCES, PLACES, WIDTH = 6, 192, 64


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(100, WIDTH)
        self.layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))

    def forward(self, input_ids, attention_mask):
        hidden = self.layers(self.words(input_ids))
        return (hidden * attention_mask.unsqueeze(-1)).sum(1)


def batch(longest, places=PLACES, *, left=False):
    mask = torch.zeros(SEQUENCES, places, dtype=torch.long)
    for number in range(SEQUENCES):
        length = longest - number
        mask[number, slice(places - length, places) if left else slice(length)] = 1
    return {"input_ids": torch.zeros(SEQUENCES, places, dtype=torch.long), "attention_mask": mask}


def training(longest, places=PLACES):
    """``longest`` and ``places`` by the number of the step."""
    net = Encoder()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(number):
        net(**batch(longest(number), places)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def fires():
    return training(lambda number: 40 + number % 9)


def looks_alike():
    """One batch in sixteen has a long sequence: the length is needed now and then."""
    return training(lambda number: PLACES if number == 11 else 40)


def test_the_longest_of_all_batches_says_what_padding_costs(tmp_path):
    found = findings_of(fires, tmp_path / "run.json")
    (one,) = [one for one in found if one.rule == "padded-batches"]
    assert not one.minor
    assert one.title.endswith(
        "are computed for sequences padded to 192 places, of which none uses more than 48"
    )
    (first,) = one.remedies
    assert first.fix == "pad_to_longest"
    assert first.code in (  # as large are both
        "mask = torch.zeros(SEQUENCES, places, dtype=torch.long)",
        'return {"input_ids": torch.zeros(SEQUENCES, places, dtype=torch.long), "attention_mask": mask}',
    )
    assert one.bytes % (SEQUENCES * PLACES) == 0
    assert load(tmp_path / "run.json").padded == PaddedBatches(16, SEQUENCES, PLACES, 48)


TEXTS = """\
def encode(tokenizer, texts):
    return tokenizer(
        texts,
        padding="max_length",
    )
"""


def test_the_line_is_where_a_tokenizer_is_told_the_length(tmp_path):
    source = tmp_path / "texts.py"
    source.write_text(TEXTS)
    texts = runpy.run_path(str(source))

    def by_a_tokenizer():
        net = Encoder()

        def step(number):
            encoded = texts["encode"](lambda longest, padding: batch(longest), 40 + number % 9)
            net(**encoded).square().mean().backward()
            net.zero_grad()

        return step

    found = findings_of(by_a_tokenizer, tmp_path / "run.json")
    (one,) = [one for one in found if one.rule == "padded-batches"]
    assert (one.remedies[0].fix, one.remedies[0].line) == ("pad_to_longest", 4)
    assert one.remedies[0].code.strip() == 'padding="max_length",'


def test_what_is_promised_is_what_padding_to_the_longest_saves(tmp_path):
    found = findings_of(fires, tmp_path / "run.json")
    (one,) = [one for one in found if one.rule == "padded-batches"]
    findings_of(lambda: training(lambda number: 48, 48), tmp_path / "short.json")
    (device,) = load(tmp_path / "short.json").devices
    peak = int(device.steps.peak_allocated.max())
    assert abs(one.remedies[0].peak_after - peak) <= 0.1 * peak


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (batch(40)["attention_mask"], PaddedBatches(1, SEQUENCES, PLACES, 40)),
        (batch(40, left=True)["attention_mask"].bool(), PaddedBatches(1, SEQUENCES, PLACES, 40)),
        (torch.ones(2, 7, dtype=torch.long), PaddedBatches(1, 2, 7, 7)),
        (torch.ones(2, 7), None),
        (torch.ones(2, 1, 7, 7, dtype=torch.long), None),
        (torch.zeros(2, 7, dtype=torch.long), None),
        (torch.ones(2, 7, dtype=torch.long, device="meta"), None),
        (None, None),
    ],
    ids=["right", "left", "full", "additive", "four-dimensional", "empty", "meta", "none"],
)
def test_masks_of_whole_sequences_are_read(mask, expected, tmp_path):
    class Model(nn.Module):
        def forward(self, attention_mask=None):
            return attention_mask

    with memprof.track(tmp_path / "run.json", sources=("cpu",)):
        Model()(attention_mask=mask)
    assert load(tmp_path / "run.json").padded == expected


def test_a_mask_in_a_batch_that_is_handed_over_whole_is_read(tmp_path):
    class Scorer(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = Encoder()

        def forward(self, features, scale):
            return self.encoder(**features) * scale

    with memprof.track(tmp_path / "run.json", sources=("cpu",)):
        Scorer()(batch(40), 2.0)
    assert load(tmp_path / "run.json").padded == PaddedBatches(1, SEQUENCES, PLACES, 40)


def test_what_traces_or_transforms_a_model_is_left_alone(tmp_path):
    """While a call is traced a look at a size is warned of, and `vmap`'s tensors have no memory."""

    class Model(nn.Module):
        def forward(self, x, attention_mask):
            return x * attention_mask

    model, x, mask = Model(), torch.ones(2, 7), torch.ones(2, 7, dtype=torch.long)

    def warnings_of_job():
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            given = {"x": x, "attention_mask": mask}
            torch.jit.trace(model, example_kwarg_inputs=given, check_trace=False)
            torch.func.vmap(lambda one: model(x, attention_mask=one))(mask.expand(3, 2, 7))
        return [str(one.message) for one in said]

    plain = warnings_of_job()
    with memprof.track(tmp_path / "run.json", sources=("cpu",)):
        assert warnings_of_job() == plain
    run = load(tmp_path / "run.json")
    assert (run.padded, list(run.notes)) == (None, [])


def test_a_length_that_some_batch_needs_is_no_waste(tmp_path):
    assert "padded-batches" not in names(looks_alike, tmp_path / "run.json")
    assert load(tmp_path / "run.json").padded == PaddedBatches(16, SEQUENCES, PLACES, PLACES)
