"""Which growing groups are one leak: one thing holds them, or they grow in the same steps."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from memprof.records import Finding, Holder
from memprof.reference_chain import CYCLES, LinkKind, largest_container
from memprof.rules.growing_groups import GrowingGroup
from memprof.rules.same_holder import holder_key, owner_key
from memprof.rules.successive_looks import holders_of
from memprof.source_code.frame_kind import FrameKind, frame_kind

__all__ = ["Cluster", "clusters", "held_by"]

_SAME_STEPS = 0.8
_NEARLY_SAME_STEPS = 0.6
"""The same for what one call made: where several threads call it, a step has now one, now two."""
_OF_MODELS = frozenset({LinkKind.PARAMETER, LinkKind.BUFFER, LinkKind.OPTIMIZER_STATE})
_OF_OPTIMIZERS = frozenset({LinkKind.OPTIMIZER_STATE})
_STACKED = "parametrizations"
"""The name that torch gives to a module's list of them."""
_ATTRIBUTES = frozenset({LinkKind.ATTRIBUTE, LinkKind.MODULE_ATTRIBUTE})


@dataclass(slots=True, eq=False)
class Cluster:
    """Growing groups that one thing holds, the fastest growing first."""

    groups: list[GrowingGroup] = field(default_factory=list)
    holders: list[Holder] = field(default_factory=list)
    """Those of each group, in the order of the groups."""
    unowned: list[GrowingGroup] = field(default_factory=list)
    """Groups of which a search has found no owner."""
    _itself: float = 0.0
    """Bytes a step of the groups that are held without a graph in between."""

    @property
    def per_step(self) -> float:
        """Bytes that all groups grow by."""
        return sum(group.per_step for group in self.groups)

    @property
    def kept_itself(self) -> float:
        """The share of the growth that is there without any graph, from 0 to 1."""
        return self._itself / self.per_step if self.per_step > 0 else 0.0

    def add(self, group: GrowingGroup, holders: Sequence[Holder]) -> None:
        """Put a group to the others, with its holders; the first is the shortest way of holding."""
        self.groups.append(group)
        self.holders += holders
        if holders and not holders[0].is_named:
            self.unowned.append(group)
        if any(one.is_named and not one.through_graph for one in holders[:1]):
            with_name = [one for one in holders if one.is_named]
            direct = sum(not one.through_graph for one in with_name) / len(with_name)
            if direct < 1 and group.last_share < 1:  # of several of one line the result is kept
                direct = group.last_share
            self._itself += group.per_step * direct


def held_by(findings: Iterable[Finding], device: str) -> dict[int, tuple[Holder, ...]]:
    """For every stack the holders that the last search in the job found."""
    looks: dict[int, list[Finding]] = {}
    for one in findings:
        finding = _without_models_in_use(one)
        if finding.finding == "holders" and finding.device == device and finding.holders:
            earlier = looks.setdefault(finding.stack, [])
            first = finding.holders[0]
            # An earlier look knew more: the job's names may be gone at the end.
            if earlier and (not first.is_named or _is_of_passing_call(first)):
                continue
            if earlier and _is_left_over(first, earlier[-1].holders[0]):
                continue
            earlier.append(finding)
    return {stack: holders_of(of_stack) for stack, of_stack in looks.items()}


def _without_models_in_use(finding: Finding) -> Finding:
    """The same without holders that have one tensor each: a variable's model has the newest alone.

    What keeps the others, made by the same line in other steps, is not that.
    """
    if finding.details.get("reason") != "growth":
        return finding
    holders = [one for one in finding.holders if not _is_of_model_in_use(one)]
    if not holders:  # an optimizer that has all of them has states of models before this one
        holders = [one for one in finding.holders if one.links[-1].kind in _OF_OPTIMIZERS]
    if len(holders) == len(finding.holders):
        return finding
    return msgspec.structs.replace(finding, holders=holders)


def _is_of_model_in_use(holder: Holder) -> bool:
    """Whether a running function's variable, by attributes alone, has a model or its optimizer.

    Of the parametrizations of a weight a model may have any number.
    """
    first, last = holder.links[0], holder.links[-1]
    between = {link.kind for link in holder.links[1:-1]}
    is_of_model = first.kind == LinkKind.LOCAL and last.kind in _OF_MODELS
    return is_of_model and between <= _ATTRIBUTES and _STACKED not in last.name.split(".")


def _is_of_passing_call(holder: Holder) -> bool:
    """Whether a variable of a library's function has it, which ran when the job was looked at."""
    root = holder.links[0]
    return root.kind == LinkKind.LOCAL and frame_kind(root.filename) is not FrameKind.USER


