"""shifted-copy: all of a data set is kept once more, some rows further on."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.lifespan import stays_near_peak
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.program import Place, Program, assigned, called_name, place_of
from memprof.source_code.scopes import parameters
from memprof.source_code.values import values_of
from memprof.source_code.verbs import FACTORIES, JOINING
from memprof.units import format_bytes
from memprof.views.window import Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.15
"""Of the peak."""
_ABOUT = 0.02
"""By which both may differ: the last row may be left out."""
_ROLL = "roll"
_KEEPING = frozenset(("pin_memory_", "requires_grad_", "share_memory_"))
"""What changes a tensor and none of its values."""
_COPIES = frozenset(("clone", "contiguous"))
_HOLDING = frozenset(("Data", "TensorDataset", "TensorDict"))
"""Classes of libraries whose objects have what they are given."""
_TUPLES = frozenset(("NamedTuple", "make_dataclass", "namedtuple"))
"""Functions that make such a class."""


@dataclass(frozen=True, slots=True, eq=False)
class ShiftedCopy(Match):
    """What is there once more, and under which name."""

    source: str = ""
    name: str = ""
    rows_further: str = ""
    """By how many rows, as it is written; empty where that is not known."""


class ShiftedCopyRule(WasteRule[ShiftedCopy]):
    """`self.next_obs = torch.cat([obs[1:], obs[-1:]])` beside `self.obs = obs`."""

    name = "shifted-copy"
    summary = "a data set is kept once more, some rows further on"
    fixes = ("store_once",)

    def matches(self, window: Window) -> Iterator[ShiftedCopy]:
        """What stays and is joined of slices of one name, beside something as large that stays."""
        mask = stays_near_peak(window) & window.at_peak & ~window.has_owner
        lives = window.lives
        for site in window.large_sites(mask, _LEAST_SHARE):
            rows = np.flatnonzero(mask & (window.site == site))
            row = int(rows[lives.size[rows].argmax()])
            shifted = _shifted(_places(window, row))
            if shifted is None or shifted.is_changed:
                continue
            size = int(lives.requested[row])
            every = np.flatnonzero((window.site == site) & ~window.has_owner)
            beside = rows[np.abs(lives.requested[rows] - size) <= _ABOUT * size]
            if shifted.is_beside and len(beside) > 1:  # one line makes both
                rows = every = beside[-1:]
            else:
                own = [site, *_heads(window, shifted.source)]
                others = lives.requested[mask & ~np.isin(window.site, own)]
                if not (np.abs(others - size) <= _ABOUT * size).any():
                    continue  # what it was made of is gone
            yield ShiftedCopy(
                row=row,
                rows=rows,
                nbytes=int(lives.size[rows].sum()),
                saving=window.replayed(window.whole(every)),
                source=shifted.source,
                name=shifted.name,
                rows_further=shifted.rows,
            )
            return

    def title(self, match: ShiftedCopy) -> str:
        """Say of what they are a copy."""
        return f"are `{match.source}` once more, some rows further on"

    def advice(self, match: ShiftedCopy, case: Case) -> Iterator[Advice]:
        """Read the rows by their own places."""
        why = (
            f"`{match.name}`, {format_bytes(match.nbytes)}, has the rows of `{match.source}` at "
            "other places: keep them once, and read the row that is meant by its own index."
        )
        further = match.rows_further
        typed = f"{match.source}[index + {further}]" if further else ""
        yield Advice("store_once", why, case.site, typed=typed)


@dataclass(frozen=True, slots=True, eq=False)
class _Shift:
    """The rows of one name under another."""

    source: str
    name: str
    rows: str
    """How many they are further on, as it is written; empty where that is not known."""
    program: Program
    is_beside: bool = False
    """The same statement copies those that are not further on as well."""
    fills: frozenset[int] = frozenset()
    """The targets, by identity, by which it gets its values to begin with."""

    @property
    def is_changed(self) -> bool:
        """Whether the file changes values in place: ``name[t].add_(…)``, ``name[t] = …``."""
        return any(_changes(node, self.name, self.fills) for node in self.program.nodes)


def _places(window: Window, row: int) -> list[Place]:
    """The program's statements on the way to what made a tensor, innermost first."""
    frames = [window.frame_of(row), *window.user_frames(window.stack(row))]
    places = [place for frame in frames if (place := place_of(frame)) is not None]
    return [
        place
        for at, place in enumerate(places)
        if not at or place.statement is not places[at - 1].statement
    ]


def _changes(node: ast.AST, name: str, fills: frozenset[int]) -> bool:
    changed: ast.expr | None = None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        is_in_place = node.func.attr.endswith("_") and not node.func.attr.endswith("__")
        changed = node.func.value if is_in_place and node.func.attr not in _KEEPING else None
    elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
        changed = node if id(node) not in fills else None
    elif isinstance(node, ast.AugAssign):
        changed = node.target
    while isinstance(changed, ast.Subscript) and ast.unparse(changed) != name:
        changed = changed.value
    # What a dictionary's entry is assigned to is its first value.
    is_entry = isinstance(node, ast.Subscript) and node is changed
    return changed is not None and not is_entry and ast.unparse(changed) == name


