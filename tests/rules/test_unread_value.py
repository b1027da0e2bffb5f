"""unread-value: a function that goes on has a variable which it reads no more."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import memprof
from memprof.rules.ranked_findings import findings
from tests.rules.recorded import findings_of

ROWS, WIDTH = 256, 1024


def fires():
    """The images stay while something larger is made of what was read off them."""

    def step(number):
        images = torch.rand(ROWS, WIDTH)
        features = encode(images)
        table = features.T @ features
        return (table @ table).sum().item()

    return step


def looks_alike():
    """They are compared with the result."""

    def step(number):
        images = torch.rand(ROWS, WIDTH)
        features = encode(images)
        table = features.T @ features
        return (images[:, : WIDTH // 2] @ table).sum().item()

    return step


def encode(images):
    return images.mean(1, keepdim=True) * torch.ones(1, WIDTH // 2)


def load():
    images = torch.rand(ROWS, WIDTH)
    labels = torch.randint(2, (ROWS,))
    return labels, images


def train(features, labels):
    head = nn.Linear(WIDTH // 2, 2)
    optimizer = torch.optim.SGD(head.parameters(), 0.1)
    for _ in range(6):
        loss = nn.functional.cross_entropy(head(features.relu()), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        memprof.step()


def done_with_images():
    labels, images = load()
    features = encode(images)
    train(features, labels)


KEPT = []


def load_with_sizes():
    labels, images = load()
    sizes = torch.ones(ROWS, 2 * WIDTH)
    KEPT.append(sizes)
    return labels, images, sizes


def takes_the_first_two():
    labels, images = load_with_sizes()[:2]
    features = encode(images)
    train(features, labels)
    KEPT.clear()
    return images


def reads_them_later():
    labels, images = load()
    features = encode(images)
    train(features, labels)
    return images.shape, images.sum().item()


def reads_them_in_the_next_pass():
    labels, images = load()
    for _ in range(2):
        features = encode(images)
        train(features, labels)


def has_a_view_of_them():
    labels, images = load()
    first = images[:1]
    features = encode(images)
    train(features, labels)
    return first


def put_them_away():
    labels, images = load()
    kept = []
    kept.append(images)
    features = encode(images)
    train(features, labels)


def reads_them_in_a_function():
    labels, images = load()

    def size():
        return images.numel()

    features = encode(images)
    train(features, labels)
    return size


def recorded(job, path):
    with memprof.track(path, sources=["cpu"], allowance_s=60):
        job()
    return findings(memprof.load(path))


def test_the_variable_and_its_last_read_are_named(tmp_path):
    (found,) = (
        one for one in recorded(done_with_images, tmp_path / "r.json") if one.rule == "unread-value"
    )
    (first,) = found.remedies
    assert (found.minor, found.bytes) == (False, ROWS * WIDTH * 4)
    assert found.site.code == "images = torch.rand(ROWS, WIDTH)"
    assert (first.fix, first.code) == ("del_ref", "features = encode(images)")
    # What is left is the peak of before: while the features are made, of means and ones.
    images, features, labels = found.bytes, found.bytes // 2, ROWS * 8
    before = images + features + labels + ROWS * 4 + WIDTH // 2 * 4
    assert first.peak_after == before == first.peak_before - first.saves_bytes


@pytest.mark.parametrize(
    "job",
    [
        reads_them_later,
        reads_them_in_the_next_pass,
        has_a_view_of_them,
        put_them_away,
        reads_them_in_a_function,
        takes_the_first_two,
    ],
)
def test_nothing_is_said_of_what_is_read_or_held_otherwise(job, tmp_path):
    rules = [one.rule for one in recorded(job, tmp_path / "r.json")]
    assert "unread-value" not in rules


def test_a_small_value_of_the_same_step_is_none(tmp_path):
    """A seventh of the peak: few functions let go of each value once they have read it."""

    def job():
        for _ in range(6):
            images = torch.rand(96, WIDTH)
            features = encode(images)
            table = features.T @ features
            (table @ table).sum().item()
            memprof.step()

    assert [one for one in recorded(job, tmp_path / "run.json") if one.rule == "unread-value"] == []


class Reader(nn.Module):
    """It returns a product of matrices, and beside it what it was computed of."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(64, 4 * WIDTH)

    def forward(self, x):
        hidden = x.relu()
        return self.head(hidden), hidden


class Trainer:
    def __init__(self):
        self.model, self.criterion = Reader(), nn.CrossEntropyLoss()

    def step(self, number):
        x, wanted = torch.rand(ROWS, 64), torch.randint(4 * WIDTH, (ROWS,))
        logits, _ = self.model(x)
        loss = self.criterion(logits.reshape(ROWS, -1), wanted)
        loss.backward()
        self.model.zero_grad()


def test_one_of_several_results_is_known_by_its_place(tmp_path):
    found = findings_of(lambda: Trainer().step, tmp_path / "run.json")[0]
    (first,) = found.remedies
    assert (found.rule, found.bytes) == ("unread-value", ROWS * 4 * WIDTH * 4)
    assert "stay in `logits`, which nothing reads after line" in found.title
    assert (first.fix, first.saves_bytes) == ("del_ref", ROWS * 4 * WIDTH * 4)
    assert first.code == "loss = self.criterion(logits.reshape(ROWS, -1), wanted)"


class Buffer:
    def __init__(self):
        self.x = torch.zeros(ROWS, WIDTH)


def has_an_object():
    """What an object has may be asked of it in more ways than its name is read in."""
    buffer = Buffer()
    labels, images = load()
    features = encode(images + buffer.x)
    train(features, labels)
    return images


def test_an_object_of_the_programs_own_is_no_value(tmp_path):
    rules = [one.rule for one in recorded(has_an_object, tmp_path / "r.json")]
    assert "unread-value" not in rules
