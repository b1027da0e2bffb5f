"""The colours of categories, phases and groups, the same in every chart and on every page."""

from __future__ import annotations

from memprof.trace import Category, Phase

__all__ = ["CATEGORY_COLORS", "GROUP_COLORS", "OTHER_COLOR", "PHASE_COLORS", "STACKING"]

# Okabe and Ito's set (2008), which people with any colour blindness tell apart, a little calmer
# where large areas are filled; grey is kept for what is not known.
CATEGORY_COLORS: dict[Category, str] = {
    Category.UNKNOWN: "#b3bbc4",
    Category.PARAMETER: "#2c6fbb",
    Category.BUFFER: "#7cc4ea",
    Category.GRADIENT: "#e69f00",
    Category.OPTIMIZER_STATE: "#1d9a78",
    Category.ACTIVATION: "#d1603d",
    Category.INPUT: "#e3d44f",
    Category.TEMPORARY: "#c77bb8",
    Category.GRADIENT_BUCKET: "#b07400",
    Category.GATHERED_PARAMETER: "#1b3f73",
    Category.COMMUNICATION_BUFFER: "#8c2f39",
    Category.LIBRARY_WORKSPACE: "#6b7785",
}

STACKING: tuple[Category, ...] = (
    Category.LIBRARY_WORKSPACE,
    Category.PARAMETER,
    Category.BUFFER,
    Category.OPTIMIZER_STATE,
    Category.GRADIENT,
    Category.GRADIENT_BUCKET,
    Category.COMMUNICATION_BUFFER,
    Category.GATHERED_PARAMETER,
    Category.INPUT,
    Category.ACTIVATION,
    Category.TEMPORARY,
    Category.UNKNOWN,
)
"""From the bottom of a stacked chart upwards: what stays lies under what comes and goes."""

# Neighbours in a stack differ in hue and in lightness (after Paul Tol's discrete rainbow).
GROUP_COLORS: tuple[str, ...] = (
    "#1965b0",
    "#7bafde",
    "#882e72",
    "#d1bbd7",
    "#4eb265",
    "#cae0ab",
    "#e8601c",
    "#f6c141",
    "#5289c7",
    "#ae76a3",
    "#90c987",
    "#a34a28",
)
OTHER_COLOR = "#9aa3ad"

PHASE_COLORS: dict[Phase, str] = {
    Phase.UNKNOWN: "#00000000",
    Phase.FORWARD: "#8fb7dc",
    Phase.BACKWARD: "#dba58d",
    Phase.OPTIMIZER: "#86bfa8",
    Phase.OTHER: "#b9bec6",
}
