"""saved-hyperparameters: Lightning keeps a copy of a large argument as a hyperparameter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memprof.records import Finding
from memprof.reference_chain import Link, LinkKind
from memprof.rules.case import Case
from memprof.rules.finding import Kind
from memprof.rules.resident_searches import resident_searches
from memprof.rules.rule import Advice
from memprof.rules.run_rule import RunMatch, RunRule
from memprof.rules.same_memory import ANY_GROWTH, Overlap
from memprof.source_code.program import calls_in
from memprof.trace import EMPTY
from memprof.units import format_bytes, format_percent
from memprof.views.examination import DeviceExamination, Examination
from memprof.views.window import Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.1
"""Of the peak: numbers and small tables are what hyperparameters are."""
_COPIES = "_hparams_initial"
"""The attribute of a LightningModule with deep copies of what `save_hyperparameters` was given
(`lightning/pytorch/core/mixins/hparams_mixin.py`)."""
_SAVING = "save_hyperparameters"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SavedArgument(RunMatch):
    """The copy of an argument."""

    argument: str
    """Its name; empty where the chain of references does not tell."""
    peak: int
    """Bytes at the device's peak."""


class SavedHyperparameters(RunRule[SavedArgument]):
    """`self.save_hyperparameters()` in an `__init__` that is given a table of embeddings."""

    name = "saved-hyperparameters"
    summary = "a large argument is kept a second time, as a hyperparameter"
    fixes = ("del_ref",)
    kind = Kind.WASTE
    yields_to = (ANY_GROWTH,)
    overlap = Overlap.HOLDER

    def matches(self, examination: Examination) -> Iterator[SavedArgument]:
        """The largest copy on each device that something held so as the recording ended."""
        for device in examination.devices:
            searches = [
                one
                for one in resident_searches(examination, device, _LEAST_SHARE)
                if one.stack != EMPTY and _copy_at(one) >= 0
            ]
            window = device.peak_window
            if searches and window is not None:
                yield from _match(max(searches, key=lambda one: one.bytes), device, window)

    def title(self, match: SavedArgument) -> str:
        """Say how much it is, and which argument."""
        share = format_percent(match.nbytes, match.peak)
        argument = f" `{match.argument}`" if match.argument else ""
        size = format_bytes(match.nbytes)
        return f"{size} ({share} of the peak) are a copy of the argument{argument} that is saved"

    def advice(self, match: SavedArgument, case: Case) -> Iterator[Advice]:
        """Leave it out of the hyperparameters."""
        places = [
            place
            for program in case.programs
            for call in calls_in(program.tree, _SAVING)
            if (place := program.place(call)) is not None
        ]
        ignored = f'"{match.argument}"' if match.argument else "…"
        yield Advice(
            "del_ref",
            f"`{_SAVING}()` keeps a deep copy of every argument, this one of "
            f"{format_bytes(match.nbytes)}: leave it out.",
            places[0] if len(places) == 1 else case.site,
            typed=f"self.{_SAVING}(ignore=[{ignored}])",
        )


def _copy_at(search: Finding) -> int:
    """The place in a chain at which the copies are held; -1 where it does not go through them."""
    for at, link in enumerate(search.holders[0].links):
        if link.name.rpartition(".")[2] == _COPIES:
            return at
    return -1


def _match(search: Finding, device: DeviceExamination, window: Window) -> Iterator[SavedArgument]:
    below: list[Link] = list(search.holders[0].links)[_copy_at(search) + 1 :]
    rows = np.flatnonzero((window.lives.stack == search.stack) & window.at_peak)
    if not len(rows):
        return
    row = int(rows[window.lives.size[rows].argmax()])
    yield SavedArgument(
        device=device.name,
        nbytes=int(window.lives.size[rows].sum()),
        site=window.site_of(row),
        stack=window.stack(row),
        holders=tuple(search.holders),
        saving=window.replayed(window.whole(rows)),
        argument=below[0].name.strip("'") if below and below[0].kind == LinkKind.ITEM else "",
        peak=device.peak_allocated,
    )


RULE = SavedHyperparameters()
