"""Growth of allocated bytes that no finding explains: how much, and where most of it was made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from memprof.chain_description import keeper
from memprof.records import Finding, Holder, Site
from memprof.rules.between_windows import stackless_group
from memprof.rules.called_models import are_called
from memprof.rules.containers import is_kept_short
from memprof.rules.counted_rise import CountedRise, counted_rise
from memprof.rules.finding import Kind, RuleFinding
from memprof.rules.group_by_holder import held_by
from memprof.rules.growing_groups import is_of_history
from memprof.rules.growth_findings import few_models, filling
from memprof.rules.load_rules import rule_named
from memprof.rules.rule import Match, WasteRule
from memprof.rules.same_holder import holder_key
from memprof.run import DeviceRun, Run
from memprof.source_code.frame_kind import FrameKind, frame_kind
from memprof.trace import EMPTY, SURVIVOR_AGE, WARM_UP, Category, Frame
from memprof.units import format_bytes
from memprof.views.examination import DeviceExamination, Examination
from memprof.views.sites import short_path, sites
from memprof.views.survivors import survival
from memprof.views.window import Window, site_at

__all__ = ["UnexplainedGrowth", "unexplained_growth"]

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_EXPLAINED = 0.5
"""Of the rise, in bytes or as a rate: from there on the findings are the answer."""
_LATE = 1.5
"""Times the longest stretch between two rises: after more than that it has come to its end."""
_MOST_OF_PARAMETER = 3.1
"""Times a parameter's bytes: its gradient, both states of Adam, and their counter."""
_INNERMOST = 4
"""Frames of a stack that tell what a library does there."""
_MUCH = 0.25
"""Of what is to be explained: a line that made less is not named."""


@dataclass(frozen=True, slots=True)
class UnexplainedGrowth:
    """The floor of a device's allocated bytes rises up to the end, by more than findings hold."""

    device: str
    bytes: int
    """By which it rose from the first step after the warm-up to the last."""
    per_step: float
    first_step: int
    last_step: int
    explained: int
    """Bytes of that which findings of growth hold."""
    site: Site
    """The line that made most of what stayed; without a name where no line did."""
    site_bytes: int
    is_by_size: bool
    """Most of those were made between windows: they are as large as what the line makes."""
    bare_bytes: int
    """Of what stayed, bytes that have no stack."""
    holder: Holder | None
    """Who held, as the job was searched last, what grew until then; None where nothing did."""
    searched_step: int
    """The step of that search; -1 without one."""
    by_allocator: bool
    """Torch's allocator was watched itself: what threads of Python ask it for has a stack."""
    is_snapshot: bool = False
    """It is a snapshot that torch wrote, so that nobody has looked for holders."""
    waste: RuleFinding | None = None
    """A headline of waste that has most of it: graphs that are held for longer and longer."""

    def __str__(self) -> str:
        rest = self.bytes - self.explained
        risen = (
            f"allocated bytes rise by {format_bytes(round(self.per_step))} per step, "
            f"{format_bytes(self.bytes)} over steps {self.first_step} to {self.last_step}"
        )
        if self.explained:
            return f"{risen}; {format_bytes(rest)} of it no finding explains"
        if self.waste is not None:
            return risen
        return f"{risen}, and no finding explains it"

    @property
    def way_on(self) -> str:
        """What is known of it, and what would show more."""
        if self.waste is not None:
            return f"of these, {self.waste.title}"
        if 2 * self.bare_bytes >= self.bytes and not self.is_by_size:
            bare = f"{format_bytes(self.bare_bytes)} of what stayed have no stack"
            if self.is_snapshot:
                return f"{bare}: autograd's threads made them, or C++"
            if self.by_allocator:
                return f"{bare}: NumPy, another library or a thread without Python made them"
            return (
                f"{bare}: other threads or C++ made them; once `memprof native` has been run, "
                "recordings see them"
            )
        if self.site.filename:
            place = f"{short_path(self.site.filename)}:{self.site.line}"
            how_allocated = "are as large as what is made" if self.is_by_size else "were made"
            return (
                f"{format_bytes(self.site_bytes)} of what stayed {how_allocated} at {place}: "
                "`memprof.holders(tensor)` there says who holds one"
            )
        if self.holder is not None:
            return (
                f"when the job was searched last, in step {self.searched_step}, "
                f"{keeper(self.holder.links, self.holder.kind)} had what grew: look there first"
            )
        if self.is_snapshot:
            return "`memprof run` looks in the job for what holds it"
        return "memprof.step() at the end of each iteration, and more of them, would show the line"


