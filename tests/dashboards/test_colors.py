"""The colours of categories can be told apart, by people who see some colours alike too."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest

from memprof.trace import Category, Phase
from memprof_dashboards.colors import CATEGORY_COLORS, GROUP_COLORS, PHASE_COLORS, STACKING

# Machado, Oliveira and Fernandes (2009), severity 1: linear RGB as a dichromat sees it.
SIGHTS = {
    "full": np.eye(3),
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}  # fmt: skip
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
WHITE = TO_XYZ @ np.ones(3)


def lab(color: str, sight: str) -> np.ndarray:
    """CIE L*a*b* of ``#rrggbb`` as a sight sees it."""
    values = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.asarray(SIGHTS[sight]) @ linear, 0, 1)
    ratio = TO_XYZ @ seen / WHITE
    f = np.where(ratio > 0.008856, np.cbrt(ratio), 7.787 * ratio + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def distance(one: str, other: str, sight: str) -> float:
    return float(np.linalg.norm(lab(one, sight) - lab(other, sight)))


@pytest.mark.parametrize("sight", SIGHTS)
def test_any_two_categories_differ(sight: str):
    # 2.3 is the least difference that people notice side by side; areas in a legend need more.
    close = {
        (a.name, b.name): round(distance(CATEGORY_COLORS[a], CATEGORY_COLORS[b], sight), 1)
        for a, b in combinations(Category, 2)
        if distance(CATEGORY_COLORS[a], CATEGORY_COLORS[b], sight) < 12
    }
    assert not close


@pytest.mark.parametrize("sight", SIGHTS)
def test_neighbouring_groups_in_a_stack_differ(sight: str):
    pairs = pairwise(GROUP_COLORS)
    assert min(distance(a, b, sight) for a, b in pairs) > 15


def test_every_category_and_phase_has_one_color_of_its_own():
    assert set(CATEGORY_COLORS) == set(Category) == set(STACKING)
    assert len(set(CATEGORY_COLORS.values())) == len(Category)
    assert set(PHASE_COLORS) == set(Phase)
