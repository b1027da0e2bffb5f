"""Bytes that are there for no use without growing: detectors, ranked and put into words.

What each detector looks for is in the files beside this one; remedies are `advice`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence

import numpy as np

from memprof.analysis.buffers import large_buffers
from memprof.analysis.churn import churn
from memprof.analysis.doubled import doubled
from memprof.analysis.examination import DeviceExamination, Examination, examine
from memprof.analysis.findings import Evidence, Found, Kind
from memprof.analysis.frozen import frozen
from memprof.analysis.large import large
from memprof.analysis.lingering import lingering
from memprof.analysis.owners import CATEGORY_NAMES
from memprof.analysis.passes import passes
from memprof.analysis.peaks import peaks
from memprof.analysis.residents import residents
from memprof.analysis.scene import Scene
from memprof.analysis.suspicion import Pattern, Suspicion
from memprof.analysis.twins import twins
from memprof.records import Holder
from memprof.reference_chain import Link, way
from memprof.run import Run
from memprof.units import format_bytes, format_percent

__all__ = ["waste", "waste_of"]

_LEAST_SHARE = 0.04
"""Of the peak: what is less is not worth a person's time."""
_MOST = 6
_MOST_HOLDERS = 3
_HELD = (
    Pattern.LINGERING,
    Pattern.OLD_GRAPHS,
    Pattern.COPY_OF_MODEL,
    Pattern.LOADED,
    Pattern.RESIDENT,
    Pattern.JOINED,
    Pattern.RETAINED_GRAPH,
)
"""Patterns of which it matters who holds the tensors."""
_DETECTORS: tuple[Callable[[Scene], Iterator[Suspicion]], ...] = (
    residents,
    large_buffers,
    lingering,
    passes,
    frozen,
    peaks,
    doubled,
    large,
    churn,
)


def waste(run: Run) -> tuple[Found, ...]:
    """The waste in a run, the most certain and largest first; at most six findings a device."""
    return waste_of(examine(run))


def waste_of(examination: Examination) -> tuple[Found, ...]:
    """As `waste`, for a run that has been examined."""
    run = examination.run
    found = [f for device in examination.devices for f in _of_device(device, run)]
    found += [_found(scene, one, _weight(scene, one), ()) for scene, one in _twins(examination)]
    return tuple(sorted(found, key=lambda f: -float(f.evidence.facts["weight"])))


def _of_device(device: DeviceExamination, run: Run) -> list[Found]:
    scene = _scene(device)
    if scene is None:
        return []
    suspicions = [s for detect in _DETECTORS for s in detect(scene)]
    weighed = [(_weight(scene, s), s) for s in suspicions if _share(scene, s) >= _LEAST_SHARE]
    weighed.sort(key=lambda pair: -pair[0])
    distinct = _distinct(weighed)[:_MOST]
    return [_found(scene, s, weight, _holders(scene, s, run)) for weight, s in distinct]


def _scene(device: DeviceExamination) -> Scene | None:
    window = device.peak_window
    if window is None or not window.line.peak_allocated.bytes or not len(window.trace.events):
        return None
    return Scene(device.name, device.windows.index(window), window)


def _twins(examination: Examination) -> list[tuple[Scene, Suspicion]]:
    """The same sizes on a device and on the host, for devices that were recorded together."""
    scenes = [scene for device in examination.devices if (scene := _scene(device)) is not None]
    host = next((scene for scene in scenes if scene.device == "cpu"), None)
    if host is None:
        return []
    found = [(s, one) for s in scenes if s is not host for one in twins(s, host)]
    return [(scene, one) for scene, one in found if _share(scene, one) >= _LEAST_SHARE]


def _holders(scene: Scene, suspicion: Suspicion, run: Run) -> tuple[Holder, ...]:
    """Who held such tensors when the job looked, those of the largest first."""
    if suspicion.pattern not in _HELD:
        return ()
    stacks = {int(s) for s in scene.lives.stack[suspicion.rows]}
    own = int(scene.lives.stack[suspicion.row])
    said = [
        one
        for one in run.findings
        if one.finding == "holders" and one.device == scene.device and one.stack in stacks
    ]
    said.sort(key=lambda one: (one.stack != own, -one.bytes))
    holders = {_as_seen(h.links): h for one in said for h in one.holders[:1]}
    return tuple(holders.values())[:_MOST_HOLDERS]


def _as_seen(links: Sequence[Link]) -> Hashable:
    """Return what two looks at one chain have in common, if no container grew between them."""
    return way(links), tuple(link.length for link in links)


def _share(scene: Scene, suspicion: Suspicion) -> float:
    """Of the peak: what a change saves, else what it is about."""
    saving = suspicion.saving
    return scene.share(suspicion.nbytes if saving is None else saving.bytes)


def _weight(scene: Scene, suspicion: Suspicion) -> float:
    """Certainty counts most; among equals the share of the peak does."""
    return float(suspicion.certainty * (0.25 + min(_share(scene, suspicion), 0.75)))


def _distinct(weighed: list[tuple[float, Suspicion]]) -> list[tuple[float, Suspicion]]:
    """Without what tells of the same tensors as a better one before it."""
    kept: list[tuple[float, Suspicion]] = []
    for weight, suspicion in weighed:
        rows = suspicion.rows
        told = any(
            len(rows) and np.isin(rows, other.rows).mean() > 0.5 and _is_less(suspicion, other)
            for _, other in kept
        )
        if not told:
            kept.append((weight, suspicion))
    return kept


def _is_less(one: Suspicion, other: Suspicion) -> bool:
    """Whether ``one`` adds nothing to a better one about the same tensors."""
    gradients = (Pattern.HELD_GRADIENTS, Pattern.UNUSED_GRADIENTS)
    return one.certainty < 0.6 or (one.pattern, other.pattern) == gradients


def _found(scene: Scene, suspicion: Suspicion, weight: float, holders: tuple[Holder, ...]) -> Found:
    row = suspicion.row
    kind = Kind.FRAGMENTATION if suspicion.pattern is Pattern.FRAGMENTATION else Kind.WASTE
    facts = {"pattern": suspicion.pattern.value, "weight": weight, **suspicion.facts}
    if suspicion.saving is not None:
        facts["peak_before"] = suspicion.saving.before
        facts["peak_after"] = suspicion.saving.after
    share = format_percent(suspicion.nbytes, scene.peak.bytes)
    steps = scene.made_in[suspicion.rows] if len(suspicion.rows) else np.array([-1])
    made = scene.lives.alloc[suspicion.rows]
    return Found(
        kind=kind,
        device=scene.device,
        site=scene.site_of(row),
        title=f"{format_bytes(suspicion.nbytes)} ({share} of the peak) {suspicion.what}",
        bytes=int(suspicion.nbytes),
        confidence=suspicion.certainty,
        first_step=int(steps.min()),
        last_step=int(steps.max()),
        stack=scene.stack(row),
        module=scene.module_name(row),
        category=CATEGORY_NAMES[int(scene.category[row])],
        holders=holders,
        evidence=Evidence(scene.window, made[made >= 0], facts),
    )
