"""bytes-as-floats: values of 0 to 255 are kept in a floating type, over the steps."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.large_tensor import made_by_its_statement
from memprof.rules.lifespan import stays_near_peak
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.rules.values_read import values_by_stack_and_size
from memprof.source_code.idioms import keyword
from memprof.source_code.program import (
    Place,
    assigned,
    bound_names,
    called_name,
    place_of,
)
from memprof.source_code.values import values_of
from memprof.source_code.verbs import JOINING
from memprof.trace import EMPTY, Category
from memprof.units import format_bytes
from memprof.views.peak_without import Cuts, Saving
from memprof.views.window import Ints, Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.1
"""Of the peak."""
_NEARLY_ALL, _MOST_OF_IT = 0.8, 0.5
"""Of the peak, from which what only samples tell is a headline, …"""
_LONG = 8
"""… and from which it is where each value has so many bytes, of which seven are spared."""
_REPEATED = 3
"""Times that the same values are there: to keep them once saves as much."""
_HIGHEST = 255
"""Of a byte."""
_FLOAT = 4
"""Bytes of a value in float32, of which a byte is one part."""
_DIVIDES = ("div", "div_", "divide", "divide_", "true_divide")
_FILLS = ("copy_",)
_ADDS = ("append", "appendleft")
_KEEPS_VALUES = frozenset(("clone", "contiguous", "float", "to", "type"))
"""Methods after which the values of a part are what they were."""
_MAKES = frozenset(("empty", "zeros", "ones", "full"))


@dataclass(frozen=True, slots=True, eq=False)
class Bytes(Match):
    """Where the bytes are divided."""

    place: Place | None = None
    when_read: bool = False
    """They are kept as they are, and divided as they are read."""
    distinct: int = 0
    """Different values, by samples of them; 0 where the source tells that they are bytes."""
    item_bytes: int = 0
    """Bytes of one of those."""


class BytesAsFloats(WasteRule[Bytes]):
    """`self.frames[at] = torch.from_numpy(frame).float() / 255`: four bytes are kept for one."""

    name = "bytes-as-floats"
    summary = "values of 0 to 255 are kept in a floating type"
    fixes = ("keep_bytes",)
    yields_to = ("mostly-zeros", "widened-weights")

    def matches(self, window: Window) -> Iterator[Bytes]:
        """What stays over the steps and is filled with, or made of, a quotient by 255.

        Or whose parts are divided by 255 when they are read.
        """
        mask = stays_near_peak(window)
        of_first: tuple[Place, bool] | None = None
        parts: list[Ints] = []
        largest: list[int] = []
        for site in window.large_sites(mask, _LEAST_SHARE):
            place = place_of(window.owners.sites.frames[site])
            of_site = mask & (window.site == site)
            row = window.largest(of_site)
            if place is None or not made_by_its_statement(window, row):
                continue
            divides = _division(place)
            at = divides or _division_of_parts(place)
            if at is None:
                continue
            if of_first is None:
                of_first = at, divides is None
            elif (divides is None) != of_first[1]:
                continue
            parts.append(np.flatnonzero(of_site))
            largest.append(row)
        if of_first is None:
            match = _of_few_values(window)
            if match is not None:
                yield match
            return
        rows = np.concatenate(parts)
        yield Bytes(
            row=largest[0],
            rows=rows,
            nbytes=int(window.lives.size[rows].sum()),
            saving=_saving(window, rows, largest),
            place=of_first[0],
            when_read=of_first[1],
        )

    def title(self, match: Bytes) -> str:
        """Say what they are kept as."""
        if match.distinct:
            return f"have {match.distinct} different values, in {match.item_bytes} bytes each"
        kept_as = "floats" if match.when_read else "fractions"
        return f"are bytes that are kept as {kept_as}, in four times the memory"

    def advice(self, match: Bytes, case: Case) -> Iterator[Advice]:
        """Keep the bytes, and divide a batch when it is used."""
        nbytes = format_bytes(match.nbytes)
        if match.distinct:
            why = (
                f"{nbytes} have no more than {match.distinct} different values, by a sample, each "
                f"in {match.item_bytes} bytes: a byte tells them apart. Keep them as `torch.uint8`,"
                " and convert each batch when it is used."
            )
            yield Advice("keep_bytes", why, case.site, remains=1 / match.item_bytes)
            return
        place = match.place
        assert place is not None
        why = (
            f"{nbytes} of float32 hold what was divided by 255: kept as `torch.uint8` it takes a "
            "quarter. Divide each batch when it is used."
        )
        if match.when_read:
            why = (
                f"{nbytes} of float32 hold values that are divided by 255 only when they are read "
                f"(line {place.line}): give it `dtype=torch.uint8`, which takes a quarter."
            )
            place = case.site or place
        site = case.place_at(place.program.filename, place.line)
        yield Advice("keep_bytes", why, site or case.site)


def _of_few_values(window: Window) -> Bytes | None:
    """What stays over the steps and has so few different values that bytes do."""
    mask = stays_near_peak(window) & window.at_peak & (window.category != Category.ACTIVATION)
    mask &= window.lives.stack != EMPTY
    few = np.zeros(len(window.lives), dtype=bool)
    known = values_by_stack_and_size(window)
    for (stack, size), values in known.items():
        is_repeated = max(values.repeats, values.same) >= _REPEATED  # those are the same values
        if values.distinct and values.item_bytes >= _FLOAT and not is_repeated:
            few |= (window.lives.stack == stack) & (window.lives.requested == size)
    if window.share(window.bytes_of(few & mask)) < _LEAST_SHARE:
        return None
    row = window.main_site(few & mask)
    values = known[int(window.lives.stack[row]), int(window.lives.requested[row])]
    rows = np.flatnonzero(few & mask)
    return Bytes(
        row=row,
        rows=rows,
        nbytes=int(window.lives.size[rows].sum()),
        saving=window.replayed(window.whole(rows)),
        # A ring of frames is often left so; where it is nearly all there is, nobody would.
        tentative=window.share(window.bytes_of(few & mask))
        < (_MOST_OF_IT if values.item_bytes >= _LONG else _NEARLY_ALL),
        distinct=values.distinct + (values.filled < 1),
        item_bytes=values.item_bytes,
    )


def _saving(window: Window, rows: Ints, largest: list[int]) -> Saving:
    """What is spared where a quarter of ``rows`` is kept, and nothing is computed on the way."""
    lives = window.lives
    on_the_way = np.zeros(len(lives), dtype=bool)
    for row in largest:
        if window.share(int(lives.requested[row])) >= _LEAST_SHARE:
            alike = (window.site == window.site[row]) & ~window.has_owner
            on_the_way |= alike & (lives.requested == lives.requested[row])
    on_the_way[rows] = False
    kept, whole = window.whole(rows), window.whole(np.flatnonzero(on_the_way))
    columns = zip(
        (kept.rows, kept.start, kept.end), (whole.rows, whole.start, whole.end), strict=True
    )
    cuts = Cuts(*(np.concatenate([np.tile(a, _FLOAT - 1), np.tile(b, _FLOAT)]) for a, b in columns))
    return window.replayed(cuts, divisor=_FLOAT)


def _division(place: Place) -> Place | None:
    """The statement that divides by 255 what a statement's tensor holds; None for others."""
    statement = place.statement
    if _divided(place, getattr(statement, "value", None)):
        return place
    targets = bound_names(statement)
    if len(targets) != 1 or not _is_plain(statement):
        return None
    name = ast.unparse(targets[0])
    for node in ast.walk(_scope(place, targets[0])):
        value = _put_into(node, name)
        at = place.program.place(node) if value is not None else None
        if at is not None and _divided(at, value):
            return at
    return None


