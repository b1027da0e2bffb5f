"""What a recording could not see, as sentences for the report."""

from __future__ import annotations

import numpy as np

from memprof.records import GuessedSteps
from memprof.report.recorded_steps import in_words, recorded_steps
from memprof.run import Run
from memprof.trace import EMPTY, NOT_RECORDED, Action
from memprof.units import format_bytes, format_count, format_percent
from memprof.views.examination import DeviceExamination, Examination
from memprof.views.sites import short_path
from memprof.views.steps import is_lone_request
from memprof.views.window import Window

__all__ = ["is_bare_state", "recording_gaps"]

_DRIVER = "nvml"
"""The source that asks the driver of cards, of which a run on the CPU alone has none to miss."""
_VALUES = (
    "values of tensors and what becomes of results were not seen, so waste that shows in them is "
    "not told; a recording with MEMPROF_NATIVE=0 sees them"
)
"""torch's allocator knows who asks for memory; what operators read is observed beside that."""


def recording_gaps(examination: Examination) -> tuple[str, ...]:
    """One sentence for everything that was not recorded, the recorder's own notes first."""
    run, bare = examination.run, is_bare_state(examination.run)
    on_host = all(device.name == "cpu" for device in examination.devices)
    notes = [note for note in run.notes if not (on_host and note.source == _DRIVER)]
    texts = [f"{note.source}: {note.message}" for note in notes]
    if run.guessed is not None:
        texts.append(_guess_text(run.guessed, is_snapshot=run.is_snapshot))
    for device in examination.devices:
        device_notes = [_final_state(run)] if bare and device.windows else _of_device(device, run)
        texts += [f"{device.name}: {text}" for text in device_notes]
    if run.is_snapshot and examination.devices:
        texts.append(
            "memory outside torch's allocator (CUDA context, cuBLAS and NCCL buffers, other "
            "processes) is not in a snapshot"
        )
    return tuple(dict.fromkeys(texts))


def _guess_text(steps: GuessedSteps, *, is_snapshot: bool) -> str:
    """Which steps the program did not mark, and what was taken for one."""
    one = {
        "line": "a turn of a loop" if steps.filename else "some turns of a loop",
        "bare_call": "a call of a module",
        "call": "a call of a model",
        "backward": "a backward pass",
    }.get(steps.sign, steps.sign)
    if steps.filename:
        one += f" at {short_path(steps.filename)}:{steps.line}"
    if is_snapshot:
        return f"a snapshot has no steps: by its stacks each is {one}"
    which = f"from step {steps.first} on steps" if steps.first else "steps"
    return f"{which} were guessed: each is {one}; memprof.step() marks them"


def is_bare_state(run: Run) -> bool:
    """Whether a file holds what an allocator held in the end, and neither allocations nor steps."""
    windows = [window for device in run.devices for window in device.windows]
    has_allocs = any((window.events.action == Action.ALLOC).any() for window in windows)
    has_segments = any(window.end is not None and len(window.end.segments) for window in windows)
    return has_segments and not has_allocs and not any(len(device.steps) for device in run.devices)


def _final_state(run: Run) -> str:
    why = "recording was not on while the job ran" if run.is_snapshot else "nothing was allocated"
    return f"no events, only the final state: {why}"


def _of_device(device: DeviceExamination, run: Run) -> list[str]:
    events = sum(len(window.trace.events) for window in device.windows)
    notes = []
    if not events and device.windows:
        notes.append("no allocation was recorded")
    elif not events and len(device.steps):
        notes.append("no single allocation was recorded, only counters")
    elif not events:
        notes.append("nothing of its memory was recorded")
    if device.device.info.backend not in ("", "native", "cpu"):
        notes.append(f"the allocator backend {device.device.info.backend} records no history")
    for window in device.windows:
        notes += _of_window(window)
    recorded_count, total = recorded_steps(device.steps)
    if events and recorded_count < total:
        notes.append(in_words(recorded_count, total, run))
    if _is_uncounted(device):
        notes.append(_between_windows(device))
    elif len(device.windows) > 1:
        notes.append(f"between its {len(device.windows)} windows only counters were kept")
    is_subject = len(run.devices) == 1  # beside CUDA the CPU is watched until that begins
    recorder = device.device.info.recorder
    if events and is_subject and recorder == "operators":
        notes.append(_within_operators(device, run))
    if events and is_subject and recorder == "allocator":
        notes.append(_VALUES)
    return notes


