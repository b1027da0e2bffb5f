"""full-spectrum: real values are transformed as complex ones are, and one half is read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.large_tensor import LargeTensor, large_tensor, made_by_its_statement
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.half_spectra import half_spectrum
from memprof.units import format_bytes
from memprof.views.stacks import made_at_lines
from memprof.views.window import Bools, Window

__all__ = ["RULE"]

_HALF = 2
"""Real values take one half of the bytes of as many complex ones; so does one half of a spectrum
beside all of it."""


@dataclass(frozen=True, slots=True, eq=False)
class FullSpectrum(Match):
    """What is read of it."""

    text: str = ""


class FullSpectrumRule(WasteRule[FullSpectrum]):
    """`torch.fft.fft(frames).abs()[:, : n // 2 + 1]`: the other half mirrors this one."""

    name = "full-spectrum"
    summary = "real values are transformed as complex ones are, and one half is read"
    fixes = ("rfft",)

    def matches(self, window: Window) -> Iterator[FullSpectrum]:
        """The large tensor of the peak, a transform of real values of which one half is read."""
        large = large_tensor(window)
        if large is None or large.place is None or not made_by_its_statement(window, large.row):
            return
        half = half_spectrum(large.place)
        if half is None:
            return
        lives, size = window.lives, window.lives.requested[large.row]
        computed = made_at_lines(window, large.place.program.filename, half.lines)
        if not _is_of_real(window, large, computed):
            return
        computed &= ~window.has_owner
        # Magnitudes are real: they take one half of the bytes.
        computed &= (lives.requested == size) | (lives.requested == size // _HALF)
        rows = np.flatnonzero(computed | large.in_every_step)
        there = rows[window.at_peak[rows]]
        yield FullSpectrum(
            row=large.row,
            rows=there,
            nbytes=int(lives.size[there].sum()),
            saving=window.replayed(window.whole(rows), divisor=_HALF),
            text=half.text,
        )

    def title(self, match: FullSpectrum) -> str:
        """Say what is read of them."""
        return f"are spectra of real values, of which only `{match.text}` is read"

    def advice(self, match: FullSpectrum, case: Case) -> Iterator[Advice]:
        """Transform them as real values."""
        why = (
            f"Of {format_bytes(match.nbytes)} only `{match.text}` is read: of real values the "
            "other half of the spectrum mirrors this one. `torch.fft.rfft` computes this one "
            "alone, `n // 2 + 1` values."
        )
        yield Advice("rfft", why, case.site)


def _is_of_real(window: Window, large: LargeTensor, computing: Bools) -> bool:
    """Whether what is transformed is real: something has one half of the bytes, and nothing all.

    What the lines that are ``computing`` with the spectrum made before is none of it. Of a view of
    something else that cannot be told.
    """
    lives, row = window.lives, large.row
    on_line = (window.site == window.site[row]) & (window.made_in == window.made_in[row])
    before = (lives.alloc < lives.alloc[row]) & (lives.free > lives.alloc[row])
    given = before & (on_line | ~computing)
    # The first of its size may be the operand, which the line itself computes. Once another line
    # has made something, it is the next time that this one runs.
    elsewhere = lives.alloc[(window.site != window.site[row]) & (lives.alloc > lives.alloc[row])]
    end = min(int(lives.free[row]), int(elsewhere.min(initial=lives.free[row])))
    beside = on_line & (lives.alloc > lives.alloc[row]) & (lives.alloc < end)
    size = int(lives.requested[row])
    is_complex = (given | beside) & (lives.requested == size)
    return bool((given & (lives.requested * _HALF == size)).any()) and not is_complex.any()


RULE = FullSpectrumRule()
