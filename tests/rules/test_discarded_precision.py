"""discarded-precision: values are kept in float64, and made float32 before they are used."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from tests.rules import frequencies, several_types
from tests.rules.recorded import findings_of, findings_of_fork, names

FRAMES, WIDTH = 512, 128


def features(table, taken=torch.Tensor.float):
    model = nn.Linear(WIDTH, 4)

    def step(_):
        audio = torch.randn(FRAMES, WIDTH)
        frames = audio * table
        with torch.no_grad():
            model(taken(frames.abs().log1p()))

    return step


def fires():
    """NumPy's window is float64, and with it all that is computed of audio in float32."""
    return features(torch.from_numpy(np.hanning(WIDTH)))


def looks_alike():
    """The same in double precision on purpose: the program says so itself."""
    return features(torch.hann_window(WIDTH, dtype=torch.float64))


def in_single_precision():
    return features(torch.from_numpy(np.hanning(WIDTH)).float())


def never_given_up():
    return features(
        torch.from_numpy(np.hanning(WIDTH)),
        lambda frames: frames[:, :0].new_zeros(1, WIDTH, dtype=torch.float32),
    )


def accumulated():
    """A sum that wants more digits than its terms have."""
    model = nn.Linear(WIDTH, 4)

    def step(_):
        x = torch.randn(FRAMES, WIDTH)
        with torch.no_grad():
            model(x - x.double().square().cumsum(0).mean(0).float())

    return step


class Sums:
    """Adds up what a model returns, weighted; the sums take the weights' type."""

    def __init__(self, weights):
        self.weights, self.model = weights, nn.Linear(WIDTH, WIDTH)

    @torch.no_grad()
    def step(self, number):
        sums = torch.zeros((FRAMES, WIDTH), dtype=self.weights.dtype)
        for _ in range(3):
            out = self.model(torch.randn(FRAMES, WIDTH))
            sums.addcmul_(out.to(sums.dtype), self.weights)
        return sums.argmax(1)


class Canvas(Sums):
    """The room for the sums is asked of the weights themselves."""

    @torch.no_grad()
    def step(self, number):
        sums = self.weights.new_zeros(FRAMES, WIDTH)
        for _ in range(3):
            out = self.model(torch.randn(FRAMES, WIDTH))
            sums.addcmul_(out.to(sums.dtype), self.weights)
        return sums.argmax(1)


class Simulation:
    """All of it is in the type of the data, and a mask takes that type as well."""

    def __init__(self, weights):
        self.weights = weights

    def step(self, number):
        sums = self.weights.new_zeros(FRAMES, WIDTH)
        for _ in range(3):
            mask = torch.rand(FRAMES, WIDTH) > 0.5
            sums.addcmul_(mask.to(sums.dtype), self.weights)
        return sums.argmax(1)


def weights():
    """They are multiplied, so that an operator shows what they are."""
    return torch.from_numpy(np.hanning(FRAMES * WIDTH)).reshape(FRAMES, WIDTH) * 2


def of_the_weights_type():
    return Sums(weights()).step


def of_narrow_weights_type():
    return Sums(weights().float()).step


def of_a_type_that_was_asked_for():
    return Sums(torch.hann_window(FRAMES * WIDTH, dtype=torch.float64).view(FRAMES, WIDTH)).step


def test_sums_take_the_type_of_data_that_came_in_float64(tmp_path):
    (found,) = [
        one
        for one in findings_of(of_the_weights_type, tmp_path / "run.json")
        if one.rule == "discarded-precision"
    ]
    first = found.remedies[0]
    assert found.bytes == FRAMES * WIDTH * 8
    assert first.saves_bytes == FRAMES * WIDTH * 4
    assert first.why.startswith("`dtype=self.weights.dtype` takes the type of data that came")
    assert first.line == Sums.step.__wrapped__.__code__.co_firstlineno + 2
    for number, other in enumerate((of_narrow_weights_type, of_a_type_that_was_asked_for)):
        assert "discarded-precision" not in names(other, tmp_path / f"{number}.json")


