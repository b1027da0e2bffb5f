"""reduced-later: results are collected and joined, and then only reduced."""

from __future__ import annotations

import ast
from collections.abc import Hashable, Iterator
from dataclasses import dataclass

import numpy as np

from memprof.records import Holder
from memprof.reference_chain import Link, LinkKind, way
from memprof.rules.case import Case
from memprof.rules.joined_tensors import (
    FEWEST_PARTS,
    all_joined,
    is_joined_again,
    joined_at_peak,
    parts_of,
)
from memprof.rules.operator_chains import COMPARING, REDUCING, chain_of
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.entries_read import EntryRead, entry_read
from memprof.source_code.frame_kind import is_of_library
from memprof.source_code.kept_parts import KeptPart, kept_part, reduced_items
from memprof.source_code.program import Place, called_name, calls_in, code_of, own_calls, place_of
from memprof.source_code.reductions import Reduced, Reduction, reduction_of
from memprof.source_code.verbs import JOINING
from memprof.trace import EMPTY, Category, Frame
from memprof.units import format_bytes
from memprof.views.operator_graph import made_by_operators
from memprof.views.peak_without import Cuts, Saving
from memprof.views.window import Ints, Window

__all__ = ["RULE"]

_PARAMETERS = ("named_parameters", "parameters")
_GRADIENTS = "gradients"
_NORMS = frozenset(("norm", "vector_norm"))
_LEAST_SHARE = 0.1
"""Of the peak, that entries of items in a list have, or the items."""

_STACKING = "stack"
_OF_PARTS = REDUCING - {"median", "nonzero"}
"""What may be computed part by part."""
_DECIDING = COMPARING | {"_to_copy", "abs", "sigmoid"}
"""What scores go through on the way to a figure of merit."""


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """What lies under one key of dicts in a list, and what is read of it."""

    key: str
    read: EntryRead
    stack: int
    """Where it was made."""
    held_by: tuple[Hashable, ...]
    """The way to the list."""


@dataclass(frozen=True, slots=True, eq=False)
class ReducedLater(Match):
    """What is read of the joined tensor, or of an entry of items in a list."""

    reduction: Reduction | None = None
    entries: tuple[Entry, ...] = ()
    """Empty for a joined tensor."""
    remains: float = 0.0
    """Share of the bytes that the reduced parts take."""
    kept: KeptPart | None = None
    """The part that is read of results in a list."""
    of_library: bool = False
    """A library makes the parts, and keeps them as it likes."""
    of_all: str = ""
    """What the parts are all of, if they are a model's: parameters, gradients."""
    operators: tuple[str, ...] = ()
    """That reduce a joined tensor, where its statement does not tell how."""
    reader: Frame | None = None
    """The line of one of these."""
    over_parts: bool = False
    """What they make is as large as a part."""


