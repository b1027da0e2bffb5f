"""Every live tensor by name: what `memprof.tensors()` lists; it decides nothing about leaks."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from memprof.chain_description import describe
from memprof.referrers.find_holders import links_of
from memprof.referrers.heap import Deadline
from memprof.referrers.links import Naming
from memprof.referrers.rank_chains import score
from memprof.referrers.search_from_roots import Reference, Search, quiet
from memprof.referrers.tables import Tensors
from memprof.referrers.targets import Targets
from memprof.referrers.tensor_attributes import (
    device_of,
    dtype_of,
    is_view,
    nbytes_of,
    requires_grad,
    shape_of,
    storage_bytes_of,
)

__all__ = ["LiveTensor", "tensors"]

_CHAINS_PER_STORAGE = 4


@dataclass(frozen=True, slots=True)
class LiveTensor:
    """One live tensor, in plain values: it keeps nothing alive."""

    name: str
    """The shortest chain of names that leads to it; empty where none was found."""
    device: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    """Bytes that the tensor shows."""
    storage_bytes: int
    """Bytes of its storage; 0 where ``shares_storage_with`` says that they are counted already."""
    shares_storage_with: int
    """Index in the list of the tensor that counts the storage; -1: this one does."""
    is_view: bool
    hidden_bytes: int
    """Bytes of its storage that a view keeps alive beyond those that it shows."""
    requires_grad: bool
    in_graph: bool
    """Only an autograd graph holds it; no Python object stands for it."""


def tensors(*, budget_s: float = 5.0) -> Tensors:
    """Every live tensor that Python or an autograd graph can reach, the largest storages first.

    The list prints as a table.
    """
    with quiet():
        return Tensors(_list(Deadline(budget_s)))


def _list(deadline: Deadline) -> list[LiveTensor]:
    search = Search(deadline, Targets(None))
    try:
        search.run()
        return _rows(search)
    finally:
        search.close()


def _rows(search: Search) -> list[LiveTensor]:
    names = _names(search)
    rows: list[tuple[torch.Tensor, str, int, bool]] = []
    for one in search.tensors:
        key = search.key_of.get(id(one), id(one))
        rows.append((one, names.get(id(one), ""), key, False))
    visible = {key for _, _, key, _ in rows}
    for key, references in list(search.references.items()):
        if key not in visible and references:
            value = references[0].value
            rows.append((value, names.get(id(value), ""), key, True))  # type: ignore[arg-type]
    sizes = {key: storage_bytes_of(one) for one, _, key, _ in rows}
    # the tensor that shows most of a storage counts it
    rows.sort(
        key=lambda row: (
            -sizes[row[2]],
            row[2],
            is_view(row[0]),
            -nbytes_of(row[0]),
            row[1],
        )
    )
    first: dict[int, int] = {}
    return [_row(row, at, first, sizes) for at, row in enumerate(rows)]


def _row(
    row: tuple[torch.Tensor, str, int, bool], at: int, first: dict[int, int], sizes: dict[int, int]
) -> LiveTensor:
    one, name, key, in_graph = row
    owner = first.setdefault(key, at)
    shown_bytes = nbytes_of(one)
    view = is_view(one)
    return LiveTensor(
        name=name,
        device=device_of(one),
        shape=shape_of(one),
        dtype=dtype_of(one),
        nbytes=shown_bytes,
        storage_bytes=sizes[key] if owner == at else 0,
        shares_storage_with=-1 if owner == at else owner,
        is_view=view,
        hidden_bytes=max(0, sizes[key] - shown_bytes) if view or shown_bytes < sizes[key] else 0,
        requires_grad=requires_grad(one),
        in_graph=in_graph,
    )


def _names(search: Search) -> dict[int, str]:
    """For every tensor the description of its best chain."""
    by_storage: dict[int, list[Reference]] = {}
    for references in search.references.values():
        for one in references:
            chains_of_storage = by_storage.setdefault(id(one.value), [])
            if len(chains_of_storage) < _CHAINS_PER_STORAGE:
                chains_of_storage.append(one)
    search.resolve(one for references in by_storage.values() for one in references)
    naming = Naming()
    names: dict[int, str] = {}
    for key, references in by_storage.items():
        if search.deadline.check():
            break
        chains = [links_of(search, one, naming) for one in references]
        chains_from_roots = [one for one in chains if one[0]]
        if len(chains_from_roots) > 1:
            chains_from_roots = [min(chains_from_roots, key=lambda one: score(one[0], user=one[1]))]
        if chains_from_roots:
            names[key] = describe(chains_from_roots[0][0])
    return names
