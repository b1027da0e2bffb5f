"""The search itself: from roots forwards to the targets, then back up to say how they are held."""

from __future__ import annotations

import gc
import sys
import time
import types
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count

import numpy as np
import torch

from memprof.cpython.object_addresses import addresses
from memprof.cpython.tracked_objects import tracked_objects
from memprof.reference_chain import Link, LinkKind
from memprof.referrers.heap import (
    CHUNK,
    LATE,
    SPECIAL,
    TARGET,
    VISITED,
    Deadline,
    Heap,
    Level,
    places_among,
)
from memprof.referrers.iterated import iterated_roots
from memprof.referrers.links_by_type import KEEPING_ITERATORS
from memprof.referrers.numpy_arrays import kept_by_arrays
from memprof.referrers.roots import (
    ClassesByOwner,
    Root,
    classes_by_owner,
    frame_roots,
    module_roots,
)
from memprof.referrers.targets import Targets
from memprof.referrers.torch_references import (
    TorchEdges,
    TorchReference,
    is_bare,
    is_symbolic,
    is_tensor_type,
    plain_torch,
)
from memprof.sources.graph_nodes import is_node_type
from memprof.sources.training_threads import may_read_graphs

__all__ = ["Reference", "Search", "quiet"]

_MAX_REFERENCES = 24
"""Referrers kept of one target; beyond that they are more of the same."""
_MOST_VIEWS = 4096
"""Views of one storage by the same owner, of which it is known how much they show."""
_MANY_OBJECTS = 250_000
"""In a larger heap, of frameworks that are imported, modules of libraries take most of the time:
0.24 of 0.47 s for 460,000 objects, 2026-11-23."""
_NEAR_NAMES = 30_000
"""Objects that the names of a group of roots lead to first, by whose arrays something is looked for
at once: 10 ms. In the heap of a framework there is no time left for that after all else."""
_FOR_GRAPHS = 0.35
"""Of the time of a search in passing, in a large heap: a running function's variable may end the
graph that holds what is looked for, and modules of libraries take all of the time otherwise."""
_SORTED_S, _SORTED_AGAIN_S = 1.65e-7, 1.2e-7
"""Seconds for each object until all are marked and sorted by role, on a machine for which budgets
are meant: at a process' first search, and later (300,000 objects, Python 3.11, 2026-11-24)."""
_SEARCHES = count()


@contextmanager
def quiet() -> Iterator[None]:
    """No automatic collection and no ``__torch_function__`` while a search runs.

    A collection in the middle would free the job's cycles at a moment the job did not choose.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        with plain_torch():
            yield
    finally:
        if collecting:
            gc.enable()


@dataclass(frozen=True)
class Reference:
    """One object that keeps a target alive, directly or (with ``path``) through C++."""

    owner: object
    level: int
    value: object
    """The tensor that is held."""
    path: tuple[Link, ...] = ()
    others: list[object] = field(default_factory=list)
    """Other tensors in the same memory that the owner holds in the same way: views beside it."""


@dataclass(frozen=True)
class _Entry:
    """How an object was come upon through torch's C++ side."""

    owner: object
    level: int
    path: tuple[Link, ...]