class ReducedLaterResults(WasteRule[ReducedLater]):
    """`torch.stack(samples)` of thirty passes, of which only the mean and the variance are read."""

    name = "reduced-later"
    summary = "results are collected and joined, and then only reduced"
    fixes = ("reduce_predictions", "running_total")
    yields_to = ("loaded",)
    accumulates = True

    def matches(self, window: Window) -> Iterator[ReducedLater]:
        """A joined tensor at the peak that its function does nothing with but to reduce it."""
        lives = window.lives
        for row in joined_at_peak(window):
            parts = parts_of(window, row)
            place = place_of(window.frame_of(row))
            number = _number_of_join(window, row)
            reduction = reduction_of(place, window.programs, number) if place is not None else None
            of_all = _all_of(window, row, place) if place is not None else ""
            if reduction is not None and place is not None and of_all:
                yield _of_model(window, row, place, reduction, of_all)
                return
            if reduction is None or len(parts) < FEWEST_PARTS:
                continue
            results, every = all_joined(window, row)
            of_library = is_of_library(window.stack(int(parts[0])))
            there = np.append(parts[window.at_peak[parts]], row)
            nbytes = int(lives.size[there].sum())
            yield ReducedLater(
                row=row,
                rows=there,
                nbytes=nbytes,
                saving=_saving(window, results, every[:0] if of_library else every),
                reduction=reduction,
                of_library=of_library,
                remains=_reduced_bytes(window, row, reduction) / nbytes,
            )
            return
        match = _of_entries(window) or _of_parts(window) or _of_items(window)
        match = match or _by_operators(window)
        if match is not None:
            yield match

    def title(self, match: ReducedLater) -> str:
        """Say how many there are, and what is read of them."""
        if match.kept is not None:
            texts, verb = _of_kept(match.kept)
            return f"are {len(match.rows)} results in a list, of which only {texts} {verb} read"
        if match.entries:
            keys = " and ".join(f"`{one.key}`" for one in match.entries)
            return f"are {keys} of items in a list, of which only {_texts(match)} read"
        if match.operators:
            number = len(match.rows) - 1
            return f"are {number} results and the tensor joined from them, only for {_ends(match)}"
        assert match.reduction is not None
        if match.of_all:
            read = _what_is_read(match.reduction)
            return f"are all {match.of_all} joined, and what is made of that; only {read} read"
        number = len(match.rows) - 1
        parts = f"{number} results and the tensor joined from them" if number else "joined results"
        return f"are {parts}, of which only {_what_is_read(match.reduction)} read"

    def advice(self, match: ReducedLater, case: Case) -> Iterator[Advice]:
        """Reduce each part before it is kept, or add up what is needed."""
        if match.kept is not None:
            texts, verb = _of_kept(match.kept)
            how = (
                ", which each gives by itself: compute that before it is kept."
                if match.kept.is_computed
                else ": keep a copy of that alone (`.detach().clone()`: a view keeps all of it), "
                "or what is computed of it. The lines that read it change, too: they get that "
                "itself."
            )
            why = f"{format_bytes(match.nbytes)} wait in a list until {texts} {verb} read{how}"
            at = match.kept.place
            place = case.place_at(at.program.filename, at.line)
            yield Advice("reduce_predictions", why, place or case.site, typed=match.kept.instead)
            return
        if match.entries:
            first = match.entries[0].read
            why = (
                f"{format_bytes(match.nbytes)} wait in a list until {_texts(match)} read, which "
                "the item alone tells: compute that before it is kept, and keep the result."
            )
            yield Advice("reduce_predictions", why, first.place, first.line)
            return
        if match.operators:
            yield _advice_by_operators(match, case)
            return
        assert match.reduction is not None
        read, nbytes = _what_is_read(match.reduction), format_bytes(match.nbytes)
        if match.of_all:
            why = (
                f"{nbytes} are all {match.of_all} in one tensor, and what is made of it, of which "
                f"only {read} read: {_instead_of_all(match.of_all, match.reduction)}"
            )
            yield Advice("running_total", why, case.site)
            return
        if match.reduction.along is Reduced.EACH_PART:
            take = "one after the other" if match.of_library else "before it is kept"
            why = (
                f"{nbytes} are collected, and then only {read} read, which each result gives "
                f"by itself: take that {take}."
            )
            yield Advice("reduce_predictions", why, case.site, remains=match.remains)
            return
        why = (
            f"{nbytes} are collected, and then only {read} read: add up what that needs as "
            "the results come (their sum and number; for a variance, the sum of squares, too)"
        )
        why += ", and keep what each gives by itself." if match.reduction.lines else "."
        yield Advice("running_total", why, case.site, remains=match.remains)


def _ends(match: ReducedLater) -> str:
    names = " and ".join(f"`{one}`" for one in match.operators)
    return f"{names} in line {match.reader.line}" if match.reader is not None else names


def _advice_by_operators(match: ReducedLater, case: Case) -> Advice:
    nbytes, ends = format_bytes(match.nbytes), _ends(match)
    if match.over_parts:
        why = (
            f"{nbytes} are collected for nothing but {ends}, whose result is as large as one of "
            "them: add up what that needs as the results come."
        )
        return Advice("running_total", why, case.site)
    take = "one after the other" if match.of_library else "before it is kept"
    why = f"{nbytes} are collected for nothing but {ends}: reduce each result {take}."
    return Advice("reduce_predictions", why, case.site)


