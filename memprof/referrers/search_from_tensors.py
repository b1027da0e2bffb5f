"""From tensors upwards to a name, pass by pass, in a heap too large for `search_from_roots`.

A pass asks the collector who refers to a few objects, which takes some 15 ns for each object that
it knows. Between two passes the job may run: then nothing is kept but numbers, and what they stood
for is looked up anew. At the end each way is walked down from its root, reference by reference, so
no answer rests on an object that has gone meanwhile.

Of what torch's C++ side alone holds, graphs are walked, down from the tensors that end them: what a
graph saved is held by whoever has such a tensor. Where the job has run since, they are walked again
for the answer. The rest is not seen.
"""

from __future__ import annotations

import gc
import sys
import time
import types
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from memprof.cpython.object_addresses import addresses
from memprof.records import Holder
from memprof.reference_chain import Link, LinkKind, Unowned
from memprof.referrers.find_holders import best_holders, keys_of, root_links, user_files
from memprof.referrers.gc_objects import live_tensors, objects_at
from memprof.referrers.heap import CHUNK, Deadline
from memprof.referrers.links import Naming
from memprof.referrers.links_by_type import KEEPING_ITERATORS
from memprof.referrers.merge_links import tidy
from memprof.referrers.rank_chains import score
from memprof.referrers.roots import Root, frame_roots, is_own, module_root
from memprof.referrers.targets import BlockIndex, Targets
from memprof.referrers.tensor_attributes import view_link
from memprof.referrers.torch_references import (
    TorchEdges,
    is_bare,
    is_symbolic,
    is_tensor_type,
    plain_torch,
    through_graph,
)
from memprof.referrers.unowned_memory import with_what_is_known
from memprof.source_code.find_line import reading_until
from memprof.sources.tensor_addresses import DeviceBlock, PlaceOf, place_of

__all__ = ["FOR_LINES_S", "GRAPHS_S", "UpwardSearch"]

_AT_ONCE = 8
"""Objects whose referrers one pass looks for; each is compared with every reference there is."""
_MOST_PASSES = 24
_MOST_ABOVE = 24
"""Referrers kept of one object; beyond that they are more of the same."""
FOR_LINES_S = 0.1
"""Seconds that reading sources may take at the end."""
GRAPHS_S = 0.1
"""Seconds that graphs are walked at most."""
_MOST_VIEWS = 4096
"""What an owner holds, among which views of the same memory are looked for."""
_MOST_ENDS = 24
"""Tensors that end graphs from which the way to a name is looked for: three passes."""
_LAST = 1.5
"""The next pass is taken to last at most so many times as long as the one before."""


@dataclass
class _Moment:
    """What is only looked at while the job waits; never kept from one time to the next."""

    frames: dict[int, Root]
    """The frames' roots by the ids of their values."""
    modules: dict[int, str]
    """Names of modules by the ids of their variables."""
    own: set[int]
    """Ids of lists of this search, which refer to what they hold."""

    @classmethod
    def now(cls) -> _Moment:
        """Of all threads and modules."""
        frames: dict[int, Root] = {}
        roots = frame_roots()
        for root in reversed(roots):
            frames.update((id(value), root) for value in root.values)
        modules = [(n, m) for n, m in list(sys.modules.items()) if issubclass(type(m), _MODULE)]
        variables = ((n, _MODULE.__getattribute__(m, "__dict__")) for n, m in reversed(modules))
        names = {id(variable): name for name, variable in variables if not is_own(variable)}
        return cls(frames, names, {id(root.values) for root in roots})


_MODULE = types.ModuleType


@dataclass
class _GraphsAlone:
    """Stands for the heap where nothing but graphs is walked."""

    complete: bool = True

    def is_tracked(self, one: object) -> bool:  # noqa: ARG002
        """Return False: no Python reference is followed."""
        return False


