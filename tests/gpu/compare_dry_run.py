"""Programs recorded on a card, event by event, and what a dry run for that card says of the same.

    export PYTHONPATH=.:cli:dashboards
    python tests/gpu/compare_dry_run.py record FOLDER [NAME ...]     on a machine with a card
    python tests/gpu/compare_dry_run.py compare FOLDER [NAME ...]    where there is none, with its torch

The first, which is the part "compared" of everything.py, writes ``FOLDER/card.json``, as
`memprof doctor --describe-gpu` does, and a file for each program: its allocations and frees in
order, its peaks, and where each allocation was made. The second runs them for that card and says
what differs. `TABLES` are no programs but lists of single operations, with the bytes that each took.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from itertools import zip_longest
from pathlib import Path
from typing import Any

from memprof.dry_run.checks import DistributionChecks
from memprof.dry_run.generation import GenerationLimit
from memprof.dry_run.packed_sequences import PackedSequences
from memprof.record.process import is_dry_run
from tests.gpu.compared_programs import EVENTS, TABLES

ROOT = Path(__file__).resolve().parents[2]
LONGEST_S = 150
MOST_ENTRIES = 2_000_000
ALLOC = 0
"""`ALLOC` in `ACTIONS`."""
ACTIONS = (
    "alloc",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
)
PACKAGES = ("torch", "transformers", "torchvision", "torch-geometric", "nvidia-cudnn-cu13")


# -- recording -------------------------------------------------------------------------------------


def record_events(name: str) -> dict[str, Any]:
    """What torch recorded of a program in this process."""
    import torch

    torch.cuda.init()
    if is_dry_run():  # as where one is recorded
        for wrapped in (GenerationLimit(), PackedSequences(), DistributionChecks()):
            wrapped.open()
    memory = torch.cuda.memory
    torch.cuda.memory._record_memory_history(
        "all", context="alloc", stacks="python", max_entries=MOST_ENTRIES
    )
    EVENTS[name][0]()
    torch.cuda.synchronize()
    snapshot = memory._snapshot()
    memory._record_memory_history(None)
    places: dict[str, int] = {}
    events = []
    for entry in snapshot["device_traces"][0]:
        if entry["action"] not in ACTIONS:
            continue
        place = place_of(entry) if entry["action"] == "alloc" else ""
        number = places.setdefault(place, len(places))
        action = ACTIONS.index(entry["action"])
        events.append((action, entry["size"], number, entry["addr"], entry["stream"]))
    stats = torch.cuda.memory_stats()
    kinds = ("allocated", "reserved", "requested")
    return {
        "events": events,
        "places": list(places),
        "bytes": {
            f"{kind} {when}": stats[f"{kind}_bytes.all.{when}"]
            for kind in kinds
            for when in ("peak", "current")
        },
        "segments": sorted(segment["total_size"] for segment in snapshot["segments"]),
    }


def place_of(entry: dict[str, Any]) -> str:
    """The innermost lines of Python that made an allocation."""
    frames = [frame for frame in entry.get("frames", ()) if frame["filename"].endswith(".py")]
    return " < ".join(
        f"{frame['filename'].rpartition('/')[2]}:{frame['line']} {frame['name']}"
        for frame in frames[:3]
    )


def record_table(name: str) -> dict[str, Any]:
    """A row for each operation: allocations, bytes of them all, most at once, what stayed, errors.

    It is run twice, and the second time counts: what a library keeps is there then.
    """
    import torch

    rows = {}
    torch.cuda.init()
    for title, operation in TABLES[name]():
        took: list[Any] = []
        for _ in range(2):
            torch.cuda.reset_peak_memory_stats()
            torch.cuda.memory._record_memory_history("all", context=None, stacks="python")
            before = torch.cuda.memory_stats()
            error = ""
            try:
                result = operation()
                error = result if isinstance(result, str) else ""
                del result
                torch.cuda.synchronize()
            except Exception as raised:  # noqa: BLE001 - whatever it is, it is an answer
                error = f"{type(raised).__name__}: {raised}".split("\n")[0][:120]
            after = torch.cuda.memory_stats()
            trace = torch.cuda.memory._snapshot()["device_traces"][0]
            torch.cuda.memory._record_memory_history(None)
            took = [
                after["allocation.all.allocated"] - before["allocation.all.allocated"],
                after["allocated_bytes.all.allocated"] - before["allocated_bytes.all.allocated"],
                after["allocated_bytes.all.peak"] - before["allocated_bytes.all.current"],
                after["allocated_bytes.all.current"] - before["allocated_bytes.all.current"],
                error,
                [entry["size"] for entry in trace if entry["action"] == "alloc"],
            ]
        rows[title] = took
    return {"rows": rows}


def one(name: str, path: Path) -> None:
    """Record in this process, which has not imported torch yet, and write."""
    if settings := EVENTS[name][1] if name in EVENTS else "":
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = settings
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()  # what was compiled is not compiled
    import torch

    began_s = time.monotonic()
    made = record_table(name) if name in TABLES else record_events(name)
    made["took_s"] = round(time.monotonic() - began_s, 1)
    made["device"] = torch.cuda.get_device_name()
    made["versions"] = {package: version_of(package) for package in PACKAGES}
    path.write_bytes(gzip.compress(json.dumps(made).encode(), mtime=0))


def version_of(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def environment() -> dict[str, str]:
    """Variables with this repository's code, installed or not, and none of the allocator's."""
    variables = {k: v for k, v in os.environ.items() if "ALLOC_CONF" not in k}
    folders = [str(ROOT / below) for below in ("", "cli", "dashboards")]
    variables["PYTHONPATH"] = os.pathsep.join([*folders, variables.get("PYTHONPATH", "")])
    return variables


def run(name: str, path: Path, before: list[str]) -> str:
    """Record one in a process of its own; what went wrong."""
    variables = environment()
    command = [*before, sys.executable, __file__, "--one", name, str(path)]
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                command, cwd=folder, env=variables, capture_output=True, text=True,
                timeout=LONGEST_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"stopped after {LONGEST_S} s"
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return "" if done.returncode == 0 and path.exists() else " / ".join(lines[-3:])[-500:]


def run_all(names: list[str], folder: Path, before: list[str], at_once: int) -> None:
    with ThreadPoolExecutor(at_once) as pool:
        paths = [folder / f"{name}.json.gz" for name in names]
        for name, wrong in zip(names, pool.map(lambda n, p: run(n, p, before), names, paths)):  # noqa: B905
            print(f"{name}: {wrong or 'recorded'}", flush=True)


# -- comparing -------------------------------------------------------------------------------------


def load(path: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return read


def compared(name: str, real: dict[str, Any], ours: dict[str, Any]) -> Iterator[str]:
    """Lines that say how two recordings differ.

    The order of frees is not compared: where a program has dictionaries by the addresses of objects,
    two runs on a card differ in it, too.
    """
    if name in TABLES:
        yield from compared_rows(name, real["rows"], ours["rows"])
        return
    left, right = ([e for e in one["events"] if e[0] == ALLOC] for one in (real, ours))
    first = next(
        (
            at
            for at, (a, b) in enumerate(zip_longest(left, right))
            if (a or [0])[:2] != (b or [0])[:2]
        ),
        None,
    )
    told = "equal" if first is None else f"{len(right)} here, differ from number {first} on"
    yield f"{name}: {len(left)} allocations on the card: {told}"
    for kind, bytes_ in real["bytes"].items():
        if bytes_ != ours["bytes"][kind]:
            more = ours["bytes"][kind] - bytes_
            yield f"    {kind}: {bytes_} on the card, {more:+} here ({more / bytes_:+.2%})"
    if real["segments"] != ours["segments"]:
        yield f"    segments: {len(real['segments'])} on the card, {len(ours['segments'])} here"
    if first is not None:
        for who, events, places in (
            ("card", left, real["places"]),
            ("here", right, ours["places"]),
        ):
            for event in events[max(0, first - 1) : first + 3]:
                yield f"      {who}: {event[1]} {places[event[2]]}"


def compared_rows(name: str, real: dict[str, Any], ours: dict[str, Any]) -> Iterator[str]:
    both = [title for title in real if title in ours]
    peaks = [title for title in both if real[title][2] == ours[title][2]]
    equal = [title for title in both if real[title][:4] == ours[title][:4]]
    yield f"{name}: {len(both)} rows, {len(equal)} equal in all, {len(peaks)} in their peak"
    for title in both:
        if real[title] != ours[title] and (title not in equal or real[title][4] != ours[title][4]):
            yield f"    {title}: {real[title]} on the card, {ours[title]} here"


def main() -> int:
    what, place, *rest = sys.argv[1:]
    if what == "--one":
        one(place, Path(rest[0]))
        sys.stdout.flush()
        os._exit(0)  # torch 2.11 may wait minutes for the processes that compile
    folder = Path(place).resolve()
    names = rest or [*EVENTS, *TABLES]
    if what == "record":
        folder.mkdir(parents=True, exist_ok=True)
        describe = [sys.executable, "-m", "memprof_cli", "doctor", "--describe-gpu"]
        with (folder / "card.json").open("w") as card:
            subprocess.run(describe, env=environment(), stdout=card, check=False)
        run_all(names, folder, [], at_once=6)
        return 0
    made = folder / "dry-run"
    made.mkdir(exist_ok=True)
    words = ["dry-run", "--gpu", str(folder / "card.json"), "--no-record"]
    run_all(names, made, [sys.executable, "-m", "memprof_cli", *words], at_once=2)
    for name in names:
        paths = folder / f"{name}.json.gz", made / f"{name}.json.gz"
        if all(path.exists() for path in paths):
            for line in compared(name, *map(load, paths)):
                print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