def _heads(window: Window, source: str) -> list[int]:
    """Sites of statements that copy the first rows of a name, ``obs[:n].clone()``.

    What begins further on may be the rest of them, and none of theirs.
    """
    return [
        site
        for site, frame in enumerate(window.owners.sites.frames)
        if (place := place_of(frame)) is not None
        and any(_is_head(node, source) for node in ast.walk(place.statement))
    ]


def _is_head(node: ast.AST, source: str) -> bool:
    """Whether it takes rows up to one that is counted from the first: not ``obs[:-1]``."""
    if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Slice):
        return False
    is_counted = node.slice.upper is not None and not isinstance(node.slice.upper, ast.UnaryOp)
    return is_counted and ast.unparse(node.value) == source


def _shifted(places: Sequence[Place]) -> _Shift | None:
    """What a statement copies, to which name, and how many rows further; None for others.

    ``places`` are the statements on the way to it, innermost first.
    """
    if not places:
        return None
    place = places[0]
    for own, value in _bound(place):
        parts = list(_parts(place, own, value))
        for name, part in parts:
            source, rows = _source_of(part)
            unshifted = {ast.unparse(one) for _, one in parts if one is not part}
            is_beside = any(f"{source}[:-{rows}]{end}" in unshifted for end in ("", ".clone()"))
            if not source:
                source, rows = _indexed(part, unshifted)
                is_beside = bool(source)
            if source and isinstance(place.statement, ast.Return) and part is value:
                return _returned(places, source, rows)
            if source and source != own and not _is_replaced(place, source, own):
                return _Shift(source, name, rows, place.program, is_beside)
        filled = _filled(place, own, value)
        if filled is not None:
            return filled
    return None


def _is_replaced(place: Place, source: str, own: str) -> bool:
    """Whether it takes the place of what it is a copy of: ``row = self.rows[key]`` before.

    The last rows of each key, of which the oldest goes when a new one comes.
    """
    values = values_of(place, source) if source.isidentifier() else ()
    return any(one is not None and ast.unparse(one) == own for one in values)


def _bound(place: Place) -> list[tuple[str, ast.expr | None]]:
    """What a statement binds, or returns, with the name it has then."""
    if isinstance(place.statement, ast.Return):
        return [("", place.statement.value)]
    return [(ast.unparse(target), value) for target, value in assigned(place.statement)]


def _parts(place: Place, own: str, value: ast.expr | None) -> Iterator[tuple[str, ast.expr]]:
    """A value and what it has inside, each with how that is taken of the name."""
    if value is None:
        return
    yield own, value
    yield from _entries(own, value)
    if isinstance(value, ast.Call) and _makes_object(place, value):
        prefix = f"{own}." if own else ""
        yield from ((ast.unparse(one), one) for one in value.args)
        yield from ((f"{prefix}{one.arg}", one.value) for one in value.keywords if one.arg)


def _entries(own: str, value: ast.expr | None) -> list[tuple[str, ast.expr]]:
    """The values of ``{"next": b}`` or ``dict(next=b)``, each with how it is taken of the name."""
    if isinstance(value, ast.Dict):
        pairs = zip(value.keys, value.values, strict=True)
        return [(f"{own}[{ast.unparse(key)}]", one) for key, one in pairs if key is not None]
    if isinstance(value, ast.Call) and called_name(value) == "dict":
        named = [(one.arg, one.value) for one in value.keywords if one.arg is not None]
        return [(f"{own}[{key!r}]", one) for key, one in named]
    return []


def _makes_object(place: Place, call: ast.Call) -> bool:
    """Whether a call makes an object of a class that keeps what it is given."""
    name = called_name(call)
    if name in _HOLDING or any(one.name == name for one in place.program.classes()):
        return True
    made = [
        value
        for node in place.program.tree.body
        for target, value in assigned(node)
        if isinstance(target, ast.Name) and target.id == name
    ]
    return any(called_name(one) in _TUPLES for one in made if one is not None)


def _indexed(value: ast.expr, beside: Collection[str]) -> tuple[str, str]:
    """``obs`` and ``1`` of ``obs[at + 1]``, where ``obs[at]`` is kept beside it; else empty."""
    if not isinstance(value, ast.Subscript) or not isinstance(value.slice, ast.BinOp):
        return "", ""
    index, source = value.slice, ast.unparse(value.value)
    is_further = isinstance(index.op, ast.Add) and isinstance(index.right, ast.Constant)
    is_kept = f"{source}[{ast.unparse(index.left)}]" in beside
    return (source, ast.unparse(index.right)) if is_further and is_kept else ("", "")


