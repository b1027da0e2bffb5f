"""padded-batches: batches without a mask, whose own values end in padding."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import nn

import memprof
from memprof.loading import load
from memprof.records import PaddedBatches
from tests.rules.recorded import findings_of, names

CLIPS, BANDS, FRAMES, USED = 6, 16, 512, 120


class Listener(nn.Module):
    """Takes two frames together."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv1d(BANDS, 24, 4, stride=2, padding=1)
        self.rest = nn.Sequential(*(nn.Conv1d(24, 24, 3, padding=1) for _ in range(4)))

    def forward(self, sound):
        return torch.tanh(self.rest(torch.tanh(self.stem(sound)))).mean(-1)


def sounds(longest, frames=FRAMES):
    padded = torch.zeros(CLIPS, BANDS, frames)
    for number in range(CLIPS):
        length = longest - number
        padded[number, :, :length] = torch.randn(BANDS, length)
    return padded


def hearing(longest, frames=FRAMES):
    net = Listener()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def step(number):
        net(sounds(longest(number), frames)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def fires():
    return hearing(lambda number: USED - number % 5)


def looks_alike():
    """One batch in sixteen has a long one."""
    return hearing(lambda number: FRAMES if number == 11 else USED)


def test_features_that_end_in_zeros_are_padded(tmp_path):
    found = findings_of(fires, tmp_path / "run.json")
    (one,) = [one for one in found if one.rule == "padded-batches"]
    (first,) = one.remedies
    assert not one.minor
    assert one.title.endswith(f"padded to {FRAMES} places, of which none uses more than {USED}")
    assert first.code == "padded = torch.zeros(CLIPS, BANDS, frames)"
    findings_of(lambda: hearing(lambda number: USED, USED), tmp_path / "short.json")
    (device,) = load(tmp_path / "short.json").devices
    peak = int(device.steps.peak_allocated.max())
    assert first.peak_after == pytest.approx(peak, rel=0.12)


def test_a_length_that_some_batch_needs_is_no_waste(tmp_path):
    assert "padded-batches" not in names(looks_alike, tmp_path / "run.json")


WORDS = torch.tensor([[5, 6, 7, 0], [8, 9, 0, 0]]).repeat_interleave(24, dim=1)
ENDS_IN_ZEROS = torch.cat([torch.ones(3, 40, 2), torch.zeros(3, 60, 2)], dim=1)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (WORDS, PaddedBatches(1, 2, 96, 72)),
        (torch.where(WORDS == 0, -100, WORDS), PaddedBatches(1, 2, 96, 72)),
        (WORDS == 0, PaddedBatches(1, 2, 96, 72)),
        (ENDS_IN_ZEROS, PaddedBatches(1, 3, 100, 40)),
        (ENDS_IN_ZEROS.transpose(1, 2), PaddedBatches(1, 3, 100, 40)),
        (ENDS_IN_ZEROS.half(), PaddedBatches(1, 3, 100, 40)),
        (torch.ones(3, 100, 2), PaddedBatches(1, 3, 100, 100)),
        (torch.zeros(3, 100, 2), None),  # a state that begins with zeros
        (ENDS_IN_ZEROS[:1], None),  # one row alone
        (ENDS_IN_ZEROS[:, :, 0], None),  # a hundred features of one row
        (torch.cat([torch.ones(3, 200), torch.zeros(3, 100)], 1), PaddedBatches(1, 3, 300, 200)),
        (ENDS_IN_ZEROS.clone().requires_grad_(), None),
        (ENDS_IN_ZEROS.bfloat16(), None),
        (ENDS_IN_ZEROS.to("meta"), None),
        (ENDS_IN_ZEROS.to_sparse(), None),
        ("a text", None),
    ],
)
def test_the_values_of_a_batch_say_how_many_places_are_used(given, expected, tmp_path):
    class Model(nn.Module):
        def forward(self, x):
            return x

    with memprof.track(tmp_path / "run.json", sources=("cpu",)):
        Model()(given)
    run = load(tmp_path / "run.json")
    assert (run.padded, list(run.notes)) == (expected, [])


def test_of_several_tensors_the_emptiest_counts_and_a_mask_before_all(tmp_path):
    class Model(nn.Module):
        def forward(self, image, words, attention_mask=None):
            return image

    with memprof.track(tmp_path / "values.json", sources=("cpu",)):
        for _ in range(4):
            Model()(torch.rand(3, 64, 64), words=ENDS_IN_ZEROS)
    assert load(tmp_path / "values.json").padded == PaddedBatches(4, 3, 100, 40)
    with memprof.track(tmp_path / "mask.json", sources=("cpu",)):
        Model()(ENDS_IN_ZEROS, words=None)
        Model()(ENDS_IN_ZEROS, None, attention_mask=torch.ones(2, 50, dtype=torch.long))
    assert load(tmp_path / "mask.json").padded == PaddedBatches(1, 2, 50, 50)


def test_what_a_storage_has_not_room_for_is_not_read(tmp_path):
    """As of parameters that are sharded: their storage is emptied, and the shape stays."""

    class Model(nn.Module):
        def forward(self, x):
            return None

    shrunk = ENDS_IN_ZEROS.clone()
    shrunk.untyped_storage().resize_(shrunk.nbytes // 2)
    with memprof.track(tmp_path / "run.json", sources=("cpu",)):
        Model()(shrunk)
        Model()(torch.cat([ENDS_IN_ZEROS] * 2)[3:])  # behind the beginning of its storage
    run = load(tmp_path / "run.json")
    assert (run.padded, list(run.notes)) == (PaddedBatches(1, 3, 100, 40), [])


def test_a_batch_and_its_keys_are_not_kept(tmp_path):
    class Model(nn.Module):
        def forward(self, batch):
            return None

    class Key:
        pass

    with memprof.track(tmp_path / "run.json", sources=("cpu",)):
        key, words = Key(), WORDS.clone()
        gone = [weakref.ref(key), weakref.ref(words)]
        Model()({key: words, "words": words})
        del key, words
        assert [one() for one in gone] == [None, None]
    assert load(tmp_path / "run.json").padded == PaddedBatches(1, 2, 96, 72)


def test_no_more_calls_are_looked_at_than_so_many(tmp_path):
    class Model(nn.Module):
        def forward(self, x):
            return None

    model = Model()
    with memprof.track(tmp_path / "run.json", sources=("cpu",)):
        for _ in range(600):
            model(ENDS_IN_ZEROS)
    assert load(tmp_path / "run.json").padded == PaddedBatches(512, 3, 100, 40)