def test_room_that_such_data_is_asked_for_is_of_its_type_as_well(tmp_path):
    found = findings_of(lambda: Canvas(weights()).step, tmp_path / "run.json")
    (one,) = [one for one in found if one.rule == "discarded-precision"]
    first = one.remedies[0]
    assert one.bytes == FRAMES * WIDTH * 8
    assert first.saves_bytes == FRAMES * WIDTH * 4
    assert first.why.startswith("`self.weights.new_zeros` takes the type of data that came")
    assert first.code == "sums = self.weights.new_zeros(FRAMES, WIDTH)"
    others = (Canvas(weights().float()), Simulation(weights()))
    for number, other in enumerate(others):
        found = names(lambda job=other: job.step, tmp_path / f"{number}.json")
        assert "discarded-precision" not in found


def series(batch, count=8):
    """A data set of NumPy's in parts, of which each step takes a window."""
    data = torch.from_numpy(np.random.default_rng(0).standard_normal((FRAMES, WIDTH)))
    data = (data - data.mean(0)) / data.std(0)
    model = nn.Linear(WIDTH, 4)

    def step(number):
        with torch.no_grad():
            model(data[batch(number, FRAMES // count)].float())

    return step


def all_of_it():
    return series(lambda number, rows: slice(number % 8 * rows, (number % 8 + 1) * rows))


def some_batches():
    """Steps take less than all of it, each another part."""
    return series(lambda number, rows: slice(number % 8 * 8, number % 8 * 8 + 8), count=1)


def one_row():
    return series(lambda number, rows: slice(0, 1))


def of_rule(program, path):
    return [one for one in findings_of(program, path) if one.rule == "discarded-precision"]


def test_the_line_where_the_types_meet_is_told_with_half_of_what_it_makes(tmp_path):
    (found,) = of_rule(fires, tmp_path / "run.json")
    assert found.site.code == "frames = audio * table"
    assert found.bytes == 3 * FRAMES * WIDTH * 8
    assert found.match.saving.bytes == found.bytes // 2
    assert [one.fix for one in found.remedies] == ["single_precision"]
    assert not found.minor


def test_data_that_is_converted_as_it_is_used_is_told_where_it_is_made(tmp_path):
    (found,) = of_rule(all_of_it, tmp_path / "run.json")
    assert found.site.code == "data = (data - data.mean(0)) / data.std(0)"
    assert found.bytes == FRAMES * WIDTH * 8


def test_data_of_which_the_steps_take_a_part_is_given_up_as_well(tmp_path):
    (found,) = of_rule(some_batches, tmp_path / "run.json")
    assert found.site.code == "data = (data - data.mean(0)) / data.std(0)"
    assert found.match.saving.bytes == found.bytes // 2


def test_what_is_not_given_up_again_or_was_asked_for_is_meant(tmp_path):
    for program in (in_single_precision, never_given_up, accumulated, one_row):
        assert "discarded-precision" not in names(program, tmp_path / "run.json"), program


def wide_alone(program, path):
    """The same in a process whose files name no type, but for torch's and NumPy's."""
    return [one for one in findings_of_fork(program, path) if one.rule == "discarded-precision"]


def test_a_conversion_to_the_type_of_data_is_told_where_no_file_asks_for_it(tmp_path):
    (found,) = wide_alone(frequencies.typed_as_frequencies, tmp_path / "run.json")
    first = found.remedies[0]
    assert found.site.code == "return torch.sin(rates[:, None] * torch.arange(LENGTH))"
    assert found.bytes % (frequencies.STATES * frequencies.LENGTH * 8) == 0
    assert found.match.saving.bytes == found.bytes // 2
    assert first.why.startswith("`self.frequencies.dtype` takes the type of data that came in")
    assert first.code == "return torch.from_numpy(np.linspace(0, 1, STATES))"
    narrow, wide = frequencies.of_narrow_frequencies, frequencies.kept_wide
    for program in (narrow, wide, several_types.of_several_types):
        assert wide_alone(program, tmp_path / "run.json") == [], program
