"""undivided-batch: a library works on a whole batch at once, and has a switch to divide it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from memprof.loading import load
from memprof.views.examination import examine
from tests.rules.recorded import findings_of, names

PICTURES, VALUES, SCALE = 8, 4096, 16
LIBRARY = Path(__file__).with_name("site-packages") / "painter" / "__init__.py"


def decoder():
    """A decoder of the library, as if that were installed."""
    if "painter" not in sys.modules:
        spec = importlib.util.spec_from_file_location("painter", LIBRARY)
        sys.modules["painter"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["painter"])
    return sys.modules["painter"].Decoder(SCALE)


@pytest.fixture(autouse=True)
def _gone_afterwards():
    yield
    for name in ("painter", "painter.division"):
        sys.modules.pop(name, None)


class Gallery:
    def __init__(self, divided=False):
        self.decoder = decoder()
        if divided:
            self.decoder.enable_division()

    @torch.no_grad()
    def step(self, number):
        return self.decoder.decode(torch.rand(PICTURES, VALUES)).mean().item()


def fires():
    return Gallery().step


def divided():
    return Gallery(divided=True).step


def looks_alike():
    """The function asks a switch too, but divides nothing by it."""
    one = decoder()

    @torch.no_grad()
    def step(number):
        return one.encode(torch.rand(PICTURES, VALUES)).mean().item()

    return step


def learning():
    """What the backward pass needs is there for all parts in the end."""
    one = decoder()

    def step(number):
        latents = torch.rand(PICTURES, VALUES, requires_grad=True)
        one.decode(latents).mean().backward()

    return step


def test_the_switch_is_named_as_the_program_would_throw_it(tmp_path):
    (found,) = findings_of(fires, tmp_path / "run.json")
    (first,) = found.remedies
    assert (found.rule, found.minor) == ("undivided-batch", False)
    assert found.title.endswith(" of the peak) are made for a whole batch at once by `decode`")
    of_sums = 512  # a block
    assert found.bytes == 2 * PICTURES * VALUES * SCALE * 4 + of_sums
    assert first.why.startswith("`self.decoder.enable_division()` has `decode` work on the parts")
    assert "self.decoder.decode(torch.rand(PICTURES, VALUES))" in first.code


def test_no_more_is_promised_than_two_pictures_would_save(tmp_path):
    (found,) = findings_of(fires, tmp_path / "run.json")
    findings_of(divided, tmp_path / "divided.json")
    before, after = (peak(tmp_path / name) for name in ("run.json", "divided.json"))
    made_at_once = 2 * PICTURES * VALUES * SCALE * 4
    assert made_at_once / 2 <= found.remedies[0].saves_bytes < 0.51 * made_at_once
    assert found.remedies[0].saves_bytes <= before - after


def peak(path):
    (device,) = examine(load(path)).devices
    return device.peak_allocated


@pytest.mark.parametrize("program", [divided, learning])
def test_nothing_is_said_where_it_is_thrown_or_would_save_nothing(program, tmp_path):
    assert "undivided-batch" not in names(program, tmp_path / "run.json")


def sketching():
    """No tensor is large, and all of them together are nearly all of the peak."""
    one = decoder()

    @torch.no_grad()
    def step(number):
        return one.sketch(torch.rand(PICTURES, VALUES)).mean().item()

    return step


def test_many_tensors_of_a_batch_may_be_made_none_of_which_is_large(tmp_path):
    (found,) = findings_of(sketching, tmp_path / "run.json")
    (first,) = found.remedies
    assert (found.rule, found.minor, first.fix) == ("undivided-batch", False, "divide_batch")
    assert found.title.endswith(" are made for a whole batch at once by `sketch`")
    every = sum(range(SCALE, SCALE + 12)) * PICTURES * VALUES * 4
    assert every <= found.bytes < 1.02 * every
    assert first.why.startswith("`one.enable_division()` has `sketch` work on the parts")
