"""What `memprof report` costs on a snapshot of a million events, beside `pickle.load` of the same file."""

from __future__ import annotations

import argparse
import pickle
import random
import tempfile
from pathlib import Path
from typing import Any

from processes import REPORTS, measured

MIB = 1 << 20
LAYERS = 48
PROGRAMS = {
    "pickle.load": "import pickle, sys; pickle.load(open(sys.argv[1], 'rb'))",
    **REPORTS,
}


class Training:
    """A training loop as torch's recorder sees it: stacks of 30 shared frames, blocks used again."""

    def __init__(self, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self.events: list[dict[str, Any]] = []
        self.free: dict[int, list[int]] = {}
        self.live: dict[int, tuple[int, int, Any]] = {}
        self.segments: list[tuple[int, int]] = []
        self.next = 0x7F0000000000
        self.time_us = 1_700_000_000_000_000
        self.frames = [
            {"name": f"f{i}", "filename": f"/opt/x/site-packages/torch/m{i % 40}.py", "line": i}
            for i in range(1500)
        ] + [{"name": f"block{i}", "filename": "/home/u/gpt.py", "line": i} for i in range(200)]
        self.stacks = [self.random.sample(self.frames, 30) for _ in range(2000)]

    def event(self, action: str, address: int, size: int, frames: Any) -> None:
        self.time_us += self.random.randrange(1, 30)
        self.events.append(
            {
                "action": action, "addr": address, "size": size, "stream": 0, "time_us": self.time_us,
                "compile_context": "N/A", "user_metadata": "", "pool_id": (0, 0), "frames": frames,
            }
        )  # fmt: skip

    def alloc(self, size: int, site: int) -> int:
        taken = -(-size // 512) * 512
        frames = list(self.stacks[site % len(self.stacks)])  # torch makes a new list every time
        holes = self.free.setdefault(taken, [])
        if not holes:
            length = -(-taken // (2 * MIB)) * 2 * MIB
            self.event("segment_alloc", self.next, length, frames)
            self.segments.append((self.next, length))
            holes += range(self.next, self.next + length - taken + 1, taken)
            self.next += length + 2 * MIB
        address = holes.pop()
        self.live[address] = (taken, size, frames)
        self.event("alloc", address, size, frames)
        return address

    def drop(self, address: int) -> None:
        taken, size, frames = self.live.pop(address)
        self.event("free_requested", address, size, frames)
        self.event("free_completed", address, size, frames)
        self.free[taken].append(address)

    def step(self) -> None:
        sizes = [self.random.choice([768, 3072, 4 * MIB, 12 * MIB]) for _ in range(6 * LAYERS)]
        kept = []
        for number, size in enumerate(sizes):
            kept.append(self.alloc(size, number))
            self.drop(self.alloc(size, number + 500))
        for number, address in enumerate(reversed(kept)):
            gradient = self.alloc(self.random.choice([768, 3 * MIB]), number + 900)
            self.drop(address)
            self.drop(gradient)

    def snapshot(self, events: int) -> dict[str, Any]:
        for number in range(LAYERS * 4):
            self.alloc(3 * MIB, number + 1500)
        while len(self.events) < events:
            self.step()
        return {
            "segments": [self.segment(*segment) for segment in self.segments],
            "device_traces": [self.events],
            "allocator_settings": {"expandable_segments": False},
            "external_annotations": [],
        }

    def segment(self, start: int, length: int) -> dict[str, Any]:
        blocks, at, used = [], start, 0
        for address in sorted(a for a in self.live if start <= a < start + length):
            taken, size, frames = self.live[address]
            if address > at:
                blocks.append(block(at, address - at))
            blocks.append(block(address, taken, size, frames))
            used, at = used + taken, address + taken
        if at < start + length:
            blocks.append(block(at, start + length - at))
        return {
            "device": 0, "address": start, "total_size": length, "allocated_size": used,
            "active_size": used, "requested_size": used, "stream": 0, "segment_type": "large",
            "segment_pool_id": (0, 0), "is_expandable": False, "frames": [], "blocks": blocks,
        }  # fmt: skip


def block(address: int, size: int, requested: int = 0, frames: Any = ()) -> dict[str, Any]:
    state = "active_allocated" if requested else "inactive"
    return {"address": address, "size": size, "requested_size": requested, "state": state, "frames": list(frames)}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path, page = Path(folder) / "snapshot.pickle", Path(folder) / "page.html"
        with path.open("wb") as file:
            pickle.dump(Training().snapshot(options.events), file, 4)
        print(f"{options.events:,} events, {path.stat().st_size / MIB:.0f} MiB on disk")
        best: dict[str, tuple[float, float]] = {}
        for _ in range(options.rounds):  # in turn, so that a busy moment hits all of them
            for name, program in PROGRAMS.items():
                figures = measured(program, path, page)
                best[name] = min(figures, best.get(name, figures))
        bare = best["pickle.load"][0]
        for name, (seconds, peak) in best.items():
            print(f"{name:24} {seconds:6.2f} s  {seconds / bare:5.2f} x  peak {peak:6.0f} MiB")
        print(f"the page: {page.stat().st_size / MIB:.1f} MiB")


if __name__ == "__main__":
    main()