def _instead_of_all(of_all: str, reduction: Reduction) -> str:
    """How the same is computed of each parameter or gradient, as a clause."""
    names = {called_name(ast.parse(text, mode="eval").body) for text in reduction.texts}
    if of_all == _GRADIENTS and names <= _NORMS:
        return (
            "take the norm of each gradient, and the norm of these norms, "
            "`torch.stack([g.norm() for g in gradients]).norm()`; `torch.nn.utils.clip_grad_norm_` "
            "does so, and returns it."
        )
    each = "p.grad" if of_all == _GRADIENTS else "p"
    return (
        "add up what each gives by itself, as "
        f"`sum({each}.abs().sum() for p in model.parameters())` does."
    )


def _all_of(window: Window, row: int, place: Place) -> str:
    """What a statement joins all of: parameters of a model, or their gradients; else empty.

    Parameters by what it goes through; gradients by their attribute, or by the bytes of all that
    are there.
    """
    joins = own_calls(place.statement, *JOINING)
    if len(joins) != 1:
        return ""
    lives = window.lives
    made = lives.alloc[row]
    gradients = window.category == Category.GRADIENT
    gradients &= (lives.alloc < made) & (lives.free > made)
    is_all = lives.requested[gradients].sum() == lives.requested[row]
    if is_all and gradients.sum() >= FEWEST_PARTS:
        return _GRADIENTS
    for node in ast.walk(joins[0]):
        if isinstance(node, (ast.ListComp, ast.GeneratorExp)):
            if any(
                isinstance(one, ast.Attribute) and one.attr == "grad" for one in ast.walk(node.elt)
            ):
                return _GRADIENTS
            if any(calls_in(one.iter, *_PARAMETERS) for one in node.generators):
                return "parameters"
    return ""


def _of_model(
    window: Window, row: int, place: Place, reduction: Reduction, of_all: str
) -> ReducedLater:
    """All parameters or gradients in one tensor, with what its function makes of it as large."""
    lives, function = window.lives, place.function or place.statement
    lines = range(function.lineno, (function.end_lineno or function.lineno) + 1)
    sites = [
        at
        for at, frame in enumerate(window.owners.sites.frames)
        if frame.filename == place.program.filename and frame.line in lines
    ]
    alike = lives.requested == lives.requested[row]
    alike &= ~window.has_owner
    alike &= np.isin(window.site, sites) | np.isin(
        window.origin_site, [one for one in sites if one]
    )
    there = np.flatnonzero(alike & window.at_peak)
    return ReducedLater(
        row=row,
        rows=there,
        nbytes=int(lives.size[there].sum()),
        saving=window.replayed(window.whole(np.flatnonzero(alike))),
        reduction=reduction,
        of_all=of_all,
    )


def _number_of_join(window: Window, row: int) -> int:
    """Of a statement that joins several tensors, which one it is: they are made one by one."""
    lives = window.lives
    alike = (lives.stack == lives.stack[row]) & (window.made_in == window.made_in[row])
    joins = (
        len(own_calls(place.statement, *JOINING))
        if (place := place_of(window.frame_of(row))) is not None
        else 1
    )
    before = np.count_nonzero(alike & (lives.alloc < lives.alloc[row]))
    return int(before % max(1, joins))


def _of_entries(window: Window) -> ReducedLater | None:
    """What lies under keys of items in one list, of which only reductions are read."""
    if window.peak.event < 0:
        return None
    lives, entries = window.lives, list(_entries(window))
    if not entries:
        return None
    entries = [one for one in entries if one.held_by == entries[0].held_by]
    made = np.isin(lives.stack, [one.stack for one in entries]) & ~window.has_owner
    there = np.flatnonzero(made & window.at_peak)
    nbytes = int(lives.size[there].sum())
    alike = made & np.isin(lives.size, lives.size[there])
    is_emptied = bool((lives.free[alike] < window.events).any())  # else the list itself may leak
    if window.share(nbytes) < _LEAST_SHARE or not is_emptied:
        return None
    # What was made between windows has no stack; that it is as large tells that it is the same.
    unseen = (lives.stack == EMPTY) & (lives.alloc < 0) & np.isin(lives.size, lives.size[there])
    first, rows = entries[0].read, np.flatnonzero(made | (unseen & ~window.has_owner))
    before, later = rows[lives.alloc[rows] < 0], rows[lives.alloc[rows] >= 0]
    cuts = _both(window.whole(before), window.ended_at(later, lives.alloc[later] + 1))
    function = first.place.function
    name = function.name if function is not None else "<module>"
    return ReducedLater(
        row=window.largest(made & window.at_peak),
        rows=there,
        nbytes=nbytes,
        saving=window.replayed(cuts),
        entries=tuple(entries),
        look_at=Frame(name, first.place.program.filename, first.line),
    )