def unexplained_growth(
    examination: Examination, findings: Sequence[RuleFinding]
) -> UnexplainedGrowth | None:
    """The largest over all devices of a run; None where what rises is in ``findings``."""
    rising = (_of_device(examination, device, findings) for device in examination.devices)
    results = [one for one in rising if one is not None]
    return max(results, key=lambda one: one.bytes, default=None)


def _of_device(
    whole: Examination, examination: DeviceExamination, findings: Sequence[RuleFinding]
) -> UnexplainedGrowth | None:
    run = whole.run
    device = examination.device
    risen = counted_rise(examination.steps)
    if risen is None:
        return None
    total, per_step = risen.bytes, risen.per_step
    growth = [one for one in findings if _is_growth_of(one, device)]
    explained = max(sum(one.bytes for one in growth), _held_likewise(run, examination, growth))
    if _is_explained(growth, total, per_step) or explained >= _EXPLAINED * total:
        return None
    if _is_explained([*growth, *filling(run, examination)], total, per_step):
        return None
    models = [one for one in few_models(run, examination) if are_called(one, whole)]
    if _is_explained([*growth, *models], total, per_step):
        return None
    since = risen.first_step
    if _accumulated(examination, findings, since) >= _EXPLAINED * total:
        return None
    if _made_larger(examination, findings, since) >= _EXPLAINED * total:
        return None
    if _of_more_trained(examination, since) >= _EXPLAINED * total:
        return None
    if _is_bounded(run, examination, risen):
        return None
    searched = _last_search(run, device)
    site, site_bytes, is_by_size, bare = _makers(examination, total - explained)
    return UnexplainedGrowth(
        device=device.device,
        bytes=total,
        per_step=per_step,
        first_step=risen.first_step,
        last_step=risen.last_step,
        explained=explained,
        site=site,
        site_bytes=site_bytes,
        is_by_size=is_by_size,
        bare_bytes=bare,
        holder=searched.holders[0] if searched is not None else None,
        searched_step=searched.step if searched is not None else -1,
        by_allocator=device.info.recorder == "allocator",
        is_snapshot=run.is_snapshot,
        waste=_waste_of(examination, findings, since, total) if not explained else None,
    )


def _waste_of(
    examination: DeviceExamination, findings: Sequence[RuleFinding], since: int, total: int
) -> RuleFinding | None:
    """The first headline of waste that has most of what rose from a step on."""
    headlines = (
        one
        for one in findings
        if one.kind is Kind.WASTE and one.device == examination.name and not one.minor
        if one.first_step < one.last_step  # else it is one step's
    )
    return next(
        (one for one in headlines if _left_of([one], examination, since) >= _EXPLAINED * total),
        None,
    )


def _last_search(run: Run, device: DeviceRun) -> Finding | None:
    """What the job's last search for something that grew came upon."""
    found = [
        one
        for one in run.findings
        if one.finding == "holders"
        and one.device == device.device
        and one.details.get("reason") == "growth"
        and one.holders
    ]
    return found[-1] if found else None


def _is_explained(growth: Sequence[RuleFinding], total: int, per_step: float) -> bool:
    rates = sum(one.bytes_per_step for one in growth if _grows_to_its_end(one))
    return max(sum(one.bytes for one in growth) / total, rates / per_step) >= _EXPLAINED


def _held_likewise(run: Run, examination: DeviceExamination, growth: Sequence[RuleFinding]) -> int:
    """Bytes there at the end that are held by what a finding of growth names.

    Some come too irregularly to be one themselves: parameters that some trials of a search leave.
    """
    holders_of = held_by(run.findings, examination.name)
    keys = {holder_key(holder) for one in growth for holder in one.holders[:1]}
    stacks = [
        stack for stack, holders in holders_of.items() if holders and holder_key(holders[0]) in keys
    ]
    lives_seen = survival(examination)
    lives = lives_seen.lives
    rows = np.flatnonzero(np.isin(lives.stack, stacks) & (lives.allocated_in >= 0))
    return int(lives.size[rows[lives_seen.outlast(rows)]].sum())