def _is_left_over(holder: Holder, earlier: Holder) -> bool:
    """Whether a cycle has, now that a name is gone, the container that an earlier look saw there.

    The name is what kept it while it grew: ``service.answers``, where a thread of ``service.pool``
    knows the service. Another object may know it by that name, too, as metrics share their states.
    """
    root, root_before = holder.links[0].kind, earlier.links[0].kind
    if root not in CYCLES or root_before in CYCLES or not earlier.is_named:
        return False
    name, length = _container(holder)
    name_before, length_before = _container(earlier)
    return bool(name) and name == name_before and length >= length_before


def _container(holder: Holder) -> tuple[str, int]:
    """The last name of the largest container of a chain, and how long it is; none: no name."""
    at = largest_container(holder.links)
    if not at:
        return "", 0
    return holder.links[at - 1].name.rpartition(".")[2], holder.links[at].length


def clusters(
    groups: Sequence[GrowingGroup],
    holders: Mapping[int, Sequence[Holder]],
    call_of: Callable[[int], tuple[Hashable, ...]] = lambda _: (),
) -> list[Cluster]:
    """Growing groups by what holds them, the fastest growing first.

    ``holders`` are those of each stack, and ``call_of`` says which call of the program's made what
    has a stack. Containers in several fields of an object are one thing where one call fills them.
    A group that nothing is known to hold joins one that grows in the same steps, where there is
    one.
    """
    by_key: dict[tuple[Hashable, ...], Cluster] = {}
    nameless: list[GrowingGroup] = []
    for group in sorted(groups, key=lambda one: -one.per_step):
        stack_holders = holders.get(group.stack, ())
        if not stack_holders or not stack_holders[0].is_named:
            nameless.append(group)
            continue
        key = holder_key(stack_holders[0])
        if key not in by_key:
            by_key[key] = _filled_alike(by_key.values(), group, stack_holders[0], call_of)
        by_key[key].add(group, stack_holders)
    result = list(dict.fromkeys(by_key.values()))
    for group in nameless:
        same = _with_same_steps(result, group, call_of) or _under_autocast(
            result, holders.get(group.stack, ())
        )
        if same is None:
            same = Cluster()
            result.append(same)
        same.add(group, holders.get(group.stack, ()))
    return sorted(result, key=lambda cluster: -cluster.per_step)


def _filled_alike(
    earlier_clusters: Iterable[Cluster],
    group: GrowingGroup,
    holder: Holder,
    call_of: Callable[[int], tuple[Hashable, ...]],
) -> Cluster:
    """The cluster of another field of the same object that the same call fills; else a new one.

    A library's layer has the two matrices of each adapter in two dicts.
    """
    key, call = owner_key(holder), call_of(group.stack)
    for cluster in earlier_clusters if key and call else ():
        first = cluster.groups[0]
        is_one_call = call_of(first.stack) == call and owner_key(cluster.holders[0]) == key
        if is_one_call and _shared(first, group) >= _SAME_STEPS:
            return cluster
    return Cluster()


def _with_same_steps(
    earlier_clusters: Sequence[Cluster],
    group: GrowingGroup,
    call_of: Callable[[int], tuple[Hashable, ...]],
) -> Cluster | None:
    """A cluster that grows in the same steps, as a graph's tensors do with what holds it."""
    best: tuple[float, Cluster] | None = None
    call = call_of(group.stack)
    for cluster in earlier_clusters:
        share = max(_shared(cluster.groups[0], group), _in_turn(cluster.groups[0], group))
        by_one_call = call and call_of(cluster.groups[0].stack) == call
        least = _NEARLY_SAME_STEPS if by_one_call else _SAME_STEPS
        if share >= least and (best is None or share > best[0]):
            best = share, cluster
    return best[1] if best else None


def _under_autocast(
    earlier_clusters: Sequence[Cluster], holders: Sequence[Holder]
) -> Cluster | None:
    """The cluster of what has no owner either while autocast caches: its cache has both, likely."""
    device = _autocast(holders)
    if not device:
        return None
    same = (one for one in earlier_clusters if _autocast(one.holders) == device)
    return next(same, None)


def _autocast(holders: Sequence[Holder]) -> str:
    """The device for which autocast caches, of memory that no name leads to; empty for others."""
    unowned = holders[0].unowned if holders and not holders[0].is_named else None
    return unowned.autocast if unowned is not None else ""


def _shared(one: GrowingGroup, other: GrowingGroup) -> float:
    """The share of the steps in which either grows that both do."""
    shared = len(np.intersect1d(one.places, other.places))
    return shared / max(1, len(np.union1d(one.places, other.places)))


def _in_turn(one: GrowingGroup, other: GrowingGroup) -> float:
    """The same where one grows some steps after the other, each time: a model, then its gradients.

    That is the share of the distances between two rises that have just one rise of the other.
    """
    if one.every < 2 or one.every != other.every:
        return 0.0
    between = np.searchsorted(other.places, one.places)
    return float((np.diff(between) == 1).mean()) if len(between) > 1 else 0.0
