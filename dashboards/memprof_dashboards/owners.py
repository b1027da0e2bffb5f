"""The figure "what was alive": live bytes by module and by stack, and the largest sites."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt

from memprof.source_code.frame_kind import FrameKind, frame_kind
from memprof.trace import Frame, Tables
from memprof.views.owners import NO_MODULE
from memprof.views.sites import NO_SITE, short_path, site_name
from memprof_dashboards.text import visible
from memprof_dashboards.views import DeviceView, WindowView

__all__ = ["OwnersFigure", "Tree", "owners_figures"]

Ints = npt.NDArray[np.int64]

_GROUPS = 6000
"""Distinct combinations of owners that are told apart; the smallest beyond that are lumped."""
_NODES = 1500
_SMALLEST = 1 / 2000
"""The least share of the whole that has a node of its own: a pixel or less on most screens."""
_ROWS = 12
_SMALLER = "(smaller ones)"


class Tree(msgspec.Struct):
    """Nodes as columns; row 0 is the whole, and a parent comes before its children."""

    label: list[str]
    title: list[str]
    """The full name, for a tooltip."""
    parent: list[int]
    bytes: list[int]
    count: list[int]
    category: list[int]
    """The category with the most bytes, by which a node is coloured."""
    parts: list[list[tuple[int, int]]]
    """``(category, bytes)`` of a node, largest first."""


class SiteRow(msgspec.Struct):
    """One of the largest sites."""

    name: str
    bytes: int
    count: int
    stack: int
    """The stack with the most bytes there."""
    parts: list[tuple[int, int]]


class OwnersFigure(msgspec.Struct):
    """What was alive at one moment."""

    event: int
    time_us: int
    """Since the run's origin; -1 where not known."""
    allocated: int
    trees: dict[str, Tree]
    """``module`` (where modules were recorded), ``stack`` (torch folded), ``frames`` (all)."""
    sites: list[SiteRow]
    site_count: int


@dataclass(frozen=True, slots=True, eq=False)
class _Live:
    """Live bytes as distinct combinations of stack, module and category, largest first."""

    stack: Ints
    module: Ints
    category: Ints
    bytes: Ints
    count: Ints


def owners_figures(view: DeviceView) -> dict[str, OwnersFigure]:
    """``peak`` and ``end``: whose bytes were alive then; empty where there is no state at all."""
    return {name: _figure(view, *moment) for name, moment in view.moments.items()}


def _figure(view: DeviceView, window: WindowView, entry: int) -> OwnersFigure:
    live = _live(window, entry)
    trees = {"stack": _stack_tree(window, live, fold=True)}
    trees["frames"] = _stack_tree(window, live, fold=False)
    if len(window.owners.module.names) > 1:
        trees["module"] = _module_tree(window, live)
    time = int(window.times(np.array([entry]), view.origin)[0]) if window.clocked else -1
    rows, count = _site_rows(view, window, live)
    return OwnersFigure(
        event=window.first_event + entry,
        time_us=time,
        allocated=int(window.line.allocated[entry]),
        trees=trees,
        sites=rows,
        site_count=count,
    )


def _live(window: WindowView, entry: int) -> _Live:
    alive = np.flatnonzero(window.line.lives.alive_at(entry - 1))
    lives, who = window.line.lives, window.owners
    key = np.stack([lives.stack[alive], who.module.of[alive], who.category.of[alive]])
    distinct, back = np.unique(key, axis=1, return_inverse=True)
    back = back.reshape(-1)
    total = np.bincount(back, weights=lives.size[alive], minlength=distinct.shape[1])
    number = np.bincount(back, minlength=distinct.shape[1])
    order = np.argsort(-total, kind="stable")
    stack, module, category = distinct[:, order].astype(np.int64)
    return _Live(stack, module, category, total[order].astype(np.int64), number[order])


# -- trees -----------------------------------------------------------------------------------------

_Step = tuple[str, str]
"""The label and the title of one node on a path."""


@dataclass(slots=True)
class _Node:
    label: str
    title: str
    parent: int
    bytes: int = 0
    count: int = 0
    parts: dict[int, int] = field(default_factory=dict)
    children: dict[_Step, int] = field(default_factory=dict)

    def add(self, nbytes: int, count: int, category: int) -> None:
        self.bytes += nbytes
        self.count += count
        self.parts[category] = self.parts.get(category, 0) + nbytes


