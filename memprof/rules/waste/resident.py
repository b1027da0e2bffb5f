"""resident: much that is no part of a model stays on the device over the steps."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

import numpy as np

from memprof.records import Holder
from memprof.reference_chain import LinkKind
from memprof.rules.case import Case
from memprof.rules.graph_lines import OF_ERRORS
from memprof.rules.keeping_iterators import advice_on_iterator, keeping_iterator
from memprof.rules.lifespan import outlive_steps
from memprof.rules.long_lived_tensors import advice_on_long_lived
from memprof.rules.notebooks import advice_on_outputs
from memprof.rules.references import advice_on_exceptions, advice_on_views
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.rules.same_memory import Overlap
from memprof.source_code.program import bound_names, program_of
from memprof.source_code.scopes import reads_of
from memprof.trace import Category
from memprof.views.window import Bools, Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.3
"""Of the peak: every program keeps something, and most of it is meant."""
_LEAST_RISE = 0.1
"""Of what there is in the end, in a quarter of the steps: of a steady rise it is a quarter."""


class Resident(WasteRule[Match]):
    """Data, results or old values that nobody moved to the host."""

    name = "resident"
    summary = "much that is no part of a model stays over the steps"
    fixes = (
        *("narrow_before_cast", "cpu_offload", "del_ref", "clear_traceback", "clone_view"),
        *("clear_container", "reiterate"),
    )
    yields_to = ("bytes-as-floats", "copied-windows", "kept-one-hot", "stored-twice")
    names_holders = True
    overlap = Overlap.TENSORS  # what grows is told by who holds it, whichever lines made it
    proven_by = frozenset({*OF_ERRORS, LinkKind.NOTEBOOK, LinkKind.ITERATOR})

    def matches(self, window: Window) -> Iterator[Match]:
        """All at the peak that stays to the end, but models, optimizers and activations."""
        mask = ~window.has_owner & window.at_peak & window.stays & outlive_steps(window)
        mask &= ~np.isin(window.category, (Category.ACTIVATION, Category.LIBRARY_WORKSPACE))
        if window.share(window.bytes_of(mask)) < _LEAST_SHARE:
            return
        rows = np.flatnonzero(mask)
        yield Match(
            row=window.main_site(mask),
            rows=rows,
            nbytes=window.bytes_of(mask),
            saving=window.replayed(window.whole(rows)),
            tentative=True,  # a data set on the device may well be meant
            rises=_rises(window, mask),
        )

    def is_meant(self, holders: Sequence[Holder], window: Window) -> bool:  # noqa: ARG002
        """What a list of the program's own has as well, an iterator does not keep."""
        by_iterator = [
            any(link.kind == LinkKind.ITERATOR for link in holder.links) for holder in holders
        ]
        return any(by_iterator) and not all(by_iterator)

    def is_proven(self, holders: Sequence[Holder]) -> bool:
        """Also where a thread that waits has them in a variable of the job that is done."""
        of_job = len(holders) == 1 and _is_of_one_job(holders[0])
        return of_job or super().is_proven(holders)

    def title(self, match: Match) -> str:
        """Say what they are not."""
        more = ", more and more of them," if match.rises else ""
        return f"stay over the steps{more} and are no part of a model"

    def advice(self, match: Match, case: Case) -> Iterator[Advice]:  # noqa: ARG002 - of the case
        """Keep less of it, keep it on the host, or drop it; none on what torch itself keeps."""
        holders = case.finding.holders
        if holders and all(holder.is_workspace for holder in holders):
            return
        yield from advice_on_views(case)
        yield from advice_on_exceptions(case)
        results = case.holder(LinkKind.NOTEBOOK)
        if results is not None:
            yield advice_on_outputs(results, case)
        iterator = keeping_iterator(case)
        if iterator is not None:  # it is full from the second round on, and grows no more
            yield from advice_on_iterator(iterator)
        yield from advice_on_long_lived(case)


def _is_of_one_job(holder: Holder) -> bool:
    """Whether a thread's variable is bound anew for each job, before anything reads it.

    ``raw = load(jobs.get())`` in the body of a loop, and not under a condition.
    """
    if [link.kind for link in holder.links] != [LinkKind.THREAD, LinkKind.LOCAL]:
        return False
    program = program_of(holder.filename)
    place = program.at(holder.line) if program is not None else None
    if place is None or place.code.strip() != holder.code.strip():
        return False
    name, loop = holder.links[-1].name, place.loop
    binds = any(
        isinstance(one, ast.Name) and one.id == name for one in bound_names(place.statement)
    )
    if loop is None or not binds or place.statement not in loop.body:
        return False
    reads = [load.lineno for load, _ in reads_of(place.scope, name)]
    return all(place.line < line <= (loop.end_lineno or line) for line in reads)


def _rises(window: Window, mask: Bools) -> bool:
    """Whether what such stacks made is more at each quarter of the second half of the window."""
    stacks = np.unique(window.lives.stack[mask])
    alike = np.isin(window.lives.stack, stacks) & ~window.has_owner
    last = len(window.steps) - 1
    steps = [window.steps[last * quarter // 4] for quarter in (2, 3, 4)]
    events = [window.first_event[int(step)] for step in steps]
    half, later, end = (window.bytes_of(alike & window.lives.alive_at(event)) for event in events)
    return min(later - half, end - later) > _LEAST_RISE * end


RULE = Resident()