def _is_bounded(run: Run, examination: DeviceExamination, risen: CountedRise) -> bool:
    """Whether containers with a bound hold what was recorded of a rise, or half of it.

    They are full once they have so many, though each item may be joined anew and become larger.
    L-BFGS's history is one.
    """
    holders_of = held_by(run.findings, examination.name)
    bounded = [stack for stack, own in holders_of.items() if own and is_kept_short(own[0])]
    recorded = survival(examination)
    stacks = np.unique(recorded.lives.stack)
    bounded += [one for one in stacks.tolist() if is_of_history(recorded.tables.stack(one))]
    rows = np.flatnonzero(np.isin(recorded.lives.stack, bounded))
    held = int(recorded.lives.size[rows[recorded.outlast(rows)]].sum())
    in_windows = max(risen.within(recorded.steps), risen.per_step * len(recorded))
    return held > 0 and held >= _EXPLAINED * in_windows


def _accumulated(
    examination: DeviceExamination, findings: Sequence[RuleFinding], since: int
) -> int:
    """Bytes there in a last step, made from a step on as what a loop of the program collects is.

    The loop was not over when the recording was. A later window may have recorded no more of it.
    """
    collected = [one for one in findings if one.device == examination.name and _is_collected(one)]
    return _left_of(collected, examination, since)


def _left_of(collected: Sequence[RuleFinding], examination: DeviceExamination, since: int) -> int:
    """Bytes there in a last step, made from a step on by the stacks of some findings."""
    numbers = {len(examination.windows) - 1, *(one.evidence.window for one in collected)}
    of_windows = [0]
    for number in sorted(one for one in numbers if 0 <= one < len(examination.windows)):
        window = examination.windows[number]
        if not len(window.steps) or not collected:
            continue
        alive = window.lives.alive_at(window.first_event[int(window.steps[-1])])
        made = _made_by(collected, examination, window) & (window.made_in >= since)
        of_windows.append(window.bytes_of(made & alive))
    return max(of_windows)


def _of_more_trained(examination: DeviceExamination, since: int) -> int:
    """Bytes of gradients and states that parameters got from a step on which had none before.

    A layer that is unfrozen has them from then on. No parameter has more of them than one optimizer
    keeps: copies of a model, or optimizers that are made anew, are another matter.
    """
    window = examination.windows[-1] if examination.windows else None
    if window is None or not len(window.steps):
        return 0
    alive = window.lives.alive_at(window.first_event[int(window.steps[-1])])
    of_training = np.isin(window.category, (Category.GRADIENT, Category.OPTIMIZER_STATE))
    number = len(window.owners.module.names)

    def by_module(mask: Bools) -> npt.NDArray[np.int64]:
        sizes = window.lives.requested[mask]
        return np.bincount(window.module[mask], weights=sizes, minlength=number).astype(np.int64)

    parameters = by_module(alive & (window.category == Category.PARAMETER))
    before = by_module(of_training & alive & (window.made_in < since))
    now = by_module(of_training & alive)
    is_new = (before == 0) & (parameters > 0) & (now <= _MOST_OF_PARAMETER * parameters)
    is_new[0] = False  # what belongs to no module
    rows = of_training & alive & (window.made_in >= since) & is_new[window.module]
    return window.bytes_of(rows)


def _made_larger(
    examination: DeviceExamination, findings: Sequence[RuleFinding], since: int
) -> int:
    """By how much larger than in a step is in the last one what a headline of waste is about.

    It is made anew in each: logits of batches that are sorted by their lengths.
    """
    last = examination.windows[-1] if examination.windows else None
    steps = last.steps[last.steps >= since] if last is not None else np.empty(0, dtype=np.int64)
    wasted = [
        one
        for one in findings
        if one.device == examination.name and one.kind is Kind.WASTE and not one.minor
    ]
    if last is None or not len(steps) or not wasted:
        return 0
    # What lives on for steps is growth, whatever else is wrong with it.
    mask = _made_by(wasted, examination, last) & (last.freed_in - last.made_in < SURVIVOR_AGE)
    before, now = (
        last.bytes_of(mask & last.lives.alive_at(last.first_event[int(step)]))
        for step in (steps[0], steps[-1])
    )
    return now - before


