"""What a job of ten million steps leaves: its file, the recorder's own memory, the time to report it.

The recorder is the real one, with its schedule, rows, summaries, pace of readings and writer. Its source and
its clock are pretended: each step takes ``--step-s`` of that clock. Two peaks and twenty findings come at
steps that are known, and must be in the file. What a step costs is processor time, that of the source with it.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import psutil
import torch

import memprof
from memprof.record import session, summaries
from memprof.record.options import Options
from memprof.record.sampler import Sampler
from memprof.records import DeviceInfo, Finding, Readings
from memprof.sources.protocol import Chunk, Counters
from memprof.trace import Action, Events, State

MIB = 1 << 20
BEGAN_US = 1_700_000_000_000_000
MOST_FILE_MB, MOST_GROWTH_MIB, MOST_REPORT_S = 64, 32, 30
MOST_COST_RATIO = 1.25
"""Of a step in the last tenth to one in the second; in the first tenth windows are recorded."""
PARTS = 20
PEAKS = {0.1: 60 << 30, 0.7: 61 << 30}
"""By the share of the run that has gone by; each one step's."""
EVENTS = 10_000
"""A step's, of a large model: windows take all bytes that they may."""


class Clock:
    """A clock of the system and one that nobody sets; both are moved on by the program."""

    def __init__(self) -> None:
        self.at_us = 0

    def turn(self) -> None:
        """Let the recorder read this one; processor time stays what it is."""
        turned = SimpleNamespace(**vars(time))
        turned.perf_counter_ns = lambda: self.at_us * 1000
        for module in (session, summaries):
            module.time = turned  # type: ignore[attr-defined]
            module.now_us = lambda: BEGAN_US + self.at_us  # type: ignore[attr-defined]