def _of_parts(window: Window) -> ReducedLater | None:
    """Results of one line that a list keeps over several steps, of which only a part is read."""
    lives = window.lives
    later = ~window.has_owner & (window.freed_in > window.made_in) & (window.made_in >= 0)
    mask = later & window.at_peak
    for site in window.large_sites(mask, _LEAST_SHARE):
        place = place_of(window.owners.sites.frames[site])
        kept = kept_part(place, window.programs) if place is not None else None
        if kept is None:
            continue
        row = window.largest(mask & (window.site == site))
        made = later & (window.site == site) & (lives.requested == lives.requested[row])
        there = np.flatnonzero(made & window.at_peak)
        nbytes = int(lives.size[there].sum())
        is_emptied = bool((lives.free[made] < window.events).any())
        in_steps = len(np.unique(window.made_in[there]))
        if window.share(nbytes) < _LEAST_SHARE or in_steps < FEWEST_PARTS or not is_emptied:
            continue
        rows = np.flatnonzero(made)  # a step needs its own until it ends
        ends = [window.first_event.get(int(step) + 1) for step in window.made_in[rows]]
        known = np.array([end is not None for end in ends])
        until = np.array([end for end in ends if end is not None], dtype=np.int64)
        return ReducedLater(
            row=row,
            rows=there,
            nbytes=nbytes,
            saving=window.replayed(window.ended_at(rows[known], until)),
            kept=kept,
        )
    return None


def _of_items(window: Window) -> ReducedLater | None:
    """Results of one line that a local list keeps within a step, until each of them is reduced."""
    lives = window.lives
    results = ~window.has_owner & (window.category != Category.ACTIVATION)  # of graphs
    mask = window.at_peak & results
    total = np.bincount(lives.stack[mask], weights=lives.size[mask])
    for stack in np.argsort(-total, kind="stable").tolist():
        if window.share(float(total[stack])) < _LEAST_SHARE:
            return None
        there = np.flatnonzero(mask & (lives.stack == stack))
        frames = window.user_frames(window.trace.stack(stack)) if stack != EMPTY else ()
        places = map(place_of, frames if len(there) >= FEWEST_PARTS else ())
        reduced = (reduced_items(place) for place in places if place is not None)
        kept = next((one for one in reduced if one is not None), None)
        if kept is None:
            continue
        rows = np.flatnonzero((lives.stack == stack) & results)
        return ReducedLater(
            row=window.largest(mask & (lives.stack == stack)),
            rows=there,
            nbytes=int(lives.size[there].sum()),
            saving=window.replayed(window.ended_at(rows, lives.alloc[rows] + 1)),
            kept=kept,
        )
    return None


def _by_operators(window: Window) -> ReducedLater | None:
    """A joined tensor at the peak that no operator was given but to reduce it."""
    made, lives = made_by_operators(window.operator_graphs), window.lives
    for one in made.values():
        own = window.at_peak & ~window.has_owner & (lives.stack == one.node[0])
        if one.operator not in JOINING or not own.any():
            continue
        row = window.largest(own)
        if window.share(int(lives.size[row])) < _LEAST_SHARE or is_joined_again(window, row):
            continue
        chain, parts = chain_of(made, one, _OF_PARTS, parts=False), parts_of(window, row)
        if chain is None or len(parts) < FEWEST_PARTS or not chain.is_done(window):
            continue
        sizes = lives.requested[parts]
        over_parts = max(end.size for end in chain.ends) >= sizes.min()
        # Several dimensions may be made of the one along which parts lie; a new one is of parts.
        is_of_each = one.operator == _STACKING and (sizes == sizes[0]).all()
        others = {other.operator for other in chain.nodes.values()} - {one.operator}
        if (over_parts and not is_of_each) or not others <= _DECIDING:
            continue
        results, every = all_joined(window, row)
        of_library = is_of_library(window.stack(int(parts[0])))
        there = np.append(parts[window.at_peak[parts]], row)
        return ReducedLater(
            row=row,
            rows=there,
            nbytes=int(lives.size[there].sum()),
            saving=_saving(window, results, every[:0] if of_library else every),
            tentative=chain.may_be_read_unseen(window),
            operators=tuple(sorted(chain.operators)),
            reader=chain.reader(window),
            over_parts=over_parts,
            of_library=of_library,
        )
    return None


