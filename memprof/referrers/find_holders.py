"""What the search found, as records: `holders` for one tensor, `find_holders` for many at once."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Hashable, Iterable, Sequence
from itertools import zip_longest
from types import FrameType

import torch

from memprof.errors import SettingsError
from memprof.records import Holder
from memprof.reference_chain import IN_PATHS, Link, LinkKind, Unowned, way
from memprof.referrers.context_cycles import kept_by_contexts
from memprof.referrers.heap import Deadline
from memprof.referrers.links import Naming
from memprof.referrers.merge_links import tidy
from memprof.referrers.notebook import keeps_results
from memprof.referrers.rank_chains import holder_of, score
from memprof.referrers.roots import Root, module_roots
from memprof.referrers.search_from_roots import Reference, Search, quiet
from memprof.referrers.tables import Holders
from memprof.referrers.targets import BlockIndex, Targets, storage_key
from memprof.referrers.tensor_attributes import view_link
from memprof.referrers.torch_references import is_tensor_type, plain_torch
from memprof.referrers.unowned_memory import with_what_is_known
from memprof.referrers.unreachable import Unreached
from memprof.source_code.find_line import reading_until
from memprof.sources.tensor_addresses import DeviceBlock, PlaceOf, place_of
from memprof.sources.user_files import is_user_file

__all__ = [
    "FOR_LINES",
    "best_holders",
    "find_holders",
    "holders",
    "keys_of",
    "links_of",
    "root_links",
    "user_files",
]

_MOST_FILES = 64
"""Source files that are parsed at most to find a line: each costs some milliseconds, once."""

FOR_LINES = 0.25
"""The share of a search's budget that reading sources may take beyond it: without its line a
holder says little."""


def holders(tensor: torch.Tensor, *, limit: int = 5, budget_s: float = 2.0) -> Holders:
    """Who keeps ``tensor``'s memory alive, the best explanation first; prints as a table.

    The memory is the tensor's storage: a view of it, or a graph that saved it, is a holder too.
    The search takes at most about ``budget_s`` seconds; what it has found by then is returned.

    Raises:
        SettingsError: ``tensor`` is not a tensor.
    """
    if not is_tensor_type(type(tensor)):
        raise SettingsError(
            f"holders() takes a tensor, not {type(tensor).__name__}", "pass the tensor itself"
        )
    return Holders(find_holders([tensor], limit=limit, budget_s=budget_s, graphs=True)[0])


def find_holders(
    targets: Sequence[object],
    *,
    limit: int = 3,
    budget_s: float = 2.0,
    graphs: bool = False,
    place: PlaceOf = place_of,
    deadline: Deadline | None = None,
    in_passing: bool = False,
) -> list[tuple[Holder, ...]]:
    """Who keeps each target alive, for all targets in one pass over the heap; the best first.

    A target is a storage key (``storage._cdata``, an int: nothing is held), a tensor, an
    ``UntypedStorage``, a weak reference to one of them, or a `DeviceBlock`, which
    stands for every storage that begins in it; a dead one has no holders (whether a key or a block
    is dead cannot be seen, so prefer weak references). Autograd graphs are walked only where a
    target has no other holder than a local variable, unless ``graphs`` asks for it. ``place`` says
    where a tensor's memory begins. A ``deadline`` counts instead of ``budget_s``; it has passed
    where the search was cut off. ``in_passing``, while a job waits, modules of libraries are looked
    at only where they are few or nothing else explains a target, and a search that was cut off
    names only what it surely knows.

    Raises:
        SettingsError: a target is something else.
    """
    blocks = BlockIndex([one for one in targets if type(one) is DeviceBlock], place)
    keys = keys_of(targets, blocks)
    target_keys = frozenset(key for key in keys if key > 0)
    ids = frozenset(id(one) for one, key in zip(targets, keys, strict=True) if key == id(one))
    with quiet():
        search = Search(
            deadline or Deadline(budget_s),
            Targets(target_keys, ids, blocks),
            graphs,
            in_passing=in_passing,
        )
        by_key = _search(search, limit)
    return [by_key.get(key, ()) for key in keys]


def keys_of(targets: Sequence[object], blocks: BlockIndex) -> list[int]:
    """The key of each target; 0 for what is dead.

    Raises:
        SettingsError: one is nothing that holders can be looked for of.
    """
    with plain_torch():
        return [blocks.key_of[one] if type(one) is DeviceBlock else _key(one) for one in targets]


def _key(target: object) -> int:
    """The storage key of a target, the id of a tensor without storage, 0 for what is dead."""
    if isinstance(target, weakref.ref):
        target = target()
        if target is None:
            return 0
    if type(target) is int:
        return target
    if isinstance(target, torch.UntypedStorage):
        return int(target._cdata)
    if is_tensor_type(type(target)):
        return storage_key(target) or id(target)  # type: ignore[arg-type]
    raise SettingsError(
        f"cannot look for the holders of a {type(target).__name__}",
        "pass tensors, untyped storages, storage keys, weak references to them, or blocks",
    )


def _search(search: Search, limit: int) -> dict[int, tuple[Holder, ...]]:
    """Plain records; everything the search held is gone when this returns."""
    try:
        search.run()
        return _holders_of(search, search.targets.all(), limit)
    finally:
        search.close()


def _holders_of(search: Search, keys: Iterable[int], limit: int) -> dict[int, tuple[Holder, ...]]:
    naming = Naming()
    references_of = {key: search.references.get(key, []) for key in keys}
    search.resolve(one for references in references_of.values() for one in references)
    files = user_files(search.root_of.values())
    with reading_until(search.deadline.later(FOR_LINES).check):
        return _named_holders(search, references_of, naming, limit, files)


def _named_holders(
    search: Search,
    references_of: dict[int, list[Reference]],
    naming: Naming,
    limit: int,
    files: list[str],
) -> dict[int, tuple[Holder, ...]]:
    by_key: dict[int, tuple[Holder, ...]] = {}
    unreached_keys = []
    for key, references in references_of.items():
        chains = [links_of(search, one, naming) for one in references]
        by_merit = sorted(
            ((score(links, user=user), links) for links, user in chains if links),
            key=lambda one: one[0],
        )
        by_key[key] = best_holders((links for _, links in by_merit), limit, files)
        if not by_key[key]:
            unreached_keys.append(key)
    if unreached_keys:
        by_key.update(_of_lost(search, unreached_keys, naming, files))
    return by_key


def _of_lost(
    search: Search, unreached_keys: list[int], naming: Naming, files: list[str]
) -> dict[int, tuple[Holder, ...]]:
    """Cycles, arrays over the memory, or at last what is known of memory that only C++ owns."""
    links = _unreached_links(search, unreached_keys, naming)
    nameless = {
        key for key in unreached_keys if not links[key] or links[key][0].kind == LinkKind.UNKNOWN
    }
    search.look_in_arrays(nameless)
    in_arrays = {key for key in nameless if search.references.get(key)}
    for key in in_arrays:
        links[key] = links_of(search, search.references[key][0], naming)[0] or links[key]
    if not search.complete:  # by now
        links |= {key: _too_early() for key in nameless - in_arrays}
    if search.complete or search.deadline.names_followed:
        links |= kept_by_contexts(search, nameless - in_arrays, naming)
    blocks = search.targets.blocks
    return {
        key: (holder_of(with_what_is_known(one, blocks.block(key)), files),)
        for key, one in links.items()
    }


def _unreached_links(
    search: Search, unreached_keys: list[int], naming: Naming
) -> dict[int, list[Link]]:
    """What is known of targets to which no root leads, if everything was looked at."""
    unreached_search = Unreached(search) if search.complete else None
    if unreached_search is not None and unreached_search.complete:
        links = {key: tidy(unreached_search.links(key, naming)) for key in unreached_keys}
        if unreached_search.complete:  # by now
            return links
    return {key: _too_early() for key in unreached_keys}


def _too_early() -> list[Link]:
    return [Link(LinkKind.UNKNOWN, unowned=Unowned(cut_off=True))]


def best_holders(
    by_merit: Iterable[list[Link]], limit: int, files: list[str]
) -> tuple[Holder, ...]:
    """The first ``limit`` holders that differ in more than lines and places in containers."""
    best: dict[tuple[Hashable, ...], Holder] = {}
    for links in by_merit:
        if len(best) == limit:
            break
        key = _way(links)
        if key not in best:
            best[key] = holder_of(links, files)
    return tuple(best.values())


def _way(links: list[Link]) -> tuple[Hashable, ...]:
    """What chains have in common that say the same: the place in the last container is none of it.

    A tensor may be held by several items of one list, or by the graphs of many.
    """
    below = [link.kind for link in links[1:]]
    names = tuple(
        "" if link.kind == LinkKind.ITEM and following not in IN_PATHS else link.name
        for link, following in zip_longest(links, below)
    )
    # whether a node's tensor was seen from Python changes with who has asked torch for the node
    types = tuple("" if link.kind == LinkKind.AUTOGRAD_NODE else link.type_name for link in links)
    return (names, types, way(links))


def links_of(search: Search, reference: Reference, naming: Naming) -> tuple[list[Link], bool]:
    """The tidied links of a reference and whether they begin in the user's code; none: no root."""
    root, runs, paths = search.chain(reference)
    if root is None:
        return [], False
    links = root_links(root, runs[0][1]) if len(runs[0]) > 1 else []
    for at, run in enumerate(runs):
        links += naming.links(run[1:] if at == 0 else run)
        if at < len(paths):
            links += paths[at]
    return tidy([*links, *view_link(reference.value, reference.others)]), root.user