def _division_of_parts(place: Place) -> Place | None:
    """The statement that divides by 255, as it is read, a part of what another one makes."""
    targets = bound_names(place.statement)
    if len(targets) != 1 or not _is_plain(place.statement):
        return None
    name = ast.unparse(targets[0])
    for node in ast.walk(_scope(place, targets[0])):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and _is_highest(node.right):
            part: ast.expr = node.left
        elif isinstance(node, ast.Call) and called_name(node) in _DIVIDES:
            if not any(map(_is_highest, node.args)) or not isinstance(node.func, ast.Attribute):
                continue
            part = node.func.value
        else:
            continue
        while isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute):
            if called_name(part) not in _KEEPS_VALUES:
                break
            part = part.func.value
        if _is_part_of(part, name):
            return place.program.place(node)
    return None


def _scope(place: Place, target: ast.expr) -> ast.AST:
    """Where a variable, or an attribute of an object, is filled."""
    of_class = place.class_ if isinstance(target, ast.Attribute) else None
    return of_class or place.scope


def _is_plain(statement: ast.stmt) -> bool:
    """Whether a statement makes a tensor of a floating type: ``torch.zeros(n, *shape)``."""
    value = getattr(statement, "value", None)
    if not isinstance(value, ast.Call) or called_name(value) not in _MAKES:
        return False
    dtype = keyword(value, "dtype")
    return dtype is None or ast.unparse(dtype) in ("torch.float", "torch.float32")


def _put_into(node: ast.AST, name: str) -> ast.expr | None:
    """What a node writes into a tensor of a name: ``x[i] = value``, ``x[i].copy_(value)``."""
    if isinstance(node, ast.Call) and called_name(node) in _FILLS and node.args:
        target = node.func.value if isinstance(node.func, ast.Attribute) else None
        return node.args[0] if _is_part_of(target, name) else None
    for target, value in assigned(node):
        if _is_part_of(target, name):
            return value
    return None


def _is_part_of(target: ast.expr | None, name: str) -> bool:
    return isinstance(target, ast.Subscript) and ast.unparse(target.value) == name


def _divided(place: Place, value: ast.expr | None, names: frozenset[str] = frozenset()) -> bool:
    """Whether a value is a quotient by 255, or joins such; by a variable of the function, too.

    ``names`` are those that it is already the value of: ``x = (x - x.mean()) / x.std()``.
    """
    if isinstance(value, ast.Name):
        bound = [one for one in values_of(place, value.id) if one is not None]
        is_new = value.id not in names
        names |= {value.id}
        value = bound[0] if len(bound) == 1 and is_new else None
    if value is None or isinstance(value, ast.Name):
        return False
    if isinstance(value, ast.BinOp):
        if isinstance(value.op, ast.Div) and _is_highest(value.right):
            return True
        # less a mean, by a deviation
        return isinstance(value.op, (ast.Sub, ast.Div)) and _divided(place, value.left, names)
    if isinstance(value, ast.ListComp):
        return _divided(place, value.elt, names)
    if not isinstance(value, ast.Call):
        return False
    name = called_name(value)
    if name in _ADDS:
        return any(_divided(place, argument, names) for argument in value.args)
    if name in _DIVIDES and any(map(_is_highest, value.args)):
        return True
    if name in JOINING:
        parts = (node for argument in value.args for node in ast.walk(argument))
        return any(
            _divided(place, node, names)
            for node in parts
            if isinstance(node, (ast.BinOp, ast.Call)) and called_name(node) not in JOINING
        )
    receiver = value.func.value if isinstance(value.func, ast.Attribute) else None
    return isinstance(receiver, (ast.BinOp, ast.Call)) and _divided(place, receiver, names)


def _is_highest(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value == _HIGHEST


RULE = BytesAsFloats()
