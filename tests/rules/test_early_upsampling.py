"""early-upsampling: features are made larger before the layer that makes them narrow."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.rules.recorded import findings_of, peak_of

IMAGES, CHANNELS, CLASSES, SMALL, LARGE = 4, 24, 3, 16, 64
ENLARGED = IMAGES * CHANNELS * LARGE * LARGE * 4


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Conv2d(3, CHANNELS, 3, stride=4, padding=1)
        self.labels = nn.Conv2d(CHANNELS, CLASSES, kernel_size=1)
        self.around = nn.Conv2d(CHANNELS, CLASSES, 3, padding=1)
        self.enlarge = nn.Upsample(scale_factor=4, mode="bilinear")


class Enlarging(Head):
    def forward(self, image):
        wide = self.body(image)
        wide = F.interpolate(wide, size=image.shape[-2:], mode="bilinear")
        return self.labels(wide)


class ByModules(Head):
    def forward(self, image):
        return self.labels(self.enlarge(self.body(image)))


class Narrowing(Head):
    def forward(self, image):
        return self.enlarge(self.labels(self.body(image)))


class OfNeighbours(Head):
    """The kernel looks at several places of the enlarged features."""

    def forward(self, image):
        return self.around(self.enlarge(self.body(image)))


class ReadTwice(Head):
    def forward(self, image):
        wide = F.interpolate(self.body(image), size=image.shape[-2:], mode="bilinear")
        labels = self.labels(wide)
        return labels + wide.mean(1, keepdim=True)


def narrowing(channels, classes):
    return nn.Conv2d(channels, classes, (1, 1))


def looking_around(channels, classes):
    return nn.Conv2d(channels, classes, (1, 3), padding=(0, 1))


class MadeByFunction(Head):
    """A function makes the layer, whose kernel has a size for each dimension."""

    def __init__(self):
        super().__init__()
        self.enlarge = nn.UpsamplingBilinear2d(scale_factor=4)
        self.labels = narrowing(CHANNELS, CLASSES)

    def forward(self, image):
        wide = self.body(image)
        wide = self.enlarge(wide)
        return self.labels(wide)


class Named(Head):
    """The layers of several tasks are in a dict of modules."""

    def __init__(self):
        super().__init__()
        self.tasks = nn.ModuleDict(
            {
                "depth": nn.Conv2d(CHANNELS, 1, 3, padding=1),
                "labels": nn.Conv2d(CHANNELS, CLASSES, kernel_size=1),
            }
        )

    def forward(self, image):
        wide = F.interpolate(self.body(image), size=image.shape[-2:], mode="bilinear")
        return self.tasks["labels"](wide)


class OfNeighboursByName(Named):
    def forward(self, image):
        wide = F.interpolate(self.body(image), size=image.shape[-2:], mode="bilinear")
        return self.tasks["depth"](wide)


class OfNeighboursByFunction(MadeByFunction):
    def __init__(self):
        super().__init__()
        self.beside = looking_around(CHANNELS, CLASSES)

    def forward(self, image):
        return self.beside(self.enlarge(self.body(image)))


class OfPlaces(Head):
    """A linear layer is given each place's features."""

    def __init__(self):
        super().__init__()
        self.labels = nn.Linear(CHANNELS, CLASSES)

    def forward(self, image):
        wide = F.interpolate(self.body(image), size=image.shape[-2:], mode="nearest")
        return self.labels(wide.permute(0, 2, 3, 1))


class OfRows(Head):
    """A linear layer is given the places of each row."""

    def __init__(self):
        super().__init__()
        self.labels = nn.Linear(LARGE, CLASSES)

    def forward(self, image):
        wide = F.interpolate(self.body(image), size=image.shape[-2:], mode="nearest")
        return self.labels(wide)


def training(head):
    def program():
        model = head()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)

        def step(number):
            optimizer.zero_grad()
            model(torch.rand(IMAGES, 3, LARGE, LARGE)).square().mean().backward()
            optimizer.step()

        return step

    return program


fires = training(Enlarging)
looks_alike = training(Narrowing)


def enlarged_first(program, path):
    return [one for one in findings_of(program, path) if one.rule == "early-upsampling"]


@pytest.mark.parametrize("head", [Enlarging, ByModules, MadeByFunction, OfPlaces])
def test_the_layer_is_to_come_first_and_what_it_saves(head, tmp_path):
    (one,) = enlarged_first(training(head), tmp_path / "run.json")
    (first,) = one.remedies
    assert (one.minor, first.fix) == (False, "upsample_last")
    assert one.title.endswith(f"are enlarged before `{head.__name__}.labels` makes them narrow")
    assert one.bytes in (ENLARGED, 2 * ENLARGED)
    findings_of(looks_alike, tmp_path / "narrow.json")
    saved = peak_of(tmp_path / "run.json") - peak_of(tmp_path / "narrow.json")
    assert first.saves_bytes == pytest.approx(saved, rel=0.1)


@pytest.mark.parametrize(
    "head",
    [
        *(Narrowing, OfNeighbours, OfNeighboursByFunction, OfNeighboursByName, OfRows, ReadTwice),
    ],
)
def test_features_that_are_needed_are_left_alone(head, tmp_path):
    assert enlarged_first(training(head), tmp_path / "run.json") == []


def test_a_layer_may_be_in_a_dict_of_modules(tmp_path):
    (one,) = enlarged_first(training(Named), tmp_path / "run.json")
    (first,) = one.remedies
    assert one.title.endswith("are enlarged before `Named.tasks.labels` makes them narrow")
    assert (one.minor, first.fix) == (False, "upsample_last")
    assert one.bytes in (ENLARGED, 2 * ENLARGED)