@dataclass
class Search:
    """One pass over the heap for the tensors and storages that are looked for.

    Holds references to what it finds until it is dropped; its results are plain records.
    """

    deadline: Deadline
    targets: Targets
    graphs: bool = True
    """Walk graphs in any case; else only when a target has no better holder than a local variable.

    torch keeps a Python object for every node that was looked at for as long as the node lives.
    """
    in_passing: bool = False
    """Look at modules of libraries only where they are few or nothing else explains a target; and
    keep, where time was too short, only what surely holds."""
    references: dict[int, list[Reference]] = field(default_factory=lambda: defaultdict(list))
    """By target key, or by id for a tensor without one."""
    tensors: list[torch.Tensor] = field(default_factory=list)
    """Every tensor that a Python object stands for."""
    tensor_types: list[type] = field(default_factory=list)
    """`torch.Tensor` and all that is derived from it."""
    node_types: list[type] = field(default_factory=list)
    """The classes of nodes of autograd graphs."""
    unswept: list[tuple[int, int]] = field(default_factory=list)
    """Levels for which time was too short, each with the first of its chunks that is left."""

    def run(self) -> None:
        """Sweep from the user's roots, then from libraries': a name of the program is one to type.

        Modules and the outermost of the running functions come first. What an inner function has
        among its variables may be what an outer one, which outlives it, keeps for the next call.
        Of libraries their running functions come first: a call that runs knows its arguments by
        shorter ways than the modules do. Then the search may be over (``in_passing``).
        """
        number = next(_SEARCHES)
        frames = frame_roots()
        users = [root for root in frames if root.user]
        outermost = {root.thread: root for root in reversed(users)}.values()
        lasting = [*module_roots(user=True), *outermost]
        inner = [root for root in users if all(root is not one for one in outermost)]
        running = [root for root in frames if not root.user]
        listed = tracked_objects()
        began_s = time.thread_time()
        self.heap = Heap(listed.objects, listed.omitted_ids, self.deadline)
        del listed  # the heap alone keeps the list
        self._leave_out([*lasting, *inner, *running])
        classes = classes_by_owner(_derived_from(object))
        self._find_tensors(classes)
        if self.in_passing:
            usual_s = (_SORTED_AGAIN_S if number else _SORTED_S) * len(self.heap.objects)
            self.deadline.allow_for((time.thread_time() - began_s) / usual_s)
        self._parents: dict[int, tuple[object, int]] = {}
        self._entries: dict[int, _Entry] = {}
        self._specials: list[tuple[int, object]] = []
        self._locals: list[tuple[int, object]] = []
        self._late: list[Level] = []
        self._set_aside: list[tuple[object, _Entry]] = []
        self._stops_early = False
        self._of_arrays: list[Reference] = []
        self.root_of: dict[int, Root] = {}
        named = {id(value) for root in users for value in root.values}
        named |= {id(value) for root in lasting for value in root.values}
        # What a class of a library has is better named by its module, wherever it leads to.
        self._libraries_own = [one for one in classes.named_by_libraries if id(one) not in named]
        self.heap.mark(self._libraries_own, VISITED)
        for group in (lasting, inner, running):
            self._near_names = _NEAR_NAMES
            self._sweep_roots(group)
        if not (self.deadline.check() or self._all_explained()):
            self._sweep_roots(iterated_roots(self._unnamed_iterators(), self.deadline.check))
        self.deadline.names_followed = not self.deadline.passed
        self._stops_early = self.in_passing and len(self.heap.objects) > _MANY_OBJECTS
        if self._stops_early and self._all_explained():
            self.heap.complete = False
        else:
            self._sweep_libraries()
        if self.graphs or not self._all_explained():
            self._sweep_graphs()
            self._sweep_rest()
        self.heap.complete &= not self.unswept
        if self.in_passing and self.deadline.passed:
            self._keep_explained()

    def _sweep_libraries(self) -> None:
        """Sweep from the libraries' modules, with time left for graphs that a name leads to."""
        libraries = module_roots(user=False)  # new objects: the heap has none of them
        self.heap.clear(self._libraries_own, VISITED)
        with self.deadline.earlier(_FOR_GRAPHS if self._stops_early else 0.0):
            self._sweep_roots(libraries)

    def _sweep_rest(self) -> None:
        """Go on where time was too short, with what the graphs have left of theirs."""
        while self.unswept and not self.deadline.check():
            if self._stops_early and self._all_explained():
                return
            rest, self.unswept = self.unswept, []
            for source, first in rest:
                self._sweep_from(source, first)
            self._sweep_graphs()

    def close(self) -> None:
        """Let go of the heap; its list of objects holds this search, too."""
        if hasattr(self, "heap"):
            self.heap.objects.clear()
            self.heap.levels.clear()

    def _leave_out(self, roots: list[Root]) -> None:
        own = [part for root in roots for part in (root, root.names, root.values, root.__dict__)]
        self.heap.forget([self, self.__dict__, roots, *own])
        # a module's globals are a root; whoever else refers to the dict holds nothing more
        modules = [
            one for one in list(sys.modules.values()) if issubclass(type(one), types.ModuleType)
        ]
        variables = [types.ModuleType.__getattribute__(one, "__dict__") for one in modules]
        self.heap.mark(variables, VISITED)

    def _find_tensors(self, classes: ClassesByOwner) -> None:
        by_role = self._by_role(self.heap.objects, classes)
        own, tensors, nodes, optimizers, storages, self._iterators = by_role
        self.heap.forget(own)
        self.tensors = [one for one in tensors if not is_symbolic(one)]  # type: ignore[arg-type, misc]
        self.heap.mark([*tensors, *nodes], SPECIAL)
        self.heap.mark(optimizers, LATE)  # parameters are better named by their modules
        keys = ((one, self.targets.key(one)) for one in self.tensors)
        self.key_of = {id(one): key for one, key in keys if key}
        self.key_of |= self.targets.storage_keys(storages, self.tensors)  # type: ignore[arg-type]
        targets = [one for one in [*tensors, *storages] if id(one) in self.key_of]
        self.heap.mark(targets, TARGET)
        visible = frozenset(map(id, self.tensors))
        self.edges = TorchEdges(self.heap, self.targets, visible, self.deadline)

    def _by_role(self, objects: list[object], classes: ClassesByOwner) -> tuple[list[object], ...]:
        """Of all objects memprof's own, and what is of another of the roles, in one pass."""
        types_of = _types_by_role(classes)
        _, self.tensor_types, self.node_types, *_ = types_of
        by_role: tuple[list[object], ...] = tuple([] for _ in types_of)
        role_of = {  # by id: a metaclass may define ``__hash__``
            id(kind): role for role, kinds in zip(by_role, types_of, strict=True) for kind in kinds
        }
        kinds = list(map(type, objects))
        for at in places_among(addresses(kinds), sorted(role_of)):
            role_of[id(kinds[at])].append(objects[at])
        return by_role

    def _sweep_roots(self, roots: list[Root]) -> None:
        self.root_of.update((id(root.values), root) for root in roots)
        self._sweep([root.values for root in roots])

    def _unnamed_iterators(self) -> list[object]:
        """Generators, and iterators that keep what they pass on, to which no name leads."""
        iterators, self._iterators = self._iterators, []
        rows = self.heap.unvisited_among(iterators).tolist()
        return [iterators[row] for row in rows]

    def _keep_explained(self) -> None:
        """Drop what is known of targets that something not looked at may hold.

        What the program's names lead to is held by them, whoever else does. So it is by a variable
        of another thread, which may wait for long.
        """
        is_sure = self.deadline.names_followed
        for references in self.references.values():
            sure = (self._explains(one) or self._is_of_thread(one) for one in references)
            if not (is_sure and any(sure)):
                references.clear()

    def _is_of_thread(self, reference: Reference) -> bool:
        """Whether it is a variable of the program's in another thread than this one."""
        root = self.root_of.get(id(reference.owner))
        return root is not None and root.user and bool(root.thread)

    def _sweep(self, start: list[object]) -> None:
        self._sweep_from(self.heap.start(start), are_roots=True)

    def _sweep_from(self, level: int, chunk: int = 0, *, are_roots: bool = False) -> None:
        """Follow the references of a level, from one of its chunks on, and of all below it."""
        of_roots = level + 1 if are_roots else None
        while True:
            if self.heap.levels[level].objects:
                if self.deadline.passed:
                    self.unswept.append((level, chunk))
                    return
                if not chunk:
                    self._note_specials(level, of_roots=level == of_roots)
            elif self._late:
                self.heap.levels.append(self._late.pop(0))
                level = len(self.heap.levels) - 1
                continue
            else:
                return
            level, chunk = self._python_edges(level, chunk), 0
            if self._stops_early and self._all_explained():
                return

    def _all_explained(self) -> bool:
        """Whether each target is held by more than a variable of a running function."""
        keys = self.targets.all() or self.key_of.values()
        return all(any(map(self._explains, self.references.get(key, []))) for key in keys)

    def _explains(self, reference: Reference) -> bool:
        root = self.root_of.get(id(reference.owner))
        return root is None or root.kind != "frame"

    def _sweep_graphs(self) -> None:
        """Follow torch's C++ side; what explains least comes last: locals, then what is saved."""
        while not self.deadline.passed:
            if self._specials:
                specials, self._specials = self._specials, []
                fresh = self._torch_edges(specials)
            elif self._locals:
                specials, self._locals = self._locals, []
                fresh = self._torch_edges(specials)
            elif self._set_aside:
                saved, self._set_aside = self._set_aside, []
                fresh = [value for value, entry in saved if self._visit(value, entry)]
            else:
                return
            if fresh:
                self._sweep(fresh)

    def _python_edges(self, source: int, first: int) -> int:
        swept = self.heap.sweep(source, first)
        if swept.rest is not None:
            self.unswept.append((source, swept.rest))
        self._near_names -= len(self.heap.levels[source].objects)
        if self._near_names > 0 and not first:
            self._look_in_arrays(source, None)
        late = self.heap.take_late(swept.level)
        if late is not None:
            self._late.append(late)
        for number in swept.hits:
            for owner in self.heap.chunk(source, number):
                for value in self._held_by(owner):
                    self._note(self.key_of[id(value)], Reference(owner, source, value))
        return swept.level

    def _held_by(self, owner: object) -> list[object]:
        """What is looked for of what an object refers to."""
        referents = gc.get_referents(owner)
        if (
            len(referents) > CHUNK
        ):  # a list of millions, say: which they may be is told by their marks
            likely = (self.heap.marks(referents) & TARGET).nonzero()[0]
            referents = [referents[at] for at in likely.tolist()]
        return [value for value in referents if id(value) in self.key_of]

    def _note(self, key: int, reference: Reference) -> None:
        references = self.references[key]
        same = next(
            (
                one
                for one in references[-4:]
                if one.owner is reference.owner and one.path == reference.path
            ),
            None,
        )
        if same is None:
            if len(references) < _MAX_REFERENCES:
                references.append(reference)
        elif same.value is not reference.value and len(same.others) < _MOST_VIEWS:
            same.others.append(reference.value)

    def _note_specials(self, level: int, *, of_roots: bool) -> None:
        """Remember the tensors and nodes of a level, a frame's own variables apart."""
        record = self.heap.levels[level]
        marks = self.heap.marks(record.objects)
        for at in (marks & SPECIAL).nonzero()[0].tolist():
            one = record.objects[at]
            parents = self.heap.chunk(record.source, int(record.chunk_of[at])) if of_roots else ()
            local = any(self._is_frame_with(root, one) for root in parents)
            (self._locals if local else self._specials).append((level, one))

    def _is_frame_with(self, values: object, one: object) -> bool:
        root = self.root_of.get(id(values))
        return (
            root is not None and root.kind == "frame" and any(one is value for value in root.values)
        )

    def _torch_edges(self, specials: list[tuple[int, object]]) -> list[object]:
        if not may_read_graphs():
            self.heap.complete = False
            return []
        starts = [
            (level, one)
            for level, one in specials
            if not (is_tensor_type(type(one)) and is_bare(one))  # type: ignore[arg-type]
        ]
        fresh = []
        for place, edge in self.edges.of([one for _, one in starts]):
            level, one = starts[place]
            if self._enter(one, level, edge):
                fresh.append(edge.value)
        return fresh

    def _enter(self, owner: object, level: int, edge: TorchReference) -> bool:
        value = edge.value
        key = edge.key or self.key_of.get(id(value), 0)
        if key and value is not owner:
            self._note(key, Reference(owner, level, value, edge.path))
        entry = _Entry(owner, level, edge.path)
        if edge.key:
            return False
        if id(value) in self.edges.visible and edge.path[-1].kind == LinkKind.SAVED_TENSOR:
            self._set_aside.append((value, entry))
            return False
        return self._visit(value, entry)

    def _visit(self, value: object, entry: _Entry) -> bool:
        if not self.heap.visit(value):
            return False
        self._entries[id(value)] = entry
        return True

    @property
    def complete(self) -> bool:
        """Whether everything was looked at, so that what was not reached is not held by a root."""
        return self.heap.complete and not self.deadline.passed

    # --- back up -----------------------------------------------------------------------------

    def resolve(self, references: Iterable[Reference]) -> None:
        """Find, level by level, one parent for every owner and for the parents' parents."""
        waiting: dict[int, dict[int, object]] = defaultdict(dict)
        for one in (*references, *self._of_arrays):
            waiting[one.level][id(one.owner)] = one.owner
        for level in range(len(self.heap.levels) - 1, -1, -1):
            children = {
                key: one for key, one in waiting.pop(level, {}).items() if key not in self._parents
            }
            for key in [key for key in children if key in self._entries]:
                entry = self._entries[key]
                self._parents[key] = (entry.owner, entry.level)
                waiting[entry.level][id(entry.owner)] = entry.owner
                del children[key]
            if children and self.heap.levels[level].source >= 0:
                self._resolve_level(level, set(children), waiting)

    def _resolve_level(
        self, level: int, missing: set[int], waiting: dict[int, dict[int, object]]
    ) -> None:
        record = self.heap.levels[level]
        missing_ids = np.fromiter(missing, np.int64, len(missing))
        places = np.flatnonzero(np.isin(addresses(record.objects), missing_ids)).tolist()
        for number in sorted({int(record.chunk_of[at]) for at in places}):
            if number < 0:
                continue
            for owner in self.heap.chunk(record.source, number):
                for value in gc.get_referents(owner):
                    if id(value) in missing:
                        missing.discard(id(value))
                        self._parents[id(value)] = (owner, record.source)
                        waiting[record.source][id(owner)] = owner

    def look_in_arrays(self, keys: Collection[int]) -> None:
        """Look for ``keys`` in the arrays of all that was reached.

        One array is noted for each. A pass over the heap, so only for what nothing else explains.
        """
        missing = set(keys) & {self.key_of.get(id(one), 0) for one in self.tensors}
        for level in range(len(self.heap.levels)):
            if missing:
                self._look_in_arrays(level, missing)
        self.resolve([])

    def _look_in_arrays(self, level: int, keys: set[int] | None) -> None:
        """Note what the arrays keep to which a level refers: of ``keys``, each once and no more."""
        for number in range(-(-len(self.heap.levels[level].objects) // CHUNK)):
            if self.deadline.check():
                return
            for one in kept_by_arrays(self.heap.chunk(level, number)):
                key = self.key_of.get(id(one.value), 0)
                if not key or not (keys is None or key in keys):
                    continue
                if keys is not None:
                    keys.discard(key)
                for child, parent in zip(one.path, [one.owner, *one.path], strict=False):
                    self._parents[id(child)] = (parent, level)
                self._of_arrays.append(Reference(one.owner, level, one.path[0]))
                self._note(key, Reference(one.path[-1], level, one.value, one.links))

    def chain(
        self, reference: Reference
    ) -> tuple[Root | None, list[list[object]], list[tuple[Link, ...]]]:
        """Runs of Python references from a root down, and the C++ paths that join them.

        Run ``i`` is followed by path ``i``; the last run is ``[value]`` when a path leads to it.
        """
        runs: list[list[object]] = [[reference.value]]
        paths: list[tuple[Link, ...]] = []
        if reference.path:
            paths.append(reference.path)
            runs.append([])
        one: object = reference.owner
        while True:
            runs[-1].append(one)
            entry = self._entries.get(id(one))
            parent = self._parents.get(id(one))
            if parent is None:
                break
            if entry is not None:
                paths.append(entry.path)
                runs.append([])
            one = parent[0]
        root = self.root_of.get(id(runs[-1][-1]))
        return root, [run[::-1] for run in runs[::-1]], paths[::-1]


def _types_by_role(classes: ClassesByOwner) -> tuple[list[type], ...]:
    """Of all ``classes`` those of memprof, tensors, nodes, optimizers, storages and generators."""
    own = classes.own
    bare_nodes = [kind for kind in classes.of_no_module if is_node_type(kind)]
    taken = set(map(id, own))
    types_of = [own]
    for roots in (
        (torch.Tensor,),
        (torch._C._FunctionBase, *bare_nodes),
        (torch.optim.Optimizer,),
        (torch.UntypedStorage,),
        (types.GeneratorType, *KEEPING_ITERATORS),
    ):
        kinds = {id(kind): kind for root in roots for kind in (root, *_derived_from(root))}
        types_of.append([kind for at, kind in kinds.items() if at not in taken])
        taken |= kinds.keys()
    return tuple(types_of)


def _derived_from(base: type) -> list[type]:
    """Every class below another, from the class tree: much less than looking at every object."""
    by_id: dict[int, type] = {}
    waiting = [base]
    while waiting:
        subclasses: list[type] = type.__subclasses__(waiting.pop())
        for kind in subclasses:
            if id(kind) not in by_id:
                by_id[id(kind)] = kind
                waiting.append(kind)
    return list(by_id.values())
