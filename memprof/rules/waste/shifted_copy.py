"""shifted-copy: all of a data set is kept once more, some rows further on."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.lifespan import stays_near_peak
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.program import Place, Program, assigned, called_name, place_of
from memprof.source_code.verbs import JOINING
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
            place = place_of(window.owners.sites.frames[site])
            shifted = _shifted(place) if place is not None else None
            if place is None or shifted is None or _is_changed(place.program, shifted[1]):
                continue
            rows = np.flatnonzero(mask & (window.site == site))
            size = int(lives.requested[rows].max())
            own = [site, *_heads(window, shifted[0])]
            others = lives.requested[mask & ~np.isin(window.site, own)]
            if not (np.abs(others - size) <= _ABOUT * size).any():
                continue  # what it was made of is gone
            every = np.flatnonzero((window.site == site) & ~window.has_owner)
            yield ShiftedCopy(
                row=int(rows[lives.size[rows].argmax()]),
                rows=rows,
                nbytes=int(lives.size[rows].sum()),
                saving=window.replayed(window.whole(every)),
                source=shifted[0],
                name=shifted[1],
                rows_further=shifted[2],
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


def _is_changed(program: Program, name: str) -> bool:
    """Whether a file changes values of a tensor in place: ``name[t].add_(…)``, ``name[t] = …``."""
    for node in program.nodes:
        changed: ast.expr | None = None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            is_in_place = node.func.attr.endswith("_") and not node.func.attr.endswith("__")
            changed = node.func.value if is_in_place and node.func.attr not in _KEEPING else None
        elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            changed = node
        elif isinstance(node, ast.AugAssign):
            changed = node.target
        while isinstance(changed, ast.Subscript) and ast.unparse(changed) != name:
            changed = changed.value
        # What a dictionary's entry is assigned to is its first value.
        is_entry = isinstance(node, ast.Subscript) and node is changed
        if changed is not None and not is_entry and ast.unparse(changed) == name:
            return True
    return False


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


def _shifted(place: Place) -> tuple[str, str, str] | None:
    """What a statement copies, to which name, and how many rows further; None for others."""
    for target, value in assigned(place.statement):
        own = ast.unparse(target)
        for name, part in [(own, value), *_entries(own, value)]:
            source, rows = _source_of(part)
            if source and source != own:
                return source, name, rows
    return None


def _entries(own: str, value: ast.expr | None) -> list[tuple[str, ast.expr]]:
    """The values of ``{"next": b}`` or ``dict(next=b)``, each with how it is taken of the name."""
    if isinstance(value, ast.Dict):
        pairs = zip(value.keys, value.values, strict=True)
        return [(f"{own}[{ast.unparse(key)}]", one) for key, one in pairs if key is not None]
    if isinstance(value, ast.Call) and called_name(value) == "dict":
        named = [(one.arg, one.value) for one in value.keywords if one.arg is not None]
        return [(f"{own}[{key!r}]", one) for key, one in named]
    return []


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
        is_back = isinstance(by, ast.UnaryOp) and isinstance(by.op, ast.USub)
        rows = ast.unparse(by.operand) if isinstance(by, ast.UnaryOp) and is_back else ""
        return (ast.unparse(source), rows) if source is not None else ("", "")
    if name in JOINING and value.args and isinstance(value.args[0], (ast.List, ast.Tuple)):
        parts = [_sliced(one) for one in value.args[0].elts]
        # What begins with the first rows leaves some out, and is a selection.
        is_one = len({source for source, _ in parts}) == 1 and bool(parts[0][1])
        return parts[0] if is_one else ("", "")
    if name not in _COPIES or receiver is None:
        return "", ""
    sliced = _sliced(receiver)
    return sliced if sliced[1] else ("", "")


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
