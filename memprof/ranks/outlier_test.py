"""Which values of many differ from the rest, by a rule that the outliers themselves do not bend."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["outliers"]

Floats = npt.NDArray[np.float64]

_FEWEST = 3
"""Of two values, neither differs from the rest."""
_FAR = 3.5
"""Modified z-score from which a value is an outlier, as its authors recommend."""
_NORMAL = 1.4826
"""Makes the median absolute deviation an estimate of the standard deviation of normal values."""
_SHARE = 0.01
"""Of the median: the least deviation that counts as one. Ranks of one program often agree to the
byte, and then each that does not would be an outlier."""


def outliers(values: Floats, least: float) -> npt.NDArray[np.bool_]:
    """Mask of the values whose modified z-score is above 3.5; NaN is none.

    The score is the distance from the median in median absolute deviations, scaled to standard
    deviations (Iglewicz and Hoaglin, How to Detect and Handle Outliers, 1993).

    Args:
        values: one a rank; NaN where not measured.
        least: the smallest scale, in the values' unit: below it differences are noise.
    """
    is_number = ~np.isnan(values)
    far = np.zeros(len(values), dtype=bool)
    if int(is_number.sum()) < _FEWEST:
        return far
    median = float(np.median(values[is_number]))
    distance = np.abs(values[is_number] - median)
    scale = max(_NORMAL * float(np.median(distance)), _SHARE * abs(median), least)
    far[is_number] = distance > _FAR * scale
    return far