def _of_kept(kept: KeptPart) -> tuple[str, str]:
    texts = [f"`{text}`" for text in kept.texts]
    return " and ".join(texts), "is" if len(texts) == 1 else "are"


def _entries(window: Window) -> Iterator[Entry]:
    """Those at the peak whose holder a search found, by the last look at each, largest first."""
    stacks, counts = np.unique(window.lives.stack[window.at_peak], return_counts=True)
    number = dict(zip(stacks.tolist(), counts.tolist(), strict=True))
    last = {one.stack: one for one in window.searches if one.stack != EMPTY}
    for stack, search in sorted(last.items(), key=lambda pair: -pair[1].bytes):
        if number.get(stack, 0) < FEWEST_PARTS:
            continue
        holder = search.holders[0]
        key = _key_of(holder)
        frame = Frame("", holder.filename, holder.line)
        place = place_of(frame) if key and _is_as_it_was(holder) else None
        read = entry_read(place, key, window.programs) if place is not None else None
        if read is not None:
            yield Entry(key, read, stack, way(_links(holder)[:-1]))


def _key_of(holder: Holder) -> str:
    """The key of a dict in a list that a tensor lies under; empty where it is held otherwise."""
    links = _links(holder)
    items = [one.kind == LinkKind.ITEM for one in links[-2:]]
    if items != [True, True] or [one.type_name for one in links[-2:]] != ["list", "dict"]:
        return ""
    try:
        key = ast.literal_eval(links[-1].name)
    except (SyntaxError, ValueError):
        return ""
    return key if isinstance(key, str) else ""


def _links(holder: Holder) -> list[Link]:
    """Those of its chain, without the tensor that it shows a part of."""
    return [one for one in holder.links if one.kind != LinkKind.BASE]


def _is_as_it_was(holder: Holder) -> bool:
    """Whether the holder's line has the text that it had in the job."""
    return code_of(Frame("", holder.filename, holder.line)) == holder.code.strip()


def _texts(match: ReducedLater) -> str:
    texts = list(dict.fromkeys(f"`{text}`" for one in match.entries for text in one.read.texts))
    return f"{' and '.join(texts)} {'is' if len(texts) == 1 else 'are'}"


def _what_is_read(reduction: Reduction) -> str:
    """The reductions with their verb: ``x.mean(0)` and `x.var(0)` are``."""
    texts = [f"`{text}`" for text in reduction.texts]
    return f"{' and '.join(texts)} {'is' if len(texts) == 1 else 'are'}"


def _saving(window: Window, results: Ints, parts: Ints) -> Saving:
    """The peak with no joined tensor, nothing that its line makes of it, and one part at a time."""
    lives = window.lives
    joined = np.unique(results)
    of_line = (window.site == window.site[joined[0]]) & (lives.alloc > lives.alloc[joined[0]])
    of_line &= lives.requested == lives.requested[joined[0]]
    whole = window.whole(np.union1d(joined, np.flatnonzero(of_line)))
    short = window.ended_at(parts, lives.alloc[parts] + 1)
    return window.replayed(_both(whole, short))


def _both(some: Cuts, others: Cuts) -> Cuts:
    return Cuts(
        np.concatenate([some.rows, others.rows]),
        np.concatenate([some.start, others.start]),
        np.concatenate([some.end, others.end]),
    )


def _reduced_bytes(window: Window, row: int, reduction: Reduction) -> int:
    """What remains of reductions within each part: the largest that each line makes."""
    filename, lives = window.frame_of(row).filename, window.lives
    nbytes = 0
    for line in reduction.lines:
        sites = [
            number
            for number, frame in enumerate(window.owners.sites.frames)
            if (frame.filename, frame.line) == (filename, line)
        ]
        made = np.isin(window.site, sites) & (lives.alloc > lives.alloc[row])
        made &= lives.size < lives.size[row]
        nbytes += int(lives.size[made].max(initial=0))
    return nbytes


RULE = ReducedLaterResults()
