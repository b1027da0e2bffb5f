"""Leaks: what survives its step and becomes more without end, as findings with their evidence.

One engine for every rule of growth. What grows is decided in `growing_groups`, what belongs
together in `group_by_holder`, what only the collector frees in `cyclic_garbage`. Why it grows, and
what to do about it, is for the rules in ``growth``.
"""

from __future__ import annotations

import ast
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from memprof.chain_description import keeper
from memprof.records import GuessedSteps, Holder, Site
from memprof.reference_chain import LinkKind, largest_container
from memprof.rules.being_made import is_of_unowned, making_statement
from memprof.rules.between_windows import StacklessGroup, stackless_group, with_stackless
from memprof.rules.beyond_windows import beyond_windows, lengthening
from memprof.rules.containers import is_cycle_around_bounded, is_kept_short, is_of_key
from memprof.rules.counted_later import came_and_went
from memprof.rules.counted_rise import repeated_rise, stays_level
from memprof.rules.cyclic_garbage import cyclic_garbage, freed_by_collector
from memprof.rules.finding import Evidence, Growth, Kind, RuleFinding, Series
from memprof.rules.group_by_holder import (
    Cluster,
    clusters,
    held_by,
)
from memprof.rules.growing_groups import GrowingGroup, growing_groups
from memprof.rules.made_of_bounded import container_name, is_made_of
from memprof.rules.other_names import by_containers
from memprof.rules.recorded_methods import recorded_method
from memprof.rules.same_holder import holder_key
from memprof.rules.small_views import SMALL_PART, alike, share_shown
from memprof.rules.unread_fields import unread_field_of_made
from memprof.run import DeviceRun, Run
from memprof.source_code.frame_kind import FrameKind, frame_kind
from memprof.source_code.program import place_of, program_of
from memprof.source_code.torch_modes import without_gradients
from memprof.trace import EMPTY, NOT_RECORDED, Category, Frame, Phase
from memprof.units import format_bytes
from memprof.views.examination import DeviceExamination, Examination
from memprof.views.owners import CATEGORY_NAMES, common_module
from memprof.views.sites import short_path, site_name, sites
from memprof.views.survivors import Survival, survival
from memprof.views.trend import floor
from memprof.views.window import site_at

__all__ = ["few_models", "filling", "leaks"]

Ints = npt.NDArray[np.int64]

_OF_MODEL = (Category.PARAMETER, Category.BUFFER)
_MOST_HOLDERS = 5
_NEARLY_ALL = 0.9
"""Of the bytes, that one line made: it is the one that is named, whoever made the rest."""
_LEAST_CONFIDENCE = 0.3
_BOUNDED_CONFIDENCE = 0.2
"""For a container that can hold so much and no more: it fills up."""
_OF_A_GRAPH = 3
"""Modules that made what nothing is known to hold: fewer may return what a library keeps."""
_FEW_MODELS = 6
"""Times that a model was kept: five folds, or an ensemble of five, end there."""
_OF_ERRORS = frozenset({LinkKind.EXCEPTION, LinkKind.TRACEBACK, LinkKind.LOG_RECORD})
"""Links through which a traceback's frames or a record's arguments are kept with a text."""
_BOUNDED_WHOLES = 0.5
"""The same where each item keeps the graph that made it, the large storage that it is a small view
of, the object whose method is memoized or recorded, the calls that an exception came through, or
what nothing reads: that was hardly meant to be kept."""


def leaks(examination: Examination) -> tuple[RuleFinding, ...]:
    """Every leak and cycle of an examined run, the fastest growing first."""
    run = examination.run
    findings = [one for device in examination.devices for one in _of_device(run, device)]
    return tuple(sorted(findings, key=lambda one: -one.bytes_per_step))


def filling(run: Run, examination: DeviceExamination) -> tuple[RuleFinding, ...]:
    """What grows on a device in containers that have a bound: it fills them, and is no leak."""
    candidates = _candidates(run, examination)
    return tuple(one.finding() for one in candidates if one.fills_a_container)


def few_models(run: Run, examination: DeviceExamination) -> tuple[RuleFinding, ...]:
    """Growth on a device of so few models that it may well end there, of which none is a leak."""
    candidates = _candidates(run, examination)
    return tuple(one.finding() for one in candidates if one.is_of_few_models)


