"""What a recorded run would have come to on another card, under other settings, without a leak.

Counterfactual replays are the allocator model's; here are the questions: which configurations, in
which order of merit, which is the smallest card, what a change of the program saves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from memprof.allocator import (
    NOTHING_CHANGED,
    AllocatorSettings,
    Changes,
    Outcome,
    ReplayedTrace,
    Workload,
    parse_settings,
    play,
    workload_of,
)
from memprof.allocator.settings import MIB, NO_LIMIT
from memprof.errors import MissingError, SettingsError
from memprof.loading import load
from memprof.records import DeviceInfo
from memprof.run import DeviceRun, Run
from memprof.runfile.remote_file import Location
from memprof.trace import Trace
from memprof.units import format_bytes, parse_bytes
from memprof.what_if.candidate_settings import untried
from memprof.what_if.free_earlier import freed_each_step
from memprof.what_if.parallel import Job, fitted, played

__all__ = [
    "AFRESH",
    "CARDS",
    "DEFAULTS",
    "OUTSIDE_TORCH",
    "RECORDED_SETTINGS",
    "DeviceWhatIf",
    "Fit",
    "ReplaySaving",
    "Row",
    "replay",
    "saving",
]

_RECORDED = "recorded"
RECORDED_SETTINGS = "recorded settings"
AFRESH = f"{RECORDED_SETTINGS}, laid out afresh"
"""The row to compare with where all others had to lay out afresh what was live at first."""
DEFAULTS = "default settings"

CARDS = tuple(
    gib << 30
    for gib in (4, 6, 8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 64, 80, 94, 96, 128, 141, 180, 192)
)
"""Bytes of common cards, as they are sold."""

OUTSIDE_TORCH = 512 * MIB
"""Kept free on a card for the CUDA context and its libraries, which differ with their versions."""


@dataclass(frozen=True, slots=True)
class Row:
    """One configuration and what the run came to under it."""

    configuration: str
    """``recorded``, or settings in torch's grammar, or what else is different."""
    capacity: int
    """Bytes that torch could hold; 0 where no limit is known."""
    outcome: Outcome
    """Over all windows: of the worst one, with calls and retries summed."""
    window: int = 0
    """The worst window: where memory ran out, else where the most was reserved."""
    settings: str | None = None
    """In torch's grammar, empty for torch's defaults; None: those of the recording."""
    afresh: bool = False
    """What was live at first was laid out anew."""


@dataclass(frozen=True, slots=True)
class Fit:
    """The smallest card that a run fits on."""

    configuration: str
    bytes: int
    """The least that torch must be able to hold, to 2 MiB."""
    card: int
    """The smallest of `CARDS` with `OUTSIDE_TORCH` to spare; 0 where none is large enough."""
    retries: int
    """Times the cache is given up to get by with that."""


