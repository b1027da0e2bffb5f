"""full-spectrum: real values are transformed as complex ones are, and one half is read."""

from __future__ import annotations

import pytest
import torch

from tests.rules.recorded import findings_of, names, peak_of

FRAMES, LENGTH = 256, 1024
REAL = FRAMES * LENGTH * 4


def in_steps(total_of, dtype=torch.float32):
    def program():
        frames, window = torch.randn(FRAMES, LENGTH, dtype=dtype), torch.hann_window(LENGTH)
        return lambda number: total_of(frames, window).sum().item()

    return program


def of_all(frames, window):
    spectrum = torch.fft.fft(frames * window)
    power = spectrum.abs().square_()
    return power[:, : LENGTH // 2 + 1].add(1e-6)


def by_rfft(frames, window):
    spectrum = torch.fft.rfft(frames * window)
    power = spectrum.abs().square_()
    return power.add(1e-6)


def in_one_line(frames, window):
    half = frames.shape[-1] // 2
    return torch.abs(torch.fft.fft(frames * window, dim=-1))[..., :half]


def by_convolution(frames, window):
    """All of it is needed for the way back."""
    spectrum = torch.fft.fft(frames * window)
    return torch.fft.ifft(spectrum * spectrum.conj()).real[:, : LENGTH // 2]


def of_rows(frames, window):
    """One half of the frames are read, and their spectra whole."""
    spectrum = torch.fft.fft(frames * window)
    return spectrum.abs()[: FRAMES // 2]


def under_its_own_name(frames, window):
    """The half takes the name of what it is a half of."""
    magnitude = torch.fft.fft(frames * window).abs()
    magnitude = magnitude[..., : LENGTH // 2 + 1]
    return magnitude.log1p()


def spectrum_of(values):
    return torch.fft.fft(values)


def magnitude_of(values):
    magnitude = torch.abs(spectrum_of(values)) / LENGTH
    return magnitude.narrow(-1, 0, values.shape[-1] // 2 + 1)


def by_functions(frames, window):
    """Twice: one function transforms, another one takes the half."""
    return magnitude_of(frames) - magnitude_of(frames * window)


def along_the_second(frames, window):
    """Series lie along the second dimension of three."""
    spectrum = torch.fft.fft((frames * window).view(4, LENGTH, -1), dim=1)
    return spectrum.abs()[:, : LENGTH // 2]


def along_another(frames, window):
    """A half is taken of another dimension than was transformed."""
    spectrum = torch.fft.fft((frames * window).view(4, LENGTH, -1), dim=1)
    return spectrum.abs()[:, :, : FRAMES // 4 // 2]


def all_of_it(values):
    return torch.fft.fft(values * 0.5)


def by_two_callers(frames, window):
    """What a function returns is read whole by one of its callers."""
    return all_of_it(frames * window).abs()[:, : LENGTH // 2] + all_of_it(frames).abs().mean()


def of_views_of_complex_values():
    """Frames overlap, so nothing is as large as they are but what is computed of them."""
    frames = torch.randn(8 * LENGTH, dtype=torch.complex64).unfold(0, LENGTH, 32)
    state = {}

    def step(number):
        spectrum = torch.fft.fft(frames)
        state["power"] = spectrum.abs()
        return state["power"][:, : LENGTH // 2].sum().item()

    return step


def of_weighted_complex_values():
    frames = torch.randn(8 * LENGTH, dtype=torch.complex64).unfold(0, LENGTH, 32)
    weights = torch.rand(frames.shape)

    def step(number):
        spectrum = torch.fft.fft(frames * weights)
        return spectrum.abs()[:, : LENGTH // 2].sum().item()

    return step


fires = in_steps(of_all)
looks_alike = in_steps(of_all, torch.complex64)


@pytest.mark.parametrize(
    "total_of", [of_all, in_one_line, under_its_own_name, by_functions, along_the_second]
)
def test_the_half_that_is_read_is_told(total_of, tmp_path):
    found = findings_of(in_steps(total_of), tmp_path / "run.json")[0]
    (first,) = found.remedies
    assert (found.rule, found.minor, first.fix) == ("full-spectrum", False, "rfft")
    assert found.bytes >= 2 * REAL


def test_it_saves_one_half_of_the_spectrum_and_of_what_is_computed(tmp_path):
    found = findings_of(fires, tmp_path / "run.json")[0]
    (first,) = found.remedies
    assert first.code == "spectrum = torch.fft.fft(frames * window)"
    findings_of(in_steps(by_rfft), tmp_path / "real.json")
    saved = peak_of(tmp_path / "run.json") - peak_of(tmp_path / "real.json")
    assert first.saves_bytes == pytest.approx(saved, rel=0.05)


@pytest.mark.parametrize(
    "program",
    [
        looks_alike,
        of_views_of_complex_values,
        of_weighted_complex_values,
        in_steps(by_convolution),
        *(in_steps(of_rows), in_steps(along_another), in_steps(by_two_callers)),
        in_steps(by_rfft),
    ],
)
def test_complex_values_and_spectra_that_are_read_whole_are_left_alone(program, tmp_path):
    assert "full-spectrum" not in names(program, tmp_path / "run.json")
