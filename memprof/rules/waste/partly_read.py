"""partly-read: a large result is computed whole, and one part of it is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.joined_tensors import all_joined
from memprof.rules.large_tensor import (
    LargeTensor,
    large_tensor,
    made_by_its_statement,
    made_on_its_line,
)
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.parts_read import (
    ComputedPart,
    Instead,
    PartRead,
    computed_part,
    gathered_part,
    joined_part,
    part_read,
)
from memprof.source_code.program import Place, calls_in, place_of
from memprof.trace import Frame, Phase
from memprof.units import format_bytes
from memprof.views.peak_without import Cuts
from memprof.views.window import Ints, Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.2
"""Of the peak, that each of the gathered has: less is not worth rows at a time."""
_AFTER_NEXT = 2
"""Places further in a list: a state is made of the one before it, or of two."""
_HOOKS = ("register_forward_hook", "register_module_forward_hook")
"""What is given the results of layers."""
_OF_LINEAR = "/torch/nn/modules/linear.py"


@dataclass(frozen=True, slots=True, eq=False)
class PartlyRead(Match):
    """The part."""

    part: PartRead | ComputedPart | None = None


class PartlyReadResult(WasteRule[PartlyRead]):
    """`logits = model(prompt)` over a vocabulary, of which only `logits[:, -1]` is read."""

    name = "partly-read"
    summary = "a large result is computed whole, and one part of it is read"
    fixes = ("narrow_first", "topk")

    def matches(self, window: Window) -> Iterator[PartlyRead]:
        """The large tensor of the peak, where a part of it could have been computed by itself."""
        gathered = _gathered(window)
        if gathered is not None:
            yield gathered
            return
        large = large_tensor(window)
        if large is None or _is_shown_to_hooks(window, large):
            return
        part, row, rows = _part(window, large), large.row, large.there
        if part is None:
            part, row = _diagonal(window, large)
        spared = _spared(window, large, part) if part is not None else rows
        if isinstance(part, ComputedPart) and part.instead in (Instead.EACH, Instead.ONE):
            yield _of_each(window, large, part, spared)
            return
        if part is None:  # what is computed row by row of a layer's result is as large
            row = _made_by_layer(window, large)
            part = part_read(window.stack(row)) if row >= 0 else None
            if part is None:
                return
            own = made_on_its_line(window, row)
            rows = np.union1d(rows, own[window.at_peak[own]])
            spared = np.union1d(made_on_its_line(window, large.row), own)
        yield PartlyRead(
            row=row,
            rows=rows,
            nbytes=int(window.lives.size[rows].sum()),
            saving=window.replayed(window.whole(spared)),
            part=part,
        )

    def title(self, match: PartlyRead) -> str:
        """Say what is read of them."""
        assert match.part is not None
        return f"are computed whole, and only `{match.part.text}` is read"

    def advice(self, match: PartlyRead, case: Case) -> Iterator[Advice]:
        """Compute the part, and not the rest."""
        part = match.part
        assert part is not None
        nbytes = format_bytes(match.nbytes)
        if isinstance(part, PartRead):
            name = part.place.program.filename.replace("\\", "/").rpartition("/")[2]
            why = (
                f"Only `{part.text}` of the {nbytes} is read ({name}:{part.place.line}): take that "
                "part of what goes into the layer, not of its result."
            )
            typed = f"model(…, {part.switch}={part.count})" * bool(part.switch and part.count)
            yield Advice("narrow_first", why, case.site, typed=typed)
        elif part.instead is Instead.FIRST:
            why = f"Only `{part.text}` of the {nbytes} is read: `topk` finds these, and no others."
            yield Advice("topk", why, case.site)
        elif part.instead is Instead.LOGITS:
            why = (
                f"Only `{part.text}` of the {nbytes} is read: gather from the logits, and take "
                "`logsumexp(-1)` off, of a few rows at a time (of all at once it takes as much)."
            )
            yield Advice("narrow_first", why, case.site)
        elif part.instead is Instead.LARGEST:
            why = (
                f"Only `{part.text}` of the {nbytes} is read, and a softmax changes no order: take "
                "the `argmax` of what it is given."
            )
            yield Advice("narrow_first", why, case.site)
        elif part.instead is Instead.VARIANCE:
            of = part.text.partition(".covariance_matrix")[0]
            why = (
                f"Only `{part.text}` of the {nbytes} is read: one value for each point, which the "
                "distribution's `variance` computes alone."
            )
            yield Advice("narrow_first", why, case.site, typed=f"{of}.variance")
        elif part.instead is Instead.EACH:
            why = (
                f"Only `{part.text}` of the {nbytes} is read: take that part of each tensor as it "
                "comes, and join these."
            )
            yield Advice("narrow_first", why, case.site)
        elif part.instead is Instead.ONE:
            why = (
                f"Only `{part.text}` of the {nbytes} is read, one of many that are collected and "
                "joined: keep that one alone."
            )
            yield Advice("narrow_first", why, case.site)
        elif part.instead is Instead.OPERANDS:
            why = (
                f"Only `{part.text}` of the {nbytes} is read: take that part of the operands, and "
                "compute with it."
            )
            yield Advice("narrow_first", why, case.site)
        else:
            why = (
                f"Only `{part.text}` of the {nbytes} is read: one value for each row, which "
                "`(a * b).sum(-1)` computes of the rows themselves."
            )
            yield Advice("narrow_first", why, case.site, typed="(a * b).sum(-1)")


def _of_each(window: Window, large: LargeTensor, part: ComputedPart, spared: Ints) -> PartlyRead:
    """The joined tensor and its parts, each of which is done with when two more are made."""
    lives = window.lives
    results, parts = all_joined(window, large.row)
    order = np.lexsort((lives.alloc[parts], results))
    results, parts = results[order], parts[order]
    after_next = np.roll(parts, -_AFTER_NEXT)
    same = np.roll(results, -_AFTER_NEXT) == results
    ends = np.where(same, lives.alloc[after_next], lives.alloc[results])
    cuts = window.whole(spared)
    brief = window.ended_at(parts, np.maximum(ends, lives.alloc[parts]))
    rows = np.union1d(large.there, parts[window.at_peak[parts]])
    return PartlyRead(
        row=large.row,
        rows=rows,
        nbytes=int(lives.size[rows].sum()),
        saving=window.replayed(Cuts.joined(cuts, brief)),
        part=part,
    )


def _gathered(window: Window) -> PartlyRead | None:
    """Large probabilities or their logarithms, of which some are gathered or the first is asked."""
    size = window.lives.size
    least = max(1, int(_LEAST_SHARE * window.peak.bytes))
    large = ~window.has_owner & (size >= least)
    for site in np.unique(window.site[large & window.at_peak]).tolist():
        place = place_of(window.owners.sites.frames[site])
        part = gathered_part(place) if place is not None else None
        if part is None:
            continue
        made = np.flatnonzero(large & (window.site == site))
        there = made[window.at_peak[made]]
        return PartlyRead(
            row=int(there[-1]),
            rows=there,
            nbytes=int(size[there].sum()),
            saving=window.replayed(window.whole(made)),
            part=part,
        )
    return None


def _made_by_layer(window: Window, large: LargeTensor) -> int:
    """The row of what a layer made that the large tensor was computed of; -1 for none."""
    lives = window.lives
    last = lives.alloc[large.there].max(initial=lives.alloc[large.row])
    alike = window.at_peak & ~window.has_owner & (lives.alloc < last)
    alike &= lives.requested == lives.requested[large.row]
    rows = np.flatnonzero(alike).tolist()
    return next((row for row in reversed(rows) if _is_by_linear(window.stack(row))), -1)


def _spared(window: Window, large: LargeTensor, part: PartRead | ComputedPart) -> Ints:
    """What is not made any more, its gradients among it, which are as large."""
    made = made_on_its_line(window, large.row)
    if isinstance(part, ComputedPart):
        return np.union1d(made, np.flatnonzero(large.in_every_step))
    gradients = _gradients_of(window, large, part.place)
    return np.union1d(np.union1d(made, gradients), _read_likewise(window, large.row, part))


def _gradients_of(window: Window, large: LargeTensor, reading: Place) -> Ints:
    """Gradients of the whole result, which the statement makes that reads a part of it.

    Those of other tensors of that size, a hidden layer's perhaps, are needed as before.
    """
    frames = window.owners.sites.frames
    gradients = np.flatnonzero(large.in_every_step & (window.phase == Phase.BACKWARD))
    origins = np.unique(window.origin_site[gradients]).tolist()
    places = {origin: place_of(frames[origin]) for origin in origins if origin}
    own = [one for one, at in places.items() if at and at.statement is reading.statement]
    return gradients[np.isin(window.origin_site[gradients], own)]


def _read_likewise(window: Window, row: int, part: PartRead) -> Ints:
    """What comes by the same calls to the function that reads the part, whoever calls that one.

    Of two models that a step calls by one function each has a result of which it reads a part.
    """
    stack = window.stack(row)
    readers = (
        at for at, frame in enumerate(stack) if _is_in_function_of(place_of(frame), part.place)
    )
    way = stack[: next(readers, len(stack)) + 1]
    rows = np.flatnonzero(window.site == window.site[row])
    numbers = np.unique(window.lives.stack[rows]).tolist()
    alike = [one for one in numbers if window.trace.stack(one)[: len(way)] == way]
    return rows[np.isin(window.lives.stack[rows], alike)]


def _is_in_function_of(place: Place | None, other: Place) -> bool:
    """Whether two statements are of the same function."""
    return place is not None and place.program is other.program and place.function is other.function


def _is_shown_to_hooks(window: Window, large: LargeTensor) -> bool:
    """Whether a layer makes it, in a program that registers hooks which may read all of it."""
    return bool(window.module[large.row]) and any(
        calls_in(program.tree, *_HOOKS) for program in window.programs
    )


def _part(window: Window, large: LargeTensor) -> PartRead | ComputedPart | None:
    """The part that is read of what a layer, or a line of the program itself, computes whole."""
    stack = window.stack(large.row)
    if _is_by_linear(stack):
        return part_read(stack)
    if large.place is None:
        return None
    part = computed_part(large.place) or joined_part(large.place, window.programs)
    # A distribution's property computes it in functions of a library's.
    in_library = part is not None and part.instead is Instead.VARIANCE
    return part if in_library or made_by_its_statement(window, large.row) else None


def _diagonal(window: Window, large: LargeTensor) -> tuple[ComputedPart | None, int]:
    """The diagonal of what is as large as what came before it, as a covariance is, and its row."""
    of_step = np.flatnonzero(large.alike & (window.made_in == window.made_in[large.row]))
    _, firsts = np.unique(window.site[of_step], return_index=True)
    for row in of_step[firsts].tolist():
        place = place_of(window.frame_of(row))
        part = computed_part(place) if place is not None else None
        if part is not None and part.instead in (Instead.VARIANCE, Instead.ROWS):
            return part, row
    return None, large.row


def _is_by_linear(stack: Sequence[Frame]) -> bool:
    """Whether a layer made it that treats every position by itself."""
    return bool(stack) and _OF_LINEAR in stack[0].filename.replace("\\", "/")


RULE = PartlyReadResult()