@dataclass(frozen=True, slots=True, eq=False)
class DeviceWhatIf:
    """All rows of one device, the recorded one first."""

    device: str
    rows: tuple[Row, ...]
    traces: tuple[Trace, ...]
    """What ``Row.window`` counts; events and stacks of outcomes point into these."""
    fits: tuple[Fit, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplaySaving:
    """A replay as recorded, and one with the program changed."""

    before: Outcome
    after: Outcome

    @property
    def peak_allocated(self) -> int:
        """Bytes less at the peak; never negative."""
        return max(0, self.before.peak_allocated - self.after.peak_allocated)

    @property
    def peak_reserved(self) -> int:
        """Bytes less held from the driver at the most; never negative."""
        return max(0, self.before.peak_reserved - self.after.peak_reserved)


def saving(
    workload: Workload | Trace, changes: Changes, capacity: int | None = None
) -> ReplaySaving:
    """What a change of the program saves, by replays of the allocator with and without it.

    For several changes of one trace make its program once, with ``workload_of(trace)``.
    """
    if isinstance(workload, Trace):
        workload = workload_of(workload)
    before = workload.recorded if capacity is None else play(workload, capacity=capacity)
    return ReplaySaving(before, play(workload, capacity=capacity, changes=changes))


@dataclass(frozen=True, slots=True)
class _Question:
    """One row that is to be answered."""

    text: str
    settings: AllocatorSettings
    afresh: bool = False
    conf: str | None = None
    """The settings as they were asked for; None: those of the recording."""

    def row(self, capacity: int, outcomes: Sequence[Outcome]) -> Row:
        """Its answer, given the outcome of each window."""
        return Row(self.text, capacity, *_worst(outcomes), self.conf, self.afresh)


def replay(
    recording: Run | ReplayedTrace | Trace | str | Location,
    alloc_conf: str | Sequence[str] = (),
    *,
    gpu: int | str | None = None,
    free_after: str | None = None,
    search: bool = False,
    fit: bool = False,
    workers: int | None = None,
) -> tuple[DeviceWhatIf, ...]:
    """Replay a recording under other configurations: one row each, the recorded one first.

    Args:
        recording: a run, a trace of one, or the path of a run file or snapshot; a trace that was
            replayed already is not replayed again.
        alloc_conf: one or several settings in the grammar of ``PYTORCH_CUDA_ALLOC_CONF``. What a
            program under other settings would have held when the recording began in its midst is
            not known: what was live then is laid out afresh, without its cache.
        gpu: bytes that torch may hold, or a size such as ``"24GiB"``; where left out, what the
            recording's own refusals tell, else what its card leaves torch, else no limit.
        free_after: a function, ``file.py`` or ``file.py:12``: what was allocated there is freed at
            the end of its step; without steps, before the next allocation from the same stack.
        search: also try torch's defaults and what the recording does not have of
            `configurations.SEARCHED`, and rank all rows.
        fit: also find the smallest card, for the recorded settings and for the best row.
        workers: processes to use; as many as there are cores where left out.

    Raises:
        SettingsError: a setting breaks torch's grammar or limits, or ``gpu`` is no size.
        MissingError: the recording holds no trace, or nothing was allocated at ``free_after``.
    """
    confs = [alloc_conf] if isinstance(alloc_conf, str) else list(alloc_conf)
    questions = [_Question(text, parse_settings(text), conf=text) for text in confs]
    capacity = parse_bytes(gpu) if isinstance(gpu, str) else gpu
    if capacity is not None and capacity <= 0:
        raise SettingsError("a card has more than 0 bytes", "write --gpu 24GiB")
    plan = _Plan(questions, capacity, free_after, search, fit, workers)
    if isinstance(recording, ReplayedTrace):
        device = _only(recording.trace)
        return (plan.device(device, [recording.workload]),)
    return tuple(
        plan.device(device, [workload_of(trace) for trace in device.windows])
        for device in _devices(recording)
    )


def _only(trace: Trace) -> DeviceRun:
    return DeviceRun(trace.device, DeviceInfo(trace.device), (trace,))


def _devices(recording: Run | Trace | str | Location) -> list[DeviceRun]:
    if isinstance(recording, Trace):
        return [_only(recording)]
    run = recording if isinstance(recording, Run) else load(recording)
    devices = [device for device in run.devices if device.windows]
    if not devices:
        hint = "record one with memprof run, or torch.cuda.memory._record_memory_history()"
        raise MissingError(f"{run.source or 'the run'} holds no allocator trace", hint)
    return devices


def _left_to_torch(device: DeviceRun) -> int:
    """Bytes of the card that torch can have; no limit where its size is not known or is a host's.

    ``set_per_process_memory_fraction`` counts torch's own bytes alone.
    """
    info = device.info
    if info.total_bytes <= 0 or not device.device.startswith("cuda"):
        return NO_LIMIT
    if 0 < info.memory_fraction < 1:
        return int(info.memory_fraction * info.total_bytes)
    return max(info.total_bytes - OUTSIDE_TORCH, 1)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What was asked, to be answered device by device."""

    questions: list[_Question]
    capacity: int | None
    free_after: str | None
    search: bool
    fit: bool
    workers: int | None

    def device(self, device: DeviceRun, workloads: list[Workload]) -> DeviceWhatIf:
        """All rows of one device, given what each of its windows asked of the allocator."""
        traces, card = device.windows, _left_to_torch(device)
        changes = self._changes(traces, workloads)
        questions = self._questions(workloads, traces)
        limits = [
            self.capacity or min(p.capacity, max(card, p.recorded.peak_reserved)) for p in workloads
        ]
        jobs = [
            Job(window, question.settings, limits[window], change, question.afresh)
            for question in questions
            for window, change in enumerate(changes)
        ]
        outcomes = played(workloads, jobs, self.workers)
        limit = min(limits)
        limit = limit if limit < NO_LIMIT else 0
        rows = [Row(_RECORDED, 0, *_worst([p.recorded for p in workloads]))]
        for index, question in enumerate(questions):
            own = outcomes[index * len(workloads) : (index + 1) * len(workloads)]
            rows.append(question.row(limit, own))
        if self.search:
            order = sorted(range(1, len(rows)), key=lambda i: _merit(rows[i]))
            rows[1:], questions = [rows[i] for i in order], [questions[i - 1] for i in order]
        fits = self._fits(workloads, changes, questions) if self.fit else ()
        return DeviceWhatIf(device.device, tuple(rows), traces, fits)

    def _changes(self, traces: tuple[Trace, ...], workloads: list[Workload]) -> list[Changes]:
        """The changed lifetimes of every window; an error only where no window has the site."""
        if self.free_after is None:
            return [NOTHING_CHANGED] * len(traces)
        changes: list[Changes] = []
        missing: MissingError | None = None
        for trace, workload in zip(traces, workloads, strict=True):
            try:
                changes.append(freed_each_step(trace, workload, self.free_after))
            except MissingError as error:
                missing = error
                changes.append(NOTHING_CHANGED)
        if missing is not None and not any(changes):
            raise missing
        return changes

    def _questions(self, workloads: list[Workload], traces: tuple[Trace, ...]) -> list[_Question]:
        first_settings = workloads[0].settings
        midst = any(len(workload.start.blocks) for workload in workloads)
        questions = []
        if self.capacity is not None or self.free_after is not None:
            questions.append(_Question(self._name(), first_settings))
        result = list(self.questions)
        if self.search:
            settings_meant = {question.settings for question in result} | {first_settings}
            searched_for = [
                _Question(text, parse_settings(text), conf=text) for text in ("", *untried(traces))
            ]
            result += [
                question for question in searched_for if question.settings not in settings_meant
            ]
        others = [question for question in result if question.settings != first_settings]
        if midst and others:
            questions.append(_Question(AFRESH + self._freed(), first_settings, afresh=True))
        for question in result:
            text = (question.text or DEFAULTS) + self._freed()
            afresh = midst and question.settings != first_settings
            questions.append(replace(question, text=text, afresh=afresh))
        return questions

    def _name(self) -> str:
        card = "" if self.capacity is None else f", on {format_bytes(self.capacity)}"
        return f"{RECORDED_SETTINGS}{card}{self._freed()}"

    def _freed(self) -> str:
        return "" if self.free_after is None else f", {self.free_after} freed each step"

    def _fits(
        self, workloads: list[Workload], changes: list[Changes], questions: list[_Question]
    ) -> tuple[Fit, ...]:
        as_run = _Question(_RECORDED + self._freed(), workloads[0].settings)
        pair = [as_run, *(q for q in questions if q.settings != as_run.settings)][:2]
        jobs = [
            Job(window, question.settings, None, change, question.afresh)
            for question in pair
            for window, change in enumerate(changes)
        ]
        least = fitted(workloads, jobs, self.workers)
        fits = []
        for index, question in enumerate(pair):
            own = least[index * len(workloads) : (index + 1) * len(workloads)]
            need = max(item.bytes for item in own)
            card = next((card for card in CARDS if card >= need + OUTSIDE_TORCH), 0)
            fits.append(Fit(question.text, need, card, max(item.retries for item in own)))
        return tuple(fits)


def _worst(outcomes: Sequence[Outcome]) -> tuple[Outcome, int]:
    """The window that ran out of memory, else the one that reserved most; calls are summed."""
    window = max(
        range(len(outcomes)), key=lambda i: (not outcomes[i].fits, outcomes[i].peak_reserved)
    )
    worst = replace(
        outcomes[window],
        peak_allocated=max(outcome.peak_allocated for outcome in outcomes),
        driver_allocs=sum(outcome.driver_allocs for outcome in outcomes),
        driver_frees=sum(outcome.driver_frees for outcome in outcomes),
        retries=sum(outcome.retries for outcome in outcomes),
    )
    return worst, window


def _merit(row: Row) -> tuple[int, int, int, int]:
    """Best first: it gets farthest, holds least, retries least, asks the driver least."""
    outcome = row.outcome
    end = outcome.oom.event if outcome.oom is not None else 1 << 62
    return -end, outcome.peak_reserved, outcome.retries, outcome.driver_allocs
