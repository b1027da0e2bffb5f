"""large-evaluation: a model evaluates many times as much at once as it learns from in a step."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from memprof.loading import load
from tests.rules.recorded import findings_of, names

BATCH, WIDTH = 32, 256


def trains(rows, *, learns_from=BATCH):
    """Steps of a batch each, and an evaluation of so many rows before each of them."""

    def program():
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)

        @torch.no_grad()
        def evaluate():
            return model(torch.rand(rows, WIDTH)).mean().item()

        def step(number):
            evaluate()
            optimizer.zero_grad()
            model(torch.rand(learns_from, WIDTH)).square().mean().backward()
            optimizer.step()

        return step

    return program


fires = trains(32 * BATCH)
looks_alike = trains(2 * BATCH)


def test_the_call_of_the_model_is_the_line_and_a_training_batch_the_measure(tmp_path):
    (found, *_) = findings_of(fires, tmp_path / "run.json")
    (remedy, *_) = found.remedies
    assert (found.rule, found.minor) == ("large-evaluation", False)
    assert found.title.endswith(
        "are made to evaluate 32 times as much at once as a step learns from"
    )
    assert (remedy.fix, remedy.code) == (
        "smaller_batch",
        "return model(torch.rand(rows, WIDTH)).mean().item()",
    )
    assert remedy.why.startswith("A line of the model makes 1 MiB here, and 32 KiB in a training")
    assert remedy.saves_bytes == round(found.match.saving.bytes * 31 / 32)


def only_evaluates():
    model = nn.Linear(WIDTH, WIDTH)

    @torch.no_grad()
    def step(number):
        rows = BATCH if number % 2 else 32 * BATCH
        model(torch.ones(rows, WIDTH)).mean().item()

    return step


def learns_from_much():
    """The peak is that of a step which learns: of more than the evaluation."""
    return trains(8 * BATCH, learns_from=64 * BATCH)()


@pytest.mark.parametrize("program", [only_evaluates, learns_from_much])
def test_nothing_is_said_where_training_takes_as_much_or_there_is_none(program, tmp_path):
    assert "large-evaluation" not in names(program, tmp_path / "run.json")


def of_images(images):
    """Learns from eight crops, and then denoises so many whole images."""

    def program():
        model = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1)
        )

        @torch.no_grad()
        def denoise():
            return model(torch.ones(images, 1, 256, 256)).mean().item()

        def step(number):
            denoise()
            model.zero_grad()
            model(torch.ones(8, 1, 16, 16)).square().mean().backward()

        return step

    return program


@pytest.mark.parametrize(("images", "found"), [(1, False), (16, True)])
def test_one_whole_image_is_no_larger_batch_than_many_crops(images, found, tmp_path):
    rules = names(of_images(images), tmp_path / "run.json")
    assert ("large-evaluation" in rules) is found
    sizes = load(tmp_path / "run.json").batch_sizes
    assert (sizes.learned, sizes.evaluated) == (8, images)