def _of_device(run: Run, examination: DeviceExamination) -> list[RuleFinding]:
    candidates = _candidates(run, examination)
    return [leak.finding() for leak in candidates if leak.confidence >= _LEAST_CONFIDENCE]


def _candidates(run: Run, examination: DeviceExamination) -> list[_Leak]:
    """Everything that grows, whether or not it will go on."""
    device, lives = examination.device, survival(examination)
    freed = freed_by_collector(device, lives, run.findings)
    holders = by_containers(held_by(run.findings, device.device))
    stackless = stackless_group(lives)
    groups = with_stackless(growing_groups(lives, freed, holders), stackless, lives, holders)
    if stackless is not None and EMPTY in holders:  # one search was for what has no stack
        own = holders.get(stackless.stack, ())
        if not own or _is_mostly_stackless(stackless, groups):
            others = (one for one in holders[EMPTY] if not one.is_workspace)
            holders[stackless.stack] = (*others, *own)
    growing_stacks = {group.stack for group in groups}
    groups += [one for one in cyclic_garbage(lives, freed) if one.stack not in growing_stacks]
    known = {one.stack for one in groups}
    # A graph is the host's, whatever its tensors are on.
    looks = [one for one in run.findings if one.device in (device.device, "host")]
    longer = lengthening(looks)
    for group, own in beyond_windows(examination, lives, holders, known, longer):
        groups.append(group)
        holders[group.stack] = own

    def call_of(stack: int) -> tuple[Frame, ...]:
        return _outside_of_modules(lives.tables.stack(stack))

    together = clusters(groups, holders, call_of)
    for cluster in together:
        cluster.holders.sort(key=partial(is_cycle_around_bounded, others=[*cluster.holders]))
    grown = [_Leak(device, lives, cluster, run.guessed) for cluster in together]
    bounded = {container_name(one.holder) for one in grown if one.holder and one.fills_a_container}
    for one in grown:
        one.is_made_of_bounded = one.is_made_anew_of(bounded - {""})
    return grown