def _tree(live: _Live, path_of: Callable[[int], Iterator[_Step]]) -> Tree:
    """Every combination walks down its path; small branches end early, as one node each."""
    nodes = [_Node("everything", "everything alive", -1)]
    least = int(live.bytes.sum()) * _SMALLEST
    for row in range(len(live.bytes)):
        nbytes, count = int(live.bytes[row]), int(live.count[row])
        category = int(live.category[row])
        at = 0
        nodes[0].add(nbytes, count, category)
        path = path_of(row) if row < _GROUPS else iter(())
        for step in _merge(path, nodes, nbytes, least):
            at = _child(nodes, at, step)
            nodes[at].add(nbytes, count, category)
    return _columns(nodes)


def _merge(path: Iterator[_Step], nodes: list[_Node], nbytes: int, least: float) -> Iterator[_Step]:
    """The path, until the page has nodes enough and this one is too small to be seen."""
    at = 0
    for step in path:
        child = nodes[at].children.get(step)
        if child is None and (nbytes < least or len(nodes) >= _NODES):
            yield (_SMALLER, "branches too small to draw")
            return
        yield step
        at = nodes[at].children[step]


def _child(nodes: list[_Node], parent: int, step: _Step) -> int:
    index = nodes[parent].children.setdefault(step, len(nodes))
    if index == len(nodes):
        nodes.append(_Node(visible(step[0], 120), visible(step[1]), parent))
    return index


def _columns(nodes: list[_Node]) -> Tree:
    parts = [sorted(n.parts.items(), key=lambda p: -p[1]) for n in nodes]
    return Tree(
        label=[n.label for n in nodes],
        title=[n.title for n in nodes],
        parent=[n.parent for n in nodes],
        bytes=[n.bytes for n in nodes],
        count=[n.count for n in nodes],
        category=[p[0][0] if p else 0 for p in parts],
        parts=parts,
    )


def _module_tree(window: WindowView, live: _Live) -> Tree:
    """Module path, then the site within it."""
    names, sites = window.owners.module.names, window.owners.sites

    def path(row: int) -> Iterator[_Step]:
        module = names[live.module[row]]
        parts = [module] if module == NO_MODULE else module.split(".")
        for depth, part in enumerate(parts):
            yield part, ".".join(parts[: depth + 1])
        frame = sites.frames[sites.of_stack[live.stack[row]]]
        yield _brief(frame), site_name(frame)

    return _tree(live, path)


def _stack_tree(window: WindowView, live: _Live, *, fold: bool) -> Tree:
    """Stacks from the outermost frame inwards; folded ones keep the user's frames alone."""
    tables = window.trace.tables
    paths: dict[int, list[_Step]] = {}

    def path(row: int) -> Iterator[_Step]:
        stack = int(live.stack[row])
        if stack not in paths:
            paths[stack] = _stack_path(tables, stack, fold=fold)
        return iter(paths[stack])

    return _tree(live, path)


def _stack_path(tables: Tables, stack: int, *, fold: bool) -> list[_Step]:
    frames = tables.stack(stack)[::-1]
    if not frames:
        return [("(no stack recorded)", "allocated where no stack was recorded")]
    path_frames = [f for f in frames if not fold or frame_kind(f.filename) is FrameKind.USER]
    path_frames = path_frames or [max(frames[::-1], key=lambda f: frame_kind(f.filename))]
    return [(_brief(f), site_name(f)) for f in path_frames]


def _brief(frame: Frame) -> str:
    if frame == NO_SITE:
        return "(no stack)"
    if frame_kind(frame.filename) is FrameKind.NATIVE:
        return frame.name or "(native code)"
    return f"{frame.name} · {short_path(frame.filename, 1)}:{frame.line}"


# -- the table of sites ----------------------------------------------------------------------------


def _site_rows(view: DeviceView, window: WindowView, live: _Live) -> tuple[list[SiteRow], int]:
    sites = window.owners.sites
    of = sites.of_stack[live.stack]
    total = np.bincount(of, weights=live.bytes, minlength=len(sites.frames)).astype(np.int64)
    count = np.bincount(of, weights=live.count, minlength=len(sites.frames)).astype(np.int64)
    order = np.argsort(-total, kind="stable")
    order = order[total[order] > 0]
    rows = []
    for site in order[:_ROWS].tolist():
        here = np.flatnonzero(of == site)
        by_category = np.bincount(live.category[here], weights=live.bytes[here]).astype(np.int64)
        top_categories = np.argsort(-by_category, kind="stable")[:4].tolist()
        rows.append(
            SiteRow(
                name=visible(site_name(sites.frames[site])),
                bytes=int(total[site]),
                count=int(count[site]),
                stack=view.book.numbers(live.stack[here[:1]])[0],
                parts=[(c, int(by_category[c])) for c in top_categories if by_category[c]],
            )
        )
    return rows, len(order)
