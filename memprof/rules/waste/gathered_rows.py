"""gathered-rows: rows are gathered, each many times, for a linear layer that takes them one by one.

A layer on graphs, say, whose edges are many times as many as its nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.lifespan import FEWEST_STEPS
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.edge_layers import LinearOfEdges, linear_of_gathered
from memprof.source_code.program import place_of
from memprof.trace import Frame, Phase
from memprof.units import format_bytes
from memprof.views.stacks import made_at_lines
from memprof.views.window import Ints, Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.1
"""Of the peak, in what is gathered at one line."""
_LEAST_TIMES = 2
"""Gathered over distinct rows, in bytes: a selection of some of them saves memory."""


@dataclass(frozen=True, slots=True, eq=False)
class GatheredRows(Match):
    """The layer, and how often it is given each row."""

    linear: LinearOfEdges | None = None
    times: float = 0.0


class GatheredRowsRule(WasteRule[GatheredRows]):
    """`self.lin(x[src])`: the layer keeps a row for each edge, and computes as many."""

    name = "gathered-rows"
    summary = "a linear layer is given rows that were gathered, each many times"
    fixes = ("transform_nodes",)
    yields_to = ("edge-messages",)

    def matches(self, window: Window) -> Iterator[GatheredRows]:
        """Gathered rows that are there at the peak, of a line that hands them to a layer.

        The backward pass adds their gradients up, to as many rows as there are distinct ones: the
        bytes of that say how often each was gathered.
        """
        if len(window.steps) < FEWEST_STEPS:
            return
        made = (window.phase == Phase.FORWARD) & (window.made_in >= 0) & ~window.has_owner
        for site in np.unique(window.site[made & window.at_peak]).tolist():
            of_site = made & (window.site == site)
            place = place_of(window.owners.sites.frames[site])
            nbytes = window.bytes_of(of_site & window.at_peak)
            if place is None or window.share(nbytes) < _LEAST_SHARE:
                continue
            linear = linear_of_gathered(place)
            if linear is None:
                continue
            rows = _given_to_layer(window, np.flatnonzero(of_site), linear)
            there = rows[window.at_peak[rows]]
            nbytes = int(window.lives.size[there].sum())
            gathered, times = _gathered(window, rows)
            times /= linear.parts
            needless = rows if linear.reads_parts else np.union1d(rows, gathered)
            if times >= _LEAST_TIMES and window.share(nbytes) >= _LEAST_SHARE:
                yield GatheredRows(
                    row=int(there[0]),
                    rows=there,
                    nbytes=nbytes,
                    saving=window.replayed(window.whole(needless)),
                    linear=linear,
                    times=times,
                )

    def title(self, match: GatheredRows) -> str:
        """Say how often each is there, and what is given them."""
        linear = match.linear
        assert linear is not None
        rows = f"are rows of `{linear.features}`, gathered some {match.times:.0f} times each, which"
        if linear.is_product:
            return f"{rows} are multiplied by `{linear.layer}` one by one"
        return f"{rows} `{linear.layer}` takes one by one"

    def advice(self, match: GatheredRows, case: Case) -> Iterator[Advice]:
        """Call the layer first, and gather what it makes."""
        linear = match.linear
        assert linear is not None
        layer, features, at = linear.layer, linear.features, linear.place
        if linear.is_product:
            own = " with its own part of that" if linear.parts > 1 else ""
            change = f"multiply `{features}`{own}, and gather what it makes"
            change += ", and add up" if linear.parts > 1 else ""
        elif linear.parts > 1:
            change = (
                f"give each of what is joined a linear layer of its own, call that of `{features}` "
                "on all rows once, gather what it makes, and add up"
            )
        else:
            change = f"call it on `{features}`, and gather what it makes"
        given = "multiplied by" if linear.is_product else "given to"
        why = (
            f"{format_bytes(match.nbytes)} are {given} `{layer}`, which makes the same of a row "
            f"each time that it was gathered: {change}."
        )
        yield Advice("transform_nodes", why, case.place_at(at.program.filename, at.line))


def _given_to_layer(window: Window, rows: Ints, linear: LinearOfEdges) -> Ints:
    """Of what a line made, in the order of time, what came last before each result of the layer."""
    names = window.owners.module.names
    path = linear.path
    by_statement = made_at_lines(window, linear.place.program.filename, linear.place.lines)
    alloc, made_in = window.lives.alloc, window.made_in
    given: list[int] = []
    for module in np.unique(window.module[rows]).tolist():
        if linear.is_product:
            results = by_statement & (window.module == module)
        else:
            layers = [
                number
                for number, name in enumerate(names)
                if name == f"{names[module]}.{path}"
                or (
                    path.endswith(".") and name.rpartition(".")[0] == f"{names[module]}.{path[:-1]}"
                )
            ]
            results = np.isin(window.module, layers)
        results &= (window.phase == Phase.FORWARD) & (made_in >= 0)
        own = rows[window.module[rows] == module]
        own = own[np.argsort(alloc[own], kind="stable")]
        for result in np.flatnonzero(results).tolist():
            before = int(np.searchsorted(alloc[own], alloc[result])) - 1
            if before >= 0 and made_in[own[before]] == made_in[result]:
                given.append(int(own[before]))
    return np.unique(np.array(given, dtype=np.int64))


def _gathered(window: Window, rows: Ints) -> tuple[Ints, float]:
    """What was gathered to make some rows, and how many times as large these are as its source.

    The backward pass adds gradients up to what is as large as the source: it comes of what the same
    module made by then. 0 where there is none, as of what takes no gradient.
    """
    lives, origin = window.lives, window.trace.events.origin
    backward = (window.phase == Phase.BACKWARD) & (window.made_in >= 0)
    by_then: list[Ints] = []
    gathering: set[Frame] = set()
    most = 0.0
    for row in rows.tolist():
        near = (window.module == window.module[row]) & (window.made_in == window.made_in[row])
        made = near & (window.phase == Phase.FORWARD) & (lives.alloc <= lives.alloc[row])
        by_then.append(np.flatnonzero(made & (lives.requested <= lives.requested[row])))
        sums = np.flatnonzero(near & backward)
        sums = sums[np.isin(origin[lives.alloc[sums]], np.unique(lives.stack[made]))]
        if len(sums):
            most = max(most, float(lives.requested[row] / lives.requested[sums].min()))
            gathering |= {window.origin_stack(int(one))[0] for one in sums}
    before = np.unique(np.concatenate([rows[:0], *by_then]))
    is_one = [bool(stack) and stack[0] in gathering for stack in map(window.stack, before.tolist())]
    gathered: Ints = before[np.array(is_one, dtype=bool)]
    return gathered, most


RULE = GatheredRowsRule()
