"""Rules for where bytes live: host or device, whole storage or part, wide or narrow."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from memprof.advice.case import Case, Proposal, says
from memprof.advice.patch import diff, with_keyword, wrapped
from memprof.analysis.program import Place, bound_names, calls_in
from memprof.analysis.suspicion import Pattern
from memprof.units import format_bytes

__all__ = ["rules"]


def rules(case: Case) -> Iterator[Proposal]:
    """``clone_view``, ``cpu_offload``, ``map_location_cpu``, ``narrow_before_cast``."""
    yield from _view(case)
    nbytes = format_bytes(case.found.bytes)
    if case.pattern == Pattern.LOADED.value:
        yield from _loaded(case, nbytes)
    if case.pattern == Pattern.COPY_OF_MODEL.value:
        why = f"A second set of the model's parameters ({nbytes}) rests beside the model"
        yield Proposal("cpu_offload", 0.85, f"{why}: keep the copy in host memory.", case.site)
        yield Proposal("del_ref", 0.4, f"{why}: drop it, or save it to a file.", case.site)
    if case.pattern in (Pattern.RESIDENT.value, "pinned"):
        yield from _resident(case, nbytes)
    if case.pattern == Pattern.TWINS.value:
        why = f"The same {nbytes} are on the device and on the host"
        yield Proposal("del_ref", 0.7, f"{why}: drop one of the two.", case.site)
    if case.pattern == Pattern.UPCAST.value:
        why = f"A wider copy of {nbytes} is made of a tensor that is there as well"
        yield Proposal(
            "narrow_before_cast", 0.85, f"{why}: take the part that is needed first.", case.site
        )
        yield Proposal("chunk", 0.6, f"{why}: work through it in parts.", case.site)
        yield Proposal(
            "mixed_precision", 0.4, f"{why}: stay in the narrow type.", case.site, remains=0.5
        )


def _resident(case: Case, nbytes: str) -> Iterator[Proposal]:
    holder = case.found.holders[0] if case.found.holders else None
    place = case.site or (case.places[0] if case.places else None)
    links = holder.links if holder is not None else []
    local = next((link.name for link in links if link.kind == "local"), "")
    if local and any(link.kind == "thread" for link in links):
        yield Proposal(
            "del_ref",
            0.8,
            f"{nbytes} stay there while the thread waits for its next job ({says(holder)}): "
            f"`del {local}` at the end of the loop's body.",
            place,
        )
        return
    why = f"{nbytes} stay there over the steps, held by {says(holder)}"
    dropped = 0.7 if case.links & {"local", "frame", "closure"} else 0.5
    yield Proposal("cpu_offload", 0.6, f"{why}: keep them on the host between uses.", place)
    yield Proposal("del_ref", dropped, f"{why}: drop them when they are not used any more.", place)


def _loaded(case: Case, nbytes: str) -> Iterator[Proposal]:
    patch = ""
    place = case.site
    for call in calls_in(place.statement, "load") if place is not None else ():
        if place is not None and ast.unparse(call.func) == "torch.load":
            patch = diff(place.program, with_keyword(call, "map_location", '"cpu"'))
    why = f"`torch.load` put {nbytes} on the device, still there when the model has its own copy."
    if case.found.device == "cpu":
        why += " (The saving is a GPU's: on a CPU the host is the device.)"
    yield Proposal(
        "map_location_cpu",
        0.92,
        why,
        place,
        patch=patch,
    )
    target = case.fact("target", "")
    name = f"`{target}`" if target else "the loaded file"
    yield Proposal("del_ref", 0.7, f"Drop {name} once the model has been filled from it.", place)


def _view(case: Case) -> Iterator[Proposal]:
    """A small view that keeps a whole storage."""
    shown, kept = _sizes(case)
    if not 0 < shown < kept:
        return
    place = _slicing(case) or (case.places[0] if case.places else case.site)
    yield Proposal(
        "clone_view",
        0.94,
        f"A view of {format_bytes(shown)} keeps its whole storage of {format_bytes(kept)}.",
        place,
        patch=_cloned(place, ".copy()" if _of_arrays(case) else ".clone()"),
        remains=shown / kept,
    )


def _sizes(case: Case) -> tuple[int, int]:
    facts = case.found.evidence.facts
    if "view_bytes" in facts and "storage_bytes" in facts:
        return int(facts["view_bytes"]), int(facts["storage_bytes"])
    for holder in case.found.holders:
        for link in holder.links:
            words = link.name.split() if link.kind == "base" else []
            if len(words) == 4 and words[0].isdigit() and words[2].isdigit():
                return int(words[0]), int(words[2])
    return 0, 0


def _slicing(case: Case) -> Place | None:
    """The statement that takes the view: of what the site made, or in the keeper's function."""
    site = case.site
    scopes = [p for p in (site, *case.places, *(place for _, place in case.frames)) if p]
    names = {ast.unparse(t) for p in scopes for t in bound_names(p.statement)}
    for place in scopes:
        for node in ast.walk(place.scope):
            if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Subscript):
                continue
            if ast.unparse(node.value.value) in names:
                return place.program.place(node)
    return next((p for p in case.places if _subscript(p) is not None), None)


def _subscript(place: Place) -> ast.Subscript | None:
    """The slice that a statement takes to keep it."""
    statement = place.statement
    values: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        values = [statement.value]
    for call in calls_in(statement):
        values += call.args
    return next((v for v in values if isinstance(v, ast.Subscript)), None)


def _of_arrays(case: Case) -> bool:
    """Whether NumPy arrays are the views."""
    links = (link for holder in case.found.holders for link in holder.links)
    return any(link.kind == "base" and link.type_name == "ndarray" for link in links)


def _cloned(place: Place | None, suffix: str) -> str:
    taken = _subscript(place) if place is not None else None
    if place is None or taken is None:
        return ""
    return diff(place.program, *wrapped(taken, suffix))
