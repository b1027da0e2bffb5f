"""bytes-as-floats: values of 0 to 255 are kept as fractions in a floating type, over the steps."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.rules.recorded import findings_of

FRAMES, SIDE = 64, 32


chance = np.random.default_rng(0)


def taken():
    return chance.integers(251, size=(3, SIDE, SIDE), dtype=np.uint8)


class Ring:
    """A replay buffer of frames of a camera."""

    def __init__(self):
        self.frames = torch.zeros(FRAMES, 3, SIDE, SIDE)

    def add(self, number, frame):
        self.frames[number % FRAMES] = torch.from_numpy(frame).float() / 255.0

    def step(self, number):
        self.add(number, taken())
        return self.frames[:4].mean().item()


class ByName:
    def __init__(self):
        self.frames = torch.zeros(FRAMES, 3, SIDE, SIDE)

    def step(self, number):
        values = torch.from_numpy(taken()).float().div_(255)
        self.frames[number % FRAMES].copy_(values)


class Listed:
    def __init__(self):
        self.frames = [torch.from_numpy(taken()).float() / 255 for _ in range(FRAMES)]

    def step(self, number):
        return self.frames[number].mean().item()


class Normalized:
    """All of a data set, less its mean, by its deviation: parts of it are the peak."""

    def __init__(self):
        images = torch.full((FRAMES, 3, SIDE, SIDE), 7, dtype=torch.uint8)
        self.frames = (images.float() / 255.0 - 0.5) / 0.25

    def step(self, number):
        return self.frames[number % FRAMES].mean().item()


class DividedWhenRead:
    """Frames are kept as they come, in the type that `torch.zeros` has by itself."""

    def __init__(self):
        self.frames = torch.zeros(FRAMES, 3, SIDE, SIDE)

    def step(self, number):
        self.frames[number % FRAMES] = torch.from_numpy(taken())
        return (self.frames[number : number + 4].float() / 255).mean().item()


class OfTiles:
    """Frames of tiles, which have one colour each: the same values are there again and again."""

    def __init__(self):
        self.frames = torch.zeros(FRAMES, 3, SIDE, SIDE)

    def step(self, number):
        for at in range(FRAMES if number == 0 else 1):
            tiles = torch.from_numpy(chance.integers(1, 251, size=(3, 8, 8), dtype=np.uint8))
            frame = tiles.repeat_interleave(4, 1).repeat_interleave(4, 2)
            self.frames[(number + at) % FRAMES] = frame
        return (self.frames[number] / 255.0).mean().item()


class OfBytes:
    """Bytes are kept, and a batch of them is divided."""

    def __init__(self):
        self.frames = torch.zeros(FRAMES, 3, SIDE, SIDE, dtype=torch.uint8)

    def step(self, number):
        self.frames[number % FRAMES] = torch.from_numpy(taken())
        return (self.frames[:4].float() / 255).mean().item()


class OfAngles:
    """What is kept is no byte."""

    def __init__(self):
        self.frames = torch.zeros(FRAMES, 3, SIDE, SIDE)

    def step(self, number):
        self.frames[number % FRAMES] = torch.from_numpy(taken()).float() / 180.0


def fires():
    return Ring().step


def fires_by_name():
    return ByName().step


def fires_on_a_list():
    return Listed().step


def fires_on_a_data_set():
    return Normalized().step


class NormalizedInPlace:
    def __init__(self):
        images = torch.full((FRAMES, 3, SIDE, SIDE), 7, dtype=torch.uint8)
        self.frames = images.float().div_(255).sub_(0.5).div_(0.25)

    def step(self, number):
        return self.frames[number % FRAMES].mean().item()


def fires_on_a_chain():
    return NormalizedInPlace().step


def fires_where_parts_are_read():
    return DividedWhenRead().step


def fires_on_tiles():
    return OfTiles().step


def looks_alike():
    return OfBytes().step


def of_angles():
    return OfAngles().step


def heard():
    return torch.randn(3, SIDE, SIDE), 1


def normalized():
    """A wave that is made of itself, less its mean."""
    wave, label = heard()
    wave = (wave - wave.mean()) / wave.std()
    return {"wave": wave, "label": label}


class Waves:
    def __init__(self):
        self.waves = [normalized() for _ in range(FRAMES)]

    def step(self, number):
        return self.waves[number]["wave"].mean().item()


def of_waves():
    return Waves().step


def kept_bytes(program, path):
    return [one for one in findings_of(program, path) if one.rule == "bytes-as-floats"]


@pytest.mark.parametrize(
    ("program", "code"),
    [
        (fires, "self.frames[number % FRAMES] = torch.from_numpy(frame).float() / 255.0"),
        (fires_by_name, "self.frames[number % FRAMES].copy_(values)"),
        (
            fires_on_a_list,
            "self.frames = [torch.from_numpy(taken()).float() / 255 for _ in range(FRAMES)]",
        ),
        (fires_on_a_chain, "self.frames = images.float().div_(255).sub_(0.5).div_(0.25)"),
        (fires_where_parts_are_read, "self.frames = torch.zeros(FRAMES, 3, SIDE, SIDE)"),
        (fires_on_tiles, "self.frames = torch.zeros(FRAMES, 3, SIDE, SIDE)"),
    ],
)
def test_three_quarters_are_saved_where_the_bytes_are_kept(program, code, tmp_path):
    (found,) = kept_bytes(program, tmp_path / "r.json")
    (first,) = found.remedies
    assert (found.minor, found.bytes) == (False, FRAMES * 3 * SIDE * SIDE * 4)
    assert (first.fix, first.code) == ("keep_bytes", code)
    assert first.saves_bytes == found.bytes * 3 // 4


@pytest.mark.parametrize("program", [looks_alike, of_angles, of_waves])
def test_bytes_and_other_values_are_left_alone(program, tmp_path):
    assert not kept_bytes(program, tmp_path / "r.json")


def test_what_is_made_on_the_way_is_spared_as_well(tmp_path):
    (found,) = kept_bytes(fires_on_a_data_set, tmp_path / "r.json")
    whole = FRAMES * 3 * SIDE * SIDE * 4
    (first,) = found.remedies
    assert first.code == "self.frames = (images.float() / 255.0 - 0.5) / 0.25"
    assert (first.peak_before, first.peak_after) == (2 * whole + whole // 4, whole // 2)


class OfTransitions:
    """Frames before a step and after it, each in a tensor of its own."""

    def __init__(self):
        self.frames = torch.zeros(FRAMES, 3, SIDE, SIDE)
        self.frames_after = torch.zeros(FRAMES, 3, SIDE, SIDE)

    def step(self, number):
        self.frames[number % FRAMES] = torch.from_numpy(taken())
        self.frames_after[number % FRAMES] = torch.from_numpy(taken())
        before = self.frames[number : number + 4].float() / 255
        after = self.frames_after[number : number + 4].float() / 255
        return (after - before).mean().item()


def test_all_that_is_kept_so_is_told_at_once(tmp_path):
    found, *_ = findings_of(lambda: OfTransitions().step, tmp_path / "run.json")
    kept = 2 * FRAMES * 3 * SIDE * SIDE * 4
    assert (found.rule, found.bytes) == ("bytes-as-floats", kept)
    assert found.remedies[0].saves_bytes == kept * 3 // 4


def kept_in_floats(values, others=0):
    """A ring of frames that no rule can follow: a function of somebody else's draws them."""

    def program():
        frames = values(torch.zeros(FRAMES, 3, SIDE, SIDE))
        beside = torch.randn(others)

        def step(number):
            return frames[number % FRAMES].mean().item() + len(beside)

        return step

    return program


def of_few(frames):
    return frames + torch.randint(60, frames.shape)


def of_many(frames):
    return frames + torch.randn(frames.shape)


def test_values_that_a_byte_tells_apart_are_told_by_samples(tmp_path):
    (found,) = kept_bytes(kept_in_floats(of_few), tmp_path / "r.json")
    (first,) = found.remedies
    assert not found.minor
    assert found.title.endswith("have 60 different values, in 4 bytes each")
    assert (first.fix, first.code) == (
        "keep_bytes",
        "return frames + torch.randint(60, frames.shape)",
    )
    assert abs(first.saves_bytes - found.bytes * 3 / 4) <= 0.01 * found.bytes


def test_beside_as_much_else_they_are_no_headline(tmp_path):
    program = kept_in_floats(of_few, others=FRAMES * 3 * SIDE * SIDE)
    found = findings_of(program, tmp_path / "r.json")
    assert found
    assert all(one.minor for one in found)


def test_of_many_different_values_nothing_is_said(tmp_path):
    assert not kept_bytes(kept_in_floats(of_many), tmp_path / "r.json")