def root_links(root: Root, value: object) -> list[Link]:
    """The first link of a chain: the variable that ``value`` is; none for what a loop goes through.

    What follows is then a variable of the generator.
    """
    if root.kind == "iterated":
        return []
    name = root.name_of(value)
    if root.kind == "module":
        kind = LinkKind.NOTEBOOK if keeps_results(name, value) else LinkKind.GLOBAL
        return [Link(kind, name, root.owner, root.filename)]
    thread = [Link(LinkKind.THREAD, root.thread, "thread")] if root.thread else []
    kind = LinkKind.CLOSURE if name in root.free else LinkKind.LOCAL
    return [*thread, Link(kind, name, root.owner, root.filename, root.line)]


def user_files(roots: Iterable[Root] | None = None) -> list[str]:
    """The user's source files in which a line may be looked for: those that run now come first.

    ``roots`` of a search, where there are some, save another look at all modules.
    """
    known = module_roots(user=True) if roots is None else roots
    modules = [root for root in known if root.user and root.kind == "module"]
    roots = sorted(modules, key=lambda root: root.owner != "__main__")
    files = [*_running_files(), *(root.filename for root in roots if root.filename)]
    return list(dict.fromkeys(files))[:_MOST_FILES]


def _running_files() -> list[str]:
    """Files of the user's functions on this thread's stack, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    files = []
    while frame is not None:
        if is_user_file(frame.f_code.co_filename):
            files.append(frame.f_code.co_filename)
        frame = frame.f_back
    return files