class UpwardSearch:
    """A search for the holders of some tensors that can be interrupted after each pass."""

    def __init__(
        self, targets: Sequence[object], *, limit: int = 3, place: PlaceOf = place_of
    ) -> None:
        """``targets`` and ``place`` as for `find_holders`, but no weak references."""
        blocks = BlockIndex([one for one in targets if type(one) is DeviceBlock], place)
        self._targets = dict(zip(targets, keys_of(targets, blocks), strict=True))
        target_keys = frozenset(key for key in self._targets.values() if key > 0)
        self._wanted_targets = Targets(target_keys, frozenset(), blocks)
        self._limit = limit
        self._key: dict[int, int] = {}
        """Key by the id of a tensor that shows what is looked for."""
        self._through_graphs: dict[tuple[int, int], tuple[Link, ...]] = {}
        """Ways that Python does not see, by the ids of the tensor where each begins and of what it
        leads to. What no tensor of Python's shows has its key, negative, for an id."""
        self._above: dict[int, list[int]] = defaultdict(list)
        """Ids of what refers to an object."""
        self._roots: dict[int, str] = {}
        """The module that has an object among its variables; empty for a running function."""
        self._keeping: set[int] = set()
        """Ids of iterators that keep what they have passed on: a loop may run through them, which
        has no variable for them."""
        self._in_graphs: dict[int, object] = {}
        """Tensors in graphs by id, while the answer is made."""
        self._has_run_since = False
        """The job has run since graphs were walked: they may be others now."""
        self._waiting: list[int] = []
        self._old_keys: set[int] = set()
        """Ids of what waits or has waited."""
        self._passes = 0
        self.has_begun = False
        """Whether it has looked for the tensors."""
        self.slowest_s = 0.0
        """Seconds that its longest pass took."""
        self.is_over = False
        self.searched: dict[object, tuple[Holder, ...]] = {}
        """Holders by target, once it is over; none for a target to which no way was found."""

    def proceed(self, limit_s: float) -> None:
        """Make passes while they are likely to be over within ``limit_s`` seconds; at least one.

        To be called with the collector at rest (`quiet`).
        """
        began_s = time.thread_time()
        moment = _Moment.now()
        self._has_run_since = self.has_begun  # the job, since graphs were walked
        waiting = self._start() if not self.has_begun else self._again()
        moment.own.add(id(waiting))
        before = self._passes
        while waiting and self._passes < _MOST_PASSES and not self._is_explained():
            spent_s = time.thread_time() - began_s
            if self._passes > before and spent_s + _LAST * self.slowest_s > limit_s:
                self._waiting = list(map(id, waiting))
                return
            self._pass(waiting, moment)
        with plain_torch():
            self._answer(moment)
        self.is_over = True

    def give_up(self) -> None:
        """No more passes; there are no holders where none were found by now."""
        self._waiting = []
        self._passes = _MOST_PASSES

    def _start(self) -> list[object]:
        began_s = time.thread_time()
        with plain_torch():
            tensors = (one for one in live_tensors() if not is_symbolic(one))
            keyed = [(one, self._wanted_targets.key(one)) for one in tensors]
        starts = [one for one, key in keyed if key]
        self._key = {id(one): key for one, key in keyed if key}
        starts += self._ends_of_graphs([one for one, _ in keyed])
        self._old_keys = set(map(id, starts))
        self.has_begun = True
        self.slowest_s = time.thread_time() - began_s
        return starts

    def _ends_of_graphs(self, tensors: list[Any]) -> list[object]:
        """Tensors whose graphs lead to what is looked for: first those in nobody else's graph.

        Of those within it a few: who has them is mostly another graph.
        """
        self._through_graphs = self._walk_graphs(tensors)
        above: dict[int, list[int]] = defaultdict(list)
        for up, at in self._through_graphs:
            above[at].append(up)
        self._key |= {at: -at for at in above if at < 0}
        wanted, level = dict.fromkeys(self._key), list(self._key)
        while level:
            level = [up for at in level for up in above.get(at, ()) if up not in wanted]
            wanted |= dict.fromkeys(level)
        for at in wanted:
            self._above[at] += [up for up in above.get(at, ()) if up != at][:_MOST_ABOVE]
        leading = [one for one in tensors if id(one) in wanted and id(one) not in self._key]
        leading.sort(key=lambda one: bool(self._above[id(one)]))
        return leading[:_MOST_ENDS]

    def _walk_graphs(self, tensors: list[Any]) -> dict[tuple[int, int], tuple[Link, ...]]:
        """Ways through graphs from a tensor to another one, or to what is looked for."""
        shown = {key for at, key in self._key.items() if at > 0}
        ways: dict[tuple[int, int], tuple[Link, ...]] = {}
        with plain_torch():
            ends = [one for one in tensors if not is_bare(one)]
            visible = frozenset(map(id, tensors))
            edges = TorchEdges(_GraphsAlone(), self._wanted_targets, visible, Deadline(GRAPHS_S))
            for place, edge in edges.of(ends):
                # A look at what is saved makes an object for it, which may live on.
                is_visible = id(edge.value) in visible
                key = self._wanted_targets.key(edge.value) if is_visible else edge.key  # type: ignore[arg-type]
                at = -key if key and key not in shown else id(edge.value)
                if is_visible or at < 0:
                    ways.setdefault((id(ends[place]), at), edge.path)
        return ways

    def _again(self) -> list[object]:
        """What waits, looked up by address, in the order in which it waits."""
        if not self._waiting:
            return []
        by_id = {id(one): one for one in objects_at(self._waiting)}
        return [by_id[at] for at in self._waiting if at in by_id]

    def _pass(self, waiting: list[object], moment: _Moment) -> None:
        """Find who refers to the first few, and have those wait in their place."""
        began_s = time.thread_time()
        self._passes += 1
        targets = waiting[:_AT_ONCE]
        del waiting[:_AT_ONCE]
        for one in targets:
            if id(one) in moment.frames:
                self._roots.setdefault(id(one), "")
        referrers = gc.get_referrers(*targets)
        ids = set(map(id, targets))
        moment.own |= {id(targets), id(referrers)}
        for owner in referrers:
            if id(owner) in moment.own or issubclass(type(owner), _PASSED_OVER):
                continue
            held_ids = _ids_held_by(owner, ids)
            if id(owner) in moment.modules:
                self._roots.update((one, moment.modules[id(owner)]) for one in held_ids)
                continue
            for one in held_ids:
                above = self._above[one]
                if len(above) < _MOST_ABOVE and id(owner) not in above:
                    above.append(id(owner))
            if issubclass(type(owner), KEEPING_ITERATORS):
                self._keeping.add(id(owner))
            if id(owner) not in self._old_keys:
                self._old_keys.add(id(owner))
                waiting.append(owner)
        took_s = time.thread_time() - began_s
        # the look for the tensors takes longer, and there is one
        self.slowest_s = took_s if self._passes == 1 else max(self.slowest_s, took_s)

    def _is_explained(self) -> bool:
        """Whether each target has a better holder than being a function's variable."""
        keys = set(self._key.values())
        explained = {key for key in keys if any(self._is_lasting(way) for way in self._ways(key))}
        return explained == keys

    def _is_lasting(self, way: list[int]) -> bool:
        """Whether it begins with a name, and with more than a running function's variable."""
        return way[0] in self._roots and (len(way) > 1 or bool(self._roots[way[0]]))

    def _ways(self, key: int) -> Iterator[list[int]]:
        """Ids from an object that has a name down to a tensor, the shortest first."""
        down: dict[int, int] = {}
        level = [at for at, one in self._key.items() if one == key]
        visited = set(level)
        below_loops: list[list[int]] = []
        while level:
            for at in level:
                if at in self._roots:
                    yield _way(at, down)
                elif at in self._keeping:
                    below_loops.append(_way(at, down))
            above = [(up, at) for at in level for up in self._above.get(at, ())]
            level = []
            for up, at in above:
                if up not in visited:
                    visited.add(up)
                    down[up] = at
                    level.append(up)
        yield from below_loops

    def _answer(self, moment: _Moment) -> None:
        naming, files = Naming(), user_files()
        if self._through_graphs and self._has_run_since:
            tensors = [one for one in live_tensors() if not is_symbolic(one)]
            self._through_graphs = self._walk_graphs(tensors)
        ends = {at for _, at in self._through_graphs if at > 0}
        self._in_graphs = {id(one): one for one in objects_at(sorted(ends))} if ends else {}
        deadline = Deadline(FOR_LINES_S)
        with reading_until(deadline.check):
            for target, key in self._targets.items():
                chains: list[tuple[Any, list[Link]]] = []
                for way in self._ways(key):
                    if chains and deadline.check():
                        break
                    root = self._root(way[0], moment)
                    links = self._links(root, way, naming) if root is not None else None
                    if root is not None and links is not None:
                        links = tidy([*root_links(root, self._first(root, way)), *links])
                        chains.append((score(links, user=root.user), links))
                    if len(chains) >= _MOST_ABOVE:
                        break
                by_merit = sorted(chains, key=lambda one: one[0])
                best = [one for _, one in by_merit] or self._unshown(key)
                self.searched[target] = best_holders(best, self._limit, files)
        self._in_graphs = {}

    def _unshown(self, key: int) -> list[list[Link]]:
        """What is known of memory that no tensor of Python's shows; nothing of other memory."""
        if not self.has_begun or any(at > 0 for at, one in self._key.items() if one == key):
            return []
        first = [Link(LinkKind.UNKNOWN, unowned=Unowned())]
        return [with_what_is_known(first, self._wanted_targets.blocks.block(key))]

    def _first(self, root: Root, way: list[int]) -> object:
        return next(value for value in root.values if id(value) == way[0])

    def _links(self, root: Root, way: list[int], naming: Naming) -> list[Link] | None:
        """The links below a root, if each object of a way still refers to the next one."""
        if not any(id(value) == way[0] for value in root.values):
            return None
        links: list[Link] = []
        run = [self._first(root, way)]
        for before, at in pairwise(way):
            path = self._through_graphs.get((before, at))
            if path is None and at < 0:
                return None
            if path is None:
                run += [one for one in gc.get_referents(run[-1]) if id(one) == at][:1]
            else:
                links += [*naming.links(run), *path]
                run = [self._in_graphs.get(at)] if at > 0 else [None]
            if at > 0 and (not run or id(run[-1]) != at):
                return None
        links += naming.links(run)
        links = through_graph(links)
        if way[-1] < 0:
            return links
        key = self._wanted_targets.key(run[-1])  # type: ignore[arg-type]
        return [*links, *view_link(run[-1], self._others(run, key))] if key else None

    def _others(self, run: list[object], key: int) -> list[object]:
        """What else the owner of a run's last tensor holds of the same memory: views beside it."""
        held = gc.get_referents(run[-2]) if len(run) > 1 else []
        if len(held) > _MOST_VIEWS:
            return []
        tensors = (one for one in held if one is not run[-1] and is_tensor_type(type(one)))
        return [one for one in tensors if self._wanted_targets.key(one) == key]

    def _root(self, at: int, moment: _Moment) -> Root | None:
        if at not in self._roots:
            kept = [one for one in objects_at([at]) if issubclass(type(one), KEEPING_ITERATORS)]
            return Root("iterated", type(kept[0]).__name__, [""], kept) if kept else None
        name = self._roots[at]
        if not name:
            return moment.frames.get(at)
        module = sys.modules.get(name)
        root = module_root(name, module) if module is not None else None
        return root if root is not None and any(id(one) == at for one in root.values) else None


_PASSED_OVER: tuple[type, ...] = (types.FrameType, types.ModuleType)
"""What functions and modules refer to is known by their variables."""


def _ids_held_by(owner: object, ids: set[int]) -> list[int]:
    """The ids among ``ids`` of what an object refers to."""
    referents: list[Any] = gc.get_referents(owner)
    if len(referents) > CHUNK:  # a list of millions: as numbers
        return [at for at in ids if (addresses(referents) == at).any()]
    return [at for at in set(map(id, referents)) if at in ids]


def _way(top: int, down: dict[int, int]) -> list[int]:
    way = [top]
    while way[-1] in down:
        way.append(down[way[-1]])
    return way
