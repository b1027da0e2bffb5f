"""Of what operators made large tensors of a window, and what others made of these."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from memprof.records import OperatorGraph

__all__ = ["Made", "Node", "Read", "made_by_operators"]

Node: TypeAlias = tuple[int, str]
"""A row of the trace's stacks, and an operator that was called from there."""


@dataclass(frozen=True, slots=True)
class Read:
    """What an operator was given of a large result, and what it made of it."""

    made: Node
    """What came of it: the operator and from where it was called; of what is written into, what
    made that. Stack 0: it is no tensor."""
    count: int
    read: int
    """Bytes of the result that it was given, the most of one call."""
    size: int
    """Bytes that it made, the most of one call."""

    @property
    def operator(self) -> str:
        """Its name without the library's: ``sum``."""
        return self.made[1].rpartition("::")[2]


@dataclass(frozen=True, slots=True)
class Made:
    """The large results that one operator made, called from one stack."""

    node: Node
    size: int
    """Bytes of the largest."""
    given: int
    """Bytes of what the operator was given."""
    reads: tuple[Read, ...]

    @property
    def operator(self) -> str:
        """Its name without the library's: ``mul``."""
        return self.node[1].rpartition("::")[2]


def made_by_operators(records: tuple[OperatorGraph, ...]) -> Mapping[Node, Made]:
    """All that is known, of a stack and operator what the last record says."""
    return {made.node: made for made in _rows(records)}


def _rows(records: Iterable[OperatorGraph]) -> Iterator[Made]:
    for one in records:
        rows = zip(one.stack, one.operator, one.size, one.given, one.reads, strict=True)
        for stack, operator, size, given, reads in rows:
            read = tuple(
                Read((into, by), count, nbytes, made) for into, by, count, nbytes, made in reads
            )
            yield Made((stack, operator), size, given, read)