def _made_by(
    findings: Sequence[RuleFinding], examination: DeviceExamination, window: Window
) -> Bools:
    """Which lifetimes of a window have a stack of one of some findings.

    Or one that begins like it in a library, which comes to its evaluation by several ways.
    """
    ways = {_way_of(stack) for one in findings for stack in _stacks(one, examination)}
    numbers = range(len(window.trace.tables.stacks))
    of_stack = np.array([_way_of(window.trace.stack(number)) in ways for number in numbers])
    mask: Bools = of_stack[window.lives.stack]
    return mask


def _stacks(finding: RuleFinding, examination: DeviceExamination) -> Iterator[tuple[Frame, ...]]:
    """Its own stack, and those of all tensors that it is about: of steps, and of differences."""
    yield finding.stack
    at, windows = finding.evidence.window, examination.windows
    if isinstance(finding.match, Match) and -len(windows) <= at < len(windows):
        numbers = np.unique(windows[at].lives.stack[finding.match.rows]).tolist()
        yield from (windows[at].trace.stack(number) for number in numbers if number != EMPTY)


def _way_of(stack: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """The stack; of what a library does by itself its innermost frames."""
    innermost = stack[:_INNERMOST]
    kinds = {frame_kind(frame.filename) for frame in innermost}
    return innermost if kinds == {FrameKind.LIBRARY} else stack


def _is_collected(finding: RuleFinding) -> bool:
    """Whether it is waste that becomes more, if only until a loop of the program is over."""
    rule = rule_named(finding.rule)
    is_rising = finding.match is not None and finding.match.rises and not finding.minor
    return isinstance(rule, WasteRule) and (rule.accumulates or is_rising)


def _is_growth_of(finding: RuleFinding, device: DeviceRun) -> bool:
    return finding.kind in (Kind.LEAK, Kind.CYCLE) and finding.device == device.device


def _grows_to_its_end(finding: RuleFinding) -> bool:
    """Whether it grew for as long as its tensors were recorded, or would have grown again next.

    The bytes of a finding are those of windows. What is counted afterwards and rises at the same
    rate is the same growth, as far as anybody can tell.
    """
    if finding.series is None or not len(finding.series.bytes):
        return False
    series = finding.series.bytes
    rises = np.flatnonzero(np.diff(series) > 0)
    since = len(series) - 1 - int(rises[-1]) if len(rises) else len(series)
    is_due = len(rises) > 1 and since <= _LATE * np.diff(rises).max()  # as after each rollout
    return is_due or int(series[-1]) > int(series[3 * (len(series) - 1) // 4])


def _makers(examination: DeviceExamination, rest: int) -> tuple[Site, int, bool, int]:
    """The line that made most of what stayed, its bytes, if their size tells it, and bare bytes.

    There is no such line where it made little of the ``rest`` that is to be explained. Bare is what
    has no stack.
    """
    lives_seen = survival(examination)
    lives = lives_seen.lives
    places = sites(lives_seen.tables)
    stackless = stackless_group(lives_seen)
    if stackless is not None and stackless.stack != EMPTY and stackless.bytes >= _MUCH * rest:
        row = int(places.of_stack[stackless.stack])
        return site_at(places.frames[row]), stackless.bytes, True, stackless.bytes
    everything = np.arange(len(lives))
    birth_places = lives.allocated_in >= min(WARM_UP, max(0, len(lives_seen) - 1))
    survivors = everything[birth_places & lives_seen.outlast(everything) & lives_seen.outlive_steps]
    if not len(survivors):
        return Site(), 0, False, 0
    size = lives.size[survivors]
    bare = int(size[lives.stack[survivors] == EMPTY].sum())
    of_site = np.bincount(places.of_stack[lives.stack[survivors]], weights=size)
    row = int(of_site.argmax())
    if of_site[row] < _MUCH * rest or not row:
        return Site(), 0, False, bare
    return site_at(places.frames[row]), int(of_site[row]), False, bare