def _returned(places: Sequence[Place], source: str, rows: str) -> _Shift | None:
    """What a function was given whose rows it returns further on, and the name of the result."""
    function = places[0].function
    names = list(parameters(function)) if function is not None else []
    if function is None or source not in names or len(places) < 2:
        return None
    outer = places[1]
    for target, value in assigned(outer.statement):
        if not isinstance(value, ast.Call) or called_name(value) != function.name:
            continue
        given = {one.arg: one.value for one in value.keywords}
        own = names[int(names[:1] in (["self"], ["cls"])) :]
        argument = given.get(source) or dict(zip(own, value.args, strict=False)).get(source)
        if argument is not None:
            return _Shift(ast.unparse(argument), ast.unparse(target), rows, outer.program)
    return None


def _filled(place: Place, own: str, value: ast.expr | None) -> _Shift | None:
    """What is written into an empty tensor: ``following[:-1] = obs[1:]``."""
    if not isinstance(value, ast.Call) or called_name(value) not in FACTORIES:
        return None
    written = [
        (target, part)
        for node in ast.walk(place.scope)
        for target, part in assigned(node)
        if isinstance(target, ast.Subscript) and ast.unparse(target.value) == own
    ]
    for target, part in written:
        source, rows = _sliced(part) if part is not None else ("", "")
        begins = isinstance(target.slice, ast.Slice) and target.slice.lower is None
        if part is not None and isinstance(target.slice, ast.Name):  # in a loop, row by row
            source, rows = _row_further(part, target.slice.id)
            begins = True
        if rows and begins and source != own:
            ends = [one for one, _ in written if _is_end(one.slice)]
            fills = frozenset(map(id, [target, *ends]))
            return _Shift(source, own, rows, place.program, fills=fills)
    return None


def _row_further(value: ast.expr, index: str) -> tuple[str, str]:
    """``obs`` and ``1`` of ``obs[at + 1]``; empty for other rows than those behind a place."""
    behind = value.slice if isinstance(value, ast.Subscript) else None
    if not isinstance(behind, ast.BinOp) or not isinstance(behind.op, ast.Add):
        return "", ""
    is_index = ast.unparse(behind.left) == index and isinstance(behind.right, ast.Constant)
    assert isinstance(value, ast.Subscript)
    return (ast.unparse(value.value), ast.unparse(behind.right)) if is_index else ("", "")


def _is_end(index: ast.expr) -> bool:
    """Whether an index takes the last rows: ``-1``, ``-2:``."""
    first = index.lower if isinstance(index, ast.Slice) else index
    return isinstance(first, ast.UnaryOp) and isinstance(first.op, ast.USub)


def _source_of(value: ast.expr | None) -> tuple[str, str]:
    """The one name whose rows an expression has further on, and how far; else empty."""
    if not isinstance(value, ast.Call):
        return "", ""
    name = called_name(value)
    receiver = value.func.value if isinstance(value.func, ast.Attribute) else None
    if name == _ROLL:
        is_method = isinstance(receiver, ast.Attribute) or (
            isinstance(receiver, ast.Name) and receiver.id != "torch"
        )
        given = [*([receiver] if is_method else []), *value.args]
        source, by = given[0] if given else None, given[1] if len(given) > 1 else None
        by = by or next((one.value for one in value.keywords if one.arg == "shifts"), None)
        is_back = isinstance(by, ast.UnaryOp) and isinstance(by.op, ast.USub)
        rows = ast.unparse(by.operand) if isinstance(by, ast.UnaryOp) and is_back else ""
        return (ast.unparse(source), rows) if source is not None else ("", "")
    if name in JOINING and value.args and isinstance(value.args[0], (ast.List, ast.Tuple)):
        parts = [_sliced(one) for one in value.args[0].elts]
        # What begins with the first rows leaves some out, and is a selection.
        is_one = len({source for source, _ in parts}) == 1
        is_one = is_one or (len(parts) == 2 and _is_row(value.args[0].elts[1]))
        return parts[0] if parts and is_one and parts[0][1] else ("", "")
    if name not in _COPIES or receiver is None:
        return "", ""
    sliced = _sliced(value.args[0] if ast.unparse(receiver) == "torch" and value.args else receiver)
    return sliced if sliced[1] else ("", "")


def _is_row(value: ast.expr) -> bool:
    """Whether it is one row, with a dimension for it: ``obs[-1].unsqueeze(0)``, ``last[None]``."""
    if isinstance(value, ast.Call):
        return called_name(value) == "unsqueeze"
    index = value.slice if isinstance(value, ast.Subscript) else None
    return isinstance(index, ast.Constant) and index.value is None


def _sliced(value: ast.expr) -> tuple[str, str]:
    """``obs`` and ``1`` of ``obs[1:]``; empty for what takes no rows of one stretch."""
    if not isinstance(value, ast.Subscript) or not isinstance(value.slice, ast.Slice):
        return "", ""
    is_name = isinstance(value.value, (ast.Name, ast.Attribute))
    if not is_name or value.slice.step is not None:
        return "", ""
    lower = value.slice.lower
    return ast.unparse(value.value), ast.unparse(lower) if lower is not None else ""


RULE = ShiftedCopyRule()
