"""Sources that a test controls, and what a run file of a test holds; no test is here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

from memprof.records import DeviceInfo
from memprof.sources.protocol import Chunk, Counters, LateOwner, Reading
from memprof.trace import Action, Events, State

ROOT = Path(__file__).resolve().parent.parent
PYTHONPATH = os.pathsep.join(str(ROOT / folder) for folder in (".", "cli", "dashboards"))


class FakeEvents:
    """An event source of the device ``cuda:0``; ``fails`` names the calls that raise."""

    name = "fake"

    def __init__(self, *, fails: Sequence[str] = ()) -> None:
        self.fails = set(fails)
        self.calls: list[str] = []
        self.waiting = 0
        self.made = 0
        self.allocated = 1000
        self.reserved = 4000
        self.late: dict[int, LateOwner] = {}

    def happen(self, count: int) -> None:
        """So many allocations."""
        self.waiting += count

    def devices(self) -> Sequence[DeviceInfo]:
        return [DeviceInfo("cuda:0", name="Fake", total_bytes=1 << 30)]

    def open(self) -> None:
        self._called("open")

    def close(self) -> None:
        self._called("close")

    def counters(self) -> Sequence[Counters]:
        self._called("counters")
        return [
            Counters(
                "cuda:0",
                allocated=self.allocated,
                peak_allocated=self.allocated + 500,
                reserved=self.reserved,
            )
        ]

    def begin_window(self) -> Mapping[str, State]:
        self._called("begin_window")
        self.made = self.waiting = 0
        return {"cuda:0": State()}

    def pending_events(self) -> int:
        return self.waiting

    def drain(self) -> Sequence[Chunk]:
        self._called("drain")
        count, self.waiting = self.waiting, 0
        numbers = range(self.made, self.made + count)
        self.made += count
        late, self.late = self.late, {}
        events = Events.build(
            count,
            action=[Action.ALLOC] * count,
            address=[512 * n for n in numbers],
            size=[100] * count,
            time_us=[1_000_000 + n for n in numbers],
        )
        return [Chunk("cuda:0", events, late_events=late)]

    def end_window(self) -> Mapping[str, State]:
        self._called("end_window")
        return {"cuda:0": State()}

    def notes(self) -> Sequence[str]:
        return []

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if name in self.fails:
            raise RuntimeError(f"{name} is broken")


class FakeReadings:
    """A reading source that counts its looks, and may fail at one of them."""

    name = "fake readings"

    def __init__(self, fails_at: int = -1) -> None:
        self.looks = 0
        self.is_open = False
        self.fails_at = fails_at

    def open(self) -> None:
        self.is_open = True

    def close(self) -> None:
        self.is_open = False

    def read(self) -> Sequence[Reading]:
        self.looks += 1
        if self.looks == self.fails_at:
            raise OSError("the wire is cut")
        return [Reading("host", 1_000 * self.looks, {"looks_count": self.looks})]


def records(path: Path) -> list[dict]:
    return json.loads(path.read_text())


def flat(lists) -> list:
    return list(chain.from_iterable(lists))


def kinds(path: Path) -> list[str]:
    return [record["kind"] for record in records(path)]


def of_kind(path: Path, kind: str) -> list[dict]:
    return [record for record in records(path) if record["kind"] == kind]


def notes(path: Path) -> str:
    return "\n".join(f"{n['source']}: {n['message']}" for n in of_kind(path, "note"))


def python(code: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    plain = {n: v for n, v in os.environ.items() if not n.startswith("MEMPROF")}
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=plain | {"PYTHONPATH": PYTHONPATH, "OMP_NUM_THREADS": "1"} | environment,
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
