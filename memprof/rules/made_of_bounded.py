"""Whether what is made anew, and larger each time, is made of containers that only fill up."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

from memprof.records import Holder
from memprof.reference_chain import largest_container
from memprof.source_code.frame_kind import FrameKind, frame_kind
from memprof.source_code.idioms import last_name, read_by_itself
from memprof.source_code.program import Place, place_of
from memprof.trace import Frame

__all__ = ["container_name", "is_made_of"]


def container_name(holder: Holder) -> str:
    """The variable or attribute that the largest container of a chain is, without its owner."""
    at = largest_container(holder.links)
    return last_name(holder.links[at - 1].name) if at else ""


def is_made_of(
    stacks: Iterable[Sequence[Frame]], holders: Sequence[Holder], containers: set[str]
) -> bool:
    """Whether each stack has a function of the program that reads one of ``containers``.

    Not where a variable or attribute is made of itself on the way, or where it is kept: that goes
    on when the containers are full. Nor where it is an item of a container of its own.
    """
    if not containers or not holders or largest_container(holders[0].links) is not None:
        return False
    kept_at = [Frame("", one.filename, one.line) for one in holders if one.line]
    for stack in stacks:
        frames = [one for one in stack if frame_kind(one.filename) is FrameKind.USER]
        places = [one for one in map(place_of, (*frames, *kept_at)) if one is not None]
        if any(list(read_by_itself(place)) for place in places):
            return False
        if not any(_reads(place, containers) for place in places):
            return False
    return True


def _reads(place: Place, names: set[str]) -> bool:
    if place.function is None:
        return False
    loads = (n for n in ast.walk(place.function) if isinstance(getattr(n, "ctx", None), ast.Load))
    return any(
        (isinstance(one, ast.Name) and one.id in names)
        or (isinstance(one, ast.Attribute) and one.attr in names)
        for one in loads
    )