class Source:
    """Cards of which two peaks stand out on the first, and whose events come in every window."""

    name = "pretended"

    def __init__(self, cards: int, events_a_step: int) -> None:
        self.step, self._events_a_step = 0, events_a_step
        self.peaks: dict[int, int] = {}
        self.names = [f"cuda:{number}" for number in range(cards)]
        self._waiting = 0

    def devices(self) -> Sequence[DeviceInfo]:
        return [DeviceInfo(name, name="Pretended", total_bytes=80 << 30) for name in self.names]

    def open(self) -> None:
        """Nothing to hook into."""

    def close(self) -> None:
        """Nothing to take away."""

    def counters(self) -> Sequence[Counters]:
        level = (20 << 30) + self.step % 97 * 4096
        peaks = [level + (1 << 30)] * len(self.names)
        peaks[0] = self.peaks.get(self.step, peaks[0])
        return [
            Counters(name, level, peak, 62 << 30, 62 << 30, level, level, 3 << 20, 12, 0)
            for name, peak in zip(self.names, peaks, strict=True)
        ]

    def begin_window(self) -> Mapping[str, State]:
        self._waiting = 0
        return self._states()

    def _states(self) -> Mapping[str, State]:
        return {name: State() for name in self.names}

    def passed(self, is_recorded: bool) -> None:
        """A step has gone by."""
        self.step += 1
        self._waiting += self._events_a_step * is_recorded

    def pending_events(self) -> int:
        return self._waiting

    def drain(self) -> Sequence[Chunk]:
        count, self._waiting = self._waiting, 0
        turns = range(count)
        events = Events.build(
            count,
            action=[(Action.ALLOC, Action.FREE_REQUESTED)[n % 2] for n in turns],
            address=[(7 << 40) + n // 2 * 512 for n in turns],
            size=[512] * count,
            time_us=[BEGAN_US + self.step * 1_000_000 + n for n in turns],
        )
        return [Chunk("cuda:0", events)]

    def end_window(self) -> Mapping[str, State]:
        return self._states()

    def notes(self) -> Sequence[str]:
        return []


def readings(at_us: int, cards: Sequence[str]) -> list[Readings]:
    """As many figures as the host and cards have."""
    values = {f"figure_{n}": [(12 << 30) + at_us // 7919 * (n + 1) % 10**9] for n in range(10)}
    return [Readings("any", device, [BEGAN_US + at_us], values) for device in ("host", *cards)]


def record(path: Path, steps: int, step_us: int, cards: int) -> None:
    """Record so many steps, and print a line for each tenth of them."""
    clock = Clock()
    clock.turn()
    source = Source(cards, events_a_step=EVENTS)
    source.peaks = {step + 1: peak for step, peak in peak_steps(steps).items()}
    findings = set(finding_steps(steps))
    options = Options(sources=[source])
    job = session.Session(lambda: str(path), options)
    pace = Sampler([], 1.0, lambda _: None, lambda *_: None, lambda: None)
    job.open_torch()
    next_look_us = 0.0
    process = psutil.Process()
    gc.collect()
    before = process.memory_info().rss / MIB
    used_s, levels, costs = time.process_time(), [before], []
    for step in range(steps):
        clock.at_us += step_us
        source.passed(job.recording.window >= 0)
        job.step_done()
        if clock.at_us >= next_look_us:
            pace.look()
            for reading in readings(clock.at_us, source.names):
                job.add_readings(reading)
            job.output.flush()
            next_look_us = clock.at_us + pace.interval_s * 1e6
        if step in findings:
            job.add_finding(Finding("oom", "cuda:0", step, BEGAN_US + clock.at_us))
        if step + 1 in (100, 1_000, 10_000):
            levels.append(process.memory_info().rss / MIB)
            print(f"{step + 1:>10,} steps: {levels[-1]:6.1f} MiB", flush=True)
        if (step + 1) % (steps // PARTS) == 0:
            now_s = time.process_time()
            levels.append(process.memory_info().rss / MIB)
            costs.append((now_s - used_s) / (steps // PARTS) * 1e6)
            used_s = now_s
            print(
                f"{step + 1:>10,} steps: {path.stat().st_size / 1e6:6.1f} MB, {levels[-1]:6.1f} MiB, "
                f"{costs[-1]:5.1f} µs each",
                flush=True,
            )
    job.close("ok")
    growth = max(levels) - before
    tenths = [sum(costs[n : n + 2]) / 2 for n in range(0, PARTS, 2)]
    print(
        f"memory grew by {growth:.1f} MiB since before the first step, by "
        f"{max(levels[4:]) - levels[4]:.1f} MiB after the first twentieth; "
        f"a step took {tenths[0]:.1f} µs in the first tenth, {tenths[1]:.1f} in the second and "
        f"{tenths[-1]:.1f} in the last"
    )
    assert growth < MOST_GROWTH_MIB
    assert tenths[-1] < MOST_COST_RATIO * tenths[1]


def peak_steps(steps: int) -> dict[int, int]:
    """The peak of each step that stands out."""
    return {round(share * steps): peak for share, peak in PEAKS.items()}


def finding_steps(steps: int) -> list[int]:
    """The steps after which something is found."""
    return [part * (steps // PARTS) + 1 for part in range(PARTS)]


def check(path: Path, steps: int) -> None:
    """Ask the file for what must never be lost."""
    size = path.stat().st_size / 1e6
    began_s = time.perf_counter()
    run = memprof.load(path)
    print(f"{size:.1f} MB; loaded in {time.perf_counter() - began_s:.1f} s")
    device = run.device("cuda:0")
    assert run.footer is not None
    assert run.footer.steps == steps
    assert device.steps is not None
    peaks = peak_steps(steps)
    peak_step, highest = max(peaks.items())
    assert set(peaks.values()) < set(device.steps.peak_allocated)
    assert max(device.steps.peak_allocated) == highest
    (summary,) = [one for one in run.footer.devices if one.device == "cuda:0"]
    assert (summary.peak_allocated_bytes, summary.peak_step) == (highest, peak_step)
    assert [one.step for one in run.findings] == finding_steps(steps)
    began_s = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "memprof_cli", "report", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor_s = used.ru_utime + used.ru_stime
    took_s = time.perf_counter() - began_s
    print(f"memprof report: exit {done.returncode}, {took_s:.1f} s, {processor_s:.1f} s of a core")
    assert done.returncode in (0, 1), done.stderr
    assert size < MOST_FILE_MB
    assert processor_s < MOST_REPORT_S


def main() -> None:
    """Record, then ask."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--steps", type=int, default=10_000_000)
    words.add_argument("--step-s", type=float, default=1.0, help="by the pretended clock")
    words.add_argument("--cards", type=int, default=1, help="cards of the job")
    words.add_argument("--keep", type=Path, help="leave the file here")
    asked = words.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    print(f"{os.cpu_count()} cores, Python {platform.python_version()}, torch {torch.__version__}")
    with tempfile.TemporaryDirectory() as folder:
        path = asked.keep or Path(folder) / "run.json"
        record(path, asked.steps, round(asked.step_s * 1e6), asked.cards)
        check(path, asked.steps)


if __name__ == "__main__":
    main()