def _within_operators(device: DeviceExamination, run: Run) -> str:
    """What a dispatch mode cannot see, which is given what operators return and nothing else."""
    graphs = "buffers of compiled graphs and " if device.device.info.compiled else ""
    sentence = f"{graphs}temporaries inside operators were not seen, so the peak may be higher"
    if any(note.source == "native" for note in run.notes):  # it was tried, and the note says more
        return sentence
    return f"{sentence}; once `memprof native` has been run, recordings see them"


def _is_uncounted(device: DeviceExamination) -> bool:
    """Whether steps have no counters, as between windows on a CPU, which has none to ask."""
    steps = device.steps
    length = steps.last - steps.first + 1
    count, total = int(length[steps.allocated >= 0].sum()), int(length.sum())
    return 0 < count < total


def _between_windows(device: DeviceExamination) -> str:
    """What is known of a CPU, which has no counters to ask, at steps outside of windows."""
    steps = device.steps
    count = int(((steps.allocated >= 0) & (steps.window < 0)).sum())
    if not count:
        return "between windows nothing was counted"
    times = "once" if count == 1 else f"{format_count(count)} times"
    return f"between windows tensors were counted {times}, at a step's end: a peak may be higher"


def _of_window(window: Window) -> list[str]:
    notes = []
    trace, lives = window.trace, window.lives
    notes += _before_recording(window)
    if trace.reordered:
        notes.append("the ring buffer was rotated: events were put back in order of their times")
    if trace.end is not None and trace.end.unlisted:
        notes.append(
            f"the segments claim {format_bytes(trace.end.unlisted)} beyond the blocks they list"
        )
    lost_count = _lost_frees(window)
    if lost_count:
        notes.append(
            f"{format_count(lost_count)} recorded allocations are neither freed nor in the final "
            "segments: events are missing"
        )
    if len(trace.events) and trace.events.time_us[0] == NOT_RECORDED:
        notes.append("events carry no time")
    stacks = lives.stack[lives.alloc >= 0]
    bare = int((stacks == EMPTY).sum())
    if len(stacks) and bare:
        share = format_percent(bare, len(stacks))
        notes.append(f"{share} of the recorded allocations have no stack")
    return notes


def _before_recording(window: Window) -> list[str]:
    lives = window.lives
    early = lives.alloc == NOT_RECORDED
    trace = window.trace
    if trace.modelled or not early.any() or not len(trace.events) or is_lone_request(trace):
        return []
    total = format_bytes(int(lives.size[early].sum()))
    notes = [f"{total} in {format_count(int(early.sum()))} blocks were there when recording began"]
    freed = int((early & (lives.free < len(window.trace.events))).sum())
    if freed and window.trace.start is None:
        notes.append(
            f"{format_count(freed)} of them are known only by their free: recording began late, or "
            "its ring buffer overflowed (max_entries)"
        )
    return notes


def _lost_frees(window: Window) -> int:
    """Allocations that no event ends and that the final state, which is authoritative, lacks."""
    trace, lives = window.trace, window.lives
    in_window = lives.alloc >= 0
    if trace.end is None or trace.modelled or not in_window.any():
        return 0
    open_ended = in_window & (lives.free == len(trace.events))
    in_last_state = np.isin(lives.address[open_ended], trace.end.blocks.address)
    ends = lives.free[in_window & ~open_ended]
    reused = trace.events.action[ends] == Action.ALLOC  # the next event of its address
    return int((~in_last_state).sum()) + int(reused.sum())