def _outside_of_modules(stack: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """The program's frames from the one that called a model on; all of them where none was."""
    frames = [frame for frame in stack if frame_kind(frame.filename) is FrameKind.USER]
    forward = [at for at, one in enumerate(frames) if one.name.rpartition(".")[2] == "forward"]
    return tuple(frames[forward[-1] + 1 :] if forward else frames)


def _is_mostly_stackless(stackless: StacklessGroup, groups: Sequence[GrowingGroup]) -> bool:
    """Whether most of what stays of a stack was made between windows.

    Who had the first of it, in the call that made them, need not be who keeps the others.
    """
    own = [len(group.rows) for group in groups if group.stack == stackless.stack]
    return 2 * len(stackless.rows) > sum(own)


def _is_registry(holder: Holder) -> bool:
    """Whether a library's object lists what holds it, and has a method that lets go of that.

    Nobody makes an ensemble there: ``accelerator.prepare(model)`` in each fold.
    """
    at = largest_container(holder.links)
    above = holder.links[at - 1] if at else None
    return above is not None and bool(above.releases) and not above.filename


@dataclass(slots=True, eq=False)
class _Leak:
    """One cluster on its way to a finding."""

    device: DeviceRun
    survival: Survival
    cluster: Cluster
    guessed: GuessedSteps | None
    is_made_of_bounded: bool = False
    """It is made anew of what has a bound, and is as large as that is long."""

    @property
    def holder(self) -> Holder | None:
        """The one that says most; None where none is known."""
        return next(iter(self.cluster.holders), None)

    @property
    def confidence(self) -> float:
        """How sure it is that this leaks, from 0 to 1: less where the program keeps it small."""
        most = max(group.confidence for group in self.cluster.groups)
        if self.is_of_few_models or self.fills_a_container or self._came_and_went():
            return min(most, _BOUNDED_CONFIDENCE)
        is_named = any(one.is_named for one in self.cluster.holders)
        if (self._is_in_dict() or not is_named) and self._replaces_others():
            return min(most, _BOUNDED_CONFIDENCE)
        is_finite = self._is_bounded() or self._is_being_made()
        return min(most, _BOUNDED_WHOLES) if is_finite else most

    @property
    def fills_a_container(self) -> bool:
        """Whether what holds it can hold so much and no more, and keeps nothing besides."""
        is_meant = not (self._is_hardly_meant() or self._is_of_small_views())
        is_meant = is_meant and not self._is_of_unused_graphs()
        if self.is_made_of_bounded or (self._is_being_made() and is_meant):
            return True
        return self._is_bounded() and not (
            self._is_of_graphs()
            or self._is_of_small_views()
            or self._is_of_keys()
            or self._is_of_errors()
        )

    def _is_being_made(self) -> bool:
        """Whether only the interpreter has the list that holds it: one that a comprehension makes.

        It is bound to a name, handed over or joined when it is whole: ``cat([f(x) for x in xs])``.
        """
        holder, stack = self.holder, self._stack()
        is_list = holder is not None and is_of_unowned(holder, list)
        return holder is not None and is_list and making_statement(holder, stack) is not None

    def _stack(self) -> tuple[Frame, ...]:
        return self.survival.tables.stack(self.cluster.groups[0].stack)

    def _is_hardly_meant(self) -> bool:
        """Whether each item keeps it by what nobody keeps it for.

        By a record's method that nothing calls, by a field that nothing reads, or by an exception.
        """
        holder, stack = self.holder, self._stack()
        if holder is None:
            return False
        if self._is_of_errors():
            return True
        files = dict.fromkeys(frame.filename for frame in stack if not frame.changed)
        programs = [one for one in map(program_of, files) if one is not None]
        if recorded_method(holder.links, programs) is not None:
            return True
        made = making_statement(holder, stack)
        return made is not None and unread_field_of_made(holder, made, programs) is not None

    def is_made_anew_of(self, containers: set[str]) -> bool:
        """Whether it is replaced by a larger one each time, made of containers of these names."""
        stacks = [self.survival.tables.stack(group.stack) for group in self.cluster.groups]
        return self._is_replaced() and is_made_of(stacks, self.cluster.holders, containers)

    def _is_bounded(self) -> bool:
        """Whether there can be so many and no more; an item may become larger."""
        is_short = any(is_kept_short(one) for one in self.cluster.holders[:1])
        return is_short and not self._is_replaced()

    def _is_of_graphs(self) -> bool:
        """Whether most of it is what graphs save: each may go on to those that fell out."""
        links = (link.kind for one in self.cluster.holders[:1] for link in one.links)
        if LinkKind.AUTOGRAD_NODE in links:
            return True
        rows = np.concatenate([group.rows for group in self.cluster.groups])
        size = self.survival.lives.size[rows]
        saved = self.survival.lives.category[rows] == Category.ACTIVATION
        return bool(2 * size[saved].sum() > size.sum())

    def _is_of_errors(self) -> bool:
        """Whether exceptions or log records have it, which are kept for their texts."""
        links = (link.kind for one in self.cluster.holders[:1] for link in one.links)
        return any(kind in _OF_ERRORS for kind in links)

    def _is_of_unused_graphs(self) -> bool:
        """Whether graphs have it, and the recording has no backward pass that could go through."""
        links = (link.kind for one in self.cluster.holders[:1] for link in one.links)
        phases = {label.phase for label in self.survival.tables.labels}
        is_known = not phases <= {Phase.UNKNOWN}
        return LinkKind.AUTOGRAD_NODE in links and is_known and Phase.BACKWARD not in phases

    def _is_of_keys(self) -> bool:
        """Whether a memoized method's keys have it, as part of the objects that it is called on.

        The bound is one of results, of which each object has many.
        """
        return any(is_of_key(one.links) for one in self.cluster.holders[:1])

    def _is_of_small_views(self) -> bool:
        """Whether the items of a container are small views of most of it."""
        rows = np.concatenate([group.rows for group in self.cluster.groups])
        size = self.survival.lives.size[rows]
        for holder in self.cluster.holders:
            storages = size[alike(holder, size)]
            if 2 * storages.sum() > size.sum() and share_shown(holder, storages) <= SMALL_PART:
                return True
        return False

    def _came_and_went(self) -> bool:
        """Whether counters show, after the last window, that it was given back and made again."""
        if not len(self.survival.steps):
            return False
        rows = np.concatenate([group.rows for group in self.cluster.groups])
        there = int(self.survival.lives.size[rows[self.survival.outlast(rows)]].sum())
        last_step = int(self.survival.steps[-1])
        return came_and_went(self.device.steps, last_step, there, self.cluster.per_step)

    def _is_in_dict(self) -> bool:
        """Whether a dict has it that no two looks have seen become longer."""
        links = self.holder.links if self.holder is not None else ()
        at = largest_container(links)
        return at is not None and links[at].type_name == "dict" and not links[at].grows

    def _replaces_others(self) -> bool:
        """Whether it comes in place of items, and as much of other lines has gone since.

        As a line puts it under a key, or a dict has it.
        """
        place = place_of(self._site()[0])
        targets = getattr(place.statement, "targets", []) if place is not None else []
        if not (self._is_in_dict() or any(isinstance(one, ast.Subscript) for one in targets)):
            return False
        rows = np.concatenate([group.rows for group in self.cluster.groups])
        births = self._births(rows)
        last = len(self.survival) - 1
        if last < 0 or not len(births):
            return False
        first_step, last_step = self.survival.steps[np.minimum(births[[0, -1]], last)].tolist()
        grown = round(self.cluster.per_step * (last_step - first_step))
        return stays_level(self.device.steps, first_step, last_step, grown)

    @property
    def is_of_few_models(self) -> bool:
        """Whether models were kept a few times: folds, or an ensemble, end there."""
        groups = self.cluster.groups
        if max(len(group.places) for group in groups) >= _FEW_MODELS:
            return False
        rows = np.concatenate([group.rows for group in groups])
        if self._models_by_count(rows) >= _FEW_MODELS:
            return False
        if any(_is_registry(one) for one in self.cluster.holders[:1]):
            return False
        links = {link.kind for one in self.cluster.holders[:1] for link in one.links}
        category, size = self.survival.lives.category[rows], self.survival.lives.size[rows]
        has_parameters = (category == Category.PARAMETER).any()
        # Layers whose weights were packed have buffers alone.
        is_of_buffers = 2 * size[category == Category.BUFFER].sum() > size.sum()
        is_held = not links.isdisjoint((LinkKind.PARAMETER, LinkKind.BUFFER))
        return bool(has_parameters or is_of_buffers) or is_held

    def _models_by_count(self, rows: Ints) -> float:
        """How many there are by now, if counted bytes have risen since as they did with those.

        With the recorded ones came what else a round leaves, as gradients and their states: those
        are made in other steps of a round, so that only the places of what is largest count rounds.
        """
        size = self.survival.lives.size
        births = max(self.cluster.groups, key=lambda one: int(size[one.rows].sum())).places
        steps = self.device.steps
        with_figures = steps.allocated != NOT_RECORDED
        counted, numbers = steps.allocated[with_figures], steps.last[with_figures]
        if not len(counted) or not len(births):
            return 0.0
        least = floor(counted)
        last_step = self.survival.steps[min(int(births[-1]), len(self.survival) - 1)]
        at = int(np.searchsorted(numbers, last_step, side="right"))
        with_recorded = int(least[max(0, at - 1)] - least[0])
        if with_recorded > 0:
            return float(len(births) * repeated_rise(least, numbers) / with_recorded)
        each = self.survival.lives.size[rows].sum() / max(1, len(births))
        return float(repeated_rise(least, numbers) / each) if each else 0.0

    def finding(self) -> RuleFinding:
        """The cluster as a finding, without remedies."""
        cluster, lives, steps = self.cluster, self.survival.lives, self.survival.steps
        rows = np.concatenate([group.rows for group in cluster.groups])
        frame, stack = self._site()
        named = any(one.is_named for one in cluster.holders)
        holders = _distinct(
            one for one in _largest_view_first(cluster.holders) if not (named and one.is_workspace)
        )
        births = self._births(rows)
        per_step = cluster.per_step
        series = self._series(rows)
        still_alive = int(lives.size[rows[self.survival.outlast(rows)]].sum())
        return RuleFinding(
            kind=self._kind(holders),
            device=self.device.device,
            site=_with_code(site_at(frame), holders),
            title=_title(per_step, holders, frame, self._often(births)),
            bytes_per_step=per_step,
            bytes=still_alive or int(series.bytes.max(initial=0)),
            confidence=self.confidence,
            first_step=int(steps[min(int(births[0]), len(steps) - 1)]) if len(births) else -1,
            last_step=int(steps[min(int(births[-1]), len(steps) - 1)]) if len(births) else -1,
            steps_left=self._steps_left(per_step),
            stack=stack,
            module=self._module(rows),
            category=CATEGORY_NAMES[_most(lives.category[rows], lives.size[rows])],
            holders=holders,
            series=series,
            evidence=self._evidence(rows),
            growth=self._growth(rows),
        )

    def _kind(self, holders: Sequence[Holder]) -> Kind:
        by_cycle = bool(holders) and holders[0].kind == LinkKind.CYCLE
        return Kind.CYCLE if by_cycle or self._is_collected() else Kind.LEAK

    def _is_collected(self) -> bool:
        groups = self.cluster.groups
        freed = sum(group.per_step for group in groups if group.collected)
        return freed > 0.5 * self.cluster.per_step

    def _is_replaced(self) -> bool:
        groups = self.cluster.groups
        anew = sum(group.per_step for group in groups if group.replaced)
        return anew > 0.5 * self.cluster.per_step

    def _often(self, births: Ints) -> str:
        """What the rate is for: a step, or where steps were guessed the line that stands for it."""
        every, guess = self.cluster.groups[0].every, self.guessed
        begins = int(self.survival.steps[births[0]]) if len(births) else -1
        if guess is None or not guess.filename or begins < guess.first:
            return "per step" if every == 1 else f"per step (every {every} steps)"
        runs = f"each time {short_path(guess.filename)}:{guess.line} runs"
        return runs if every == 1 else f"{runs} (every {every} times)"

    def _site(self) -> tuple[Frame, tuple[Frame, ...]]:
        """The line of the largest group.

        Where no holder has a name, and it is not nearly all that grows, the line that all share.
        """
        tables = self.survival.tables
        stacks = [tables.stack(group.stack) for group in self.cluster.groups]
        has_name = self.cluster.holders and self.cluster.holders[0].is_named
        sizes = [int(self.survival.lives.size[one.rows].sum()) for one in self.cluster.groups]
        is_of_one = sizes[0] >= _NEARLY_ALL * sum(sizes)
        shared = _shared_frame(stacks) if not (is_of_one or has_name) else None
        if shared is not None:
            return shared, stacks[0]
        places = sites(tables)
        return places.frames[int(places.of_stack[self.cluster.groups[0].stack])], stacks[0]

    def _module(self, rows: Ints) -> str:
        labels = self.survival.tables.labels
        names = [labels[int(i)].module for i in np.unique(self.survival.lives.label[rows])]
        names = sorted({name.split("#")[0] for name in names if name})
        return names[0] if len(names) == 1 else common_module(names)

    def _births(self, rows: Ints) -> Ints:
        """Places where it grew; of what is made anew again and again, not only the last time."""
        anew = [group.places for group in self.cluster.groups if group.replaced]
        births = np.concatenate([self.survival.lives.allocated_in[rows], *anew])
        births = np.unique(births[births >= 0])
        return births if len(births) else self.cluster.groups[0].places

    def _steps_left(self, per_step: float) -> float:
        total = self.device.info.total_bytes * self.device.info.memory_fraction
        used = self.device.steps.allocated if len(self.device.steps) else np.zeros(0)
        if total <= 0 or not len(used) or used[-1] < 0 or per_step <= 0:
            return -1.0
        return max(0.0, float(total - used[-1]) / per_step)

    def _series(self, rows: Ints) -> Series:
        lives, length = self.survival.lives, len(self.survival)
        stacks = [group.stack for group in self.cluster.groups]
        every_row = np.union1d(
            rows, np.flatnonzero(np.isin(lives.stack, stacks) & (lives.allocated_in >= 0))
        )
        change = np.zeros(length + 1, dtype=np.int64)
        np.add.at(change, np.minimum(lives.allocated_in[every_row], length), lives.size[every_row])
        np.add.at(change, np.minimum(lives.freed_in[every_row], length), -lives.size[every_row])
        return Series(self.survival.steps, np.cumsum(change[:-1]))

    def _is_forward(self, rows: Ints) -> npt.NDArray[np.bool_]:
        """What a forward pass made for its backward pass, also where only the program keeps it.

        What it made where gradients are off serves none, unless autograd was seen to save it.
        """
        lives, labels = self.survival.lives, self.survival.tables.labels
        categories = lives.category[rows]
        is_forward: npt.NDArray[np.bool_] = categories == Category.ACTIVATION
        if any(label.phase == Phase.BACKWARD for label in labels):
            forward = np.array([label.phase == Phase.FORWARD for label in labels])
            guessed = (categories == Category.UNKNOWN) & forward[lives.label[rows]]
            stacks = np.unique(lives.stack[rows[guessed]]).tolist()
            off = [one for one in stacks if without_gradients(self.survival.tables.stack(one))]
            is_forward |= guessed & ~np.isin(lives.stack[rows], off)
        else:
            is_forward |= np.isin(rows, self._saved_for_nothing())
        return is_forward

    def _saved_for_nothing(self) -> Ints:
        """What modules made beside what is held by name, in a run without a backward pass.

        A search found no owner of it, as of what graphs keep: no Python object refers to that. Of
        several modules it need not be beside anything: their results were hardly all kept.
        """
        cluster, lives, tables = self.cluster, self.survival.lives, self.survival.tables
        nothing = np.zeros(0, dtype=np.int64)
        if not cluster.unowned:
            return nothing
        rows = np.concatenate([group.rows for group in cluster.unowned])
        modules = {tables.labels[int(label)].module for label in np.unique(lives.label[rows])}
        has_name = any(one.is_named for one in cluster.holders)
        if not has_name and len(modules - {""}) < _OF_A_GRAPH:
            return nothing
        by_modules = [
            label.phase == Phase.FORWARD and bool(label.module) for label in tables.labels
        ]
        rows = rows[
            np.array(by_modules)[lives.label[rows]] & (lives.category[rows] == Category.UNKNOWN)
        ]
        stacks = np.unique(lives.stack[rows]).tolist()
        off = [one for one in stacks if without_gradients(tables.stack(one))]
        saved: Ints = rows[~np.isin(lives.stack[rows], off)]
        return saved

    def _evidence(self, rows: Ints) -> Evidence:
        lives = self.survival.lives
        windows = lives.window[rows]
        is_recorded = lives.alloc[rows] >= 0
        window = _most(windows[is_recorded], np.ones(int(is_recorded.sum()), dtype=np.int64))
        inside = rows[(windows == window) & is_recorded]
        return Evidence(window=window, allocs=np.sort(lives.alloc[inside]))

    def _growth(self, rows: Ints) -> Growth:
        lives = self.survival.lives
        forward = lives.size[rows[self._is_forward(rows)]].sum()
        of_model = lives.size[rows[np.isin(lives.category[rows], _OF_MODEL)]]
        return Growth(
            kept_itself=self.cluster.kept_itself,
            forward_share=float(forward) / max(1, int(lives.size[rows].sum())),
            is_replaced=self._is_replaced(),
            has_parameters=bool((lives.category[rows] == Category.PARAMETER).any()),
            model_share=float(of_model.sum()) / max(1, int(lives.size[rows].sum())),
            times=len(self._births(rows)),
        )


def _with_code(site: Site, holders: Sequence[Holder]) -> Site:
    """With the line's text as the job saw it, where no file has it: a notebook's cell."""
    for holder in holders:
        if not site.code and (holder.filename, holder.line) == (site.filename, site.line):
            return Site(site.filename, site.line, site.function, holder.code)
    return site


def _shared_frame(stacks: Sequence[tuple[Frame, ...]]) -> Frame | None:
    """The innermost user frame that is in every stack."""
    rest = [set(stack) for stack in stacks[1:]]
    for frame in stacks[0]:
        if frame_kind(frame.filename) is FrameKind.USER and all(frame in one for one in rest):
            return frame
    return None


def _most(values: Ints, weights: Ints) -> int:
    """The value with the most weight."""
    if not len(values):
        return 0
    return int(np.bincount(values - min(0, int(values.min())), weights=weights).argmax())


def _largest_view_first(holders: Sequence[Holder]) -> Sequence[Holder]:
    """The holders; of several views of what one line makes the one that keeps most comes first."""
    views = [one for one in holders if one.links[-1].storage_bytes > 0]
    if not views or views[0] is not holders[0]:
        return holders
    largest = max(views, key=lambda one: one.links[-1].storage_bytes)
    return (largest, *(one for one in holders if one is not largest))


def _distinct(holders: Iterable[Holder]) -> tuple[Holder, ...]:
    """The holders in order, each way of holding once."""
    first: dict[Hashable, Holder] = {}
    for one in holders:
        first.setdefault((holder_key(one), one.kind, one.line), one)
    return tuple(first.values())[:_MOST_HOLDERS]


def _title(per_step: float, holders: Sequence[Holder], frame: Frame, often: str) -> str:
    has_name = holders and holders[0].is_named
    by = keeper(holders[0].links, holders[0].kind) if has_name else f"made at {site_name(frame)}"
    return f"grows by {format_bytes(round(per_step))} {often}: {by}"
