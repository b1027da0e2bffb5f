"""Damaged and made-up files end in a `MemprofError` or in an answer, soon, and in nothing else."""

from __future__ import annotations

import gzip
import json
import pickle
import random
import time
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from memprof.errors import MemprofError
from memprof.loading import load
from memprof.oom.post_mortem import PostMortem, post_mortems
from memprof.records import Finding, Note, Readings
from memprof.report.summary import summarize
from memprof.rules.ranked_findings import findings
from memprof.run import Run
from memprof.testing import (
    SNAPSHOT_VERSIONS,
    TraceBuilder,
    save_snapshot,
    snapshot,
    step_columns,
    write_run,
)
from memprof.trace import Annotation, Category, Frame, Phase, Trace
from memprof.views.examination import Examination, examine
from memprof.views.infer_category import infer
from memprof.views.timeline import grouped, samples
from memprof.what_if.changed_run import replay
from memprof_dashboards import RunReport
from memprof_dashboards.page import page
from tests.files import write_anew

KIB, MIB = 1 << 10, 1 << 20
ODD = [
    None, True, -1, 0, 1, 7, 1 << 31, 1 << 61, 1 << 62, (1 << 63) - 1, 1 << 63, 1 << 64, 1 << 200, -(1 << 63),
    0.5, float("nan"), float("inf"), -0.0, "", "x", "cuda:0", "cuda:99999", "9" * 5000, "\x00", "<script>", "\u202e",
    [], {}, [[]], [1, 2], {"a": 1}, {"device": -1}, b"bytes",
]  # fmt: skip
LONGEST_S = 5
_THOROUGH = 4
"""One damaged file in so many is also asked of every command; each takes its time."""
OOM = {
    "window": 0,
    "segment_bytes": 20 * MIB,
    "device_free": MIB,
    "device_total": 1 << 30,
    "allocated": 9 * MIB,
    "reserved": 12 * MIB,
    "pending": 0,
    "largest_free": MIB,
    "autocast": "",
    "worker": "DataLoader worker process 0",
    "process_used": 1 << 29,
    "processes": [{"pid": 7, "name": "python", "bytes": MIB}],
    "live": {
        "category": {"parameter": 3 * MIB},
        "dtype": {"parameter": {"float32": 3 * MIB}},
        "stacks": [[1, 3 * MIB], [2, 5 * MIB]],
    },
}
"""What a job writes of a failed allocation."""
PLAIN = (type(None), bool, int, float, str, list, dict)


def training(device: str) -> Trace:
    """A little of everything: steps, phases, owners, streams, an oom, expandable segments."""
    builder = TraceBuilder(device, expandable=device == "cuda:1")
    stack = [
        Frame("forward", "/site-packages/torch/nn/modules/linear.py", 3),
        Frame("main", "a.py", 1),
    ]
    builder.existing(3 * MIB, "w", stack=stack, category=Category.PARAMETER)
    for step in range(3):
        builder.label(step=step, phase=Phase.FORWARD, module="Net.fc", annotation=f"s{step}")
        builder.alloc(KIB * (step + 1), f"a{step}", stack=stack, category=Category.ACTIVATION)
        builder.alloc(5 * MIB, "loss", stack=stack[1:], stream=step % 2)
        builder.label(step=step, phase=Phase.BACKWARD)
        builder.free("loss", complete=False).alloc(3 * MIB, "grad", category=Category.GRADIENT)
        builder.completed("loss").free("grad").empty_cache()
    return builder.oom(1 << 40, device_free=1).build()


def run_file(folder: Path, suffix: str = "") -> Path:
    steps = step_columns(
        allocated=[i * KIB for i in range(8)],
        reserved=[MIB] * 8,
        end_us=list(range(1, 9)),
        window=[0] * 8,
    )
    more = [
        Readings("nvml", "cuda:0", [1, 2], {"used": [1, None], "power_w": [0.5, 2.5]}),
        Finding("holders", device="cuda:0", step=3, stack=1, label=1, bytes=4, count=2),
        Finding("oom", "cuda:0", 3, 1 << 60, stack=1, label=1, bytes=20 * MIB, details=OOM),
        Note("nvml", "gone", time_us=3),
    ]
    devices = ("cuda:0",) if suffix == ".small" else ("cuda:0", "cpu", "cuda:0")
    traces = map(training, devices)
    return write_run(folder / f"run.json{suffix}", *traces, steps=steps, more=more)


@cache
def original(name: str) -> bytes:
    """An undamaged file to start from."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        if name.startswith("run"):
            return run_file(Path(folder), name.removeprefix("run")).read_bytes()
        version, protocol = name.removesuffix(".gz").split("/")
        trace = training("cuda:0")
        suffix = ".gz" if name.endswith(".gz") else ""
        data = snapshot(trace, training("cuda:1"), torch=version)
        data["external_annotations"] = [
            {"name": n, "stage": s, "device": 0, "time_us": int(trace.events.time_us[i])}
            for i, (n, s) in enumerate([("ProfilerStep#1", "START"), ("Optimizer.step#Adam", "START"),
                                        ("Optimizer.step#Adam", "END"), ("ProfilerStep#1", "END")])
        ]  # fmt: skip
        return save_snapshot(Path(folder) / f"s{suffix}", data, int(protocol)).read_bytes()


FILES = [
    "run",
    "run.gz",
    *(f"{v}/{4 - i % 3}" for i, v in enumerate(SNAPSHOT_VERSIONS)),
    "2.13/4.gz",
]


def read_whole(path: Path, *, to_the_end: bool = True) -> float:
    """Everything that a report asks of a file; ``to_the_end`` also what the other commands do.

    Returns:
        The seconds that it took; an error that says what is wrong is an answer, too.
    """
    started = time.process_time()
    try:
        run = load(path)
    except MemprofError:
        return time.process_time() - started
    examination = examine(run)
    assert summarize(examination).verdict
    for device in examination.devices:
        for window in device.windows:
            line = window.line
            at = samples(line, 50)
            assert line.allocated.min() >= 0
            assert line.reserved.min() >= 0
            for grouping in (window.owners.category, window.owners.module, window.owners.site):
                grouped(line, grouping.of, len(grouping.names), at)
            infer(window.trace, line.lives)
    if to_the_end:
        answer_all(run, examination)
    return time.process_time() - started


def answer_all(run: Run, examination: Examination) -> None:
    """Findings with remedies, the page, post-mortems with their replays, other settings."""
    found = findings(run, examination)
    told: tuple[PostMortem, ...] = ()
    with suppress(MemprofError):
        told = post_mortems(run)
    with suppress(MemprofError):
        assert replay(run, "expandable_segments:True")
    report = RunReport(examination, summarize(examination, found), found, (), told)
    assert "</html>" in page([report], "run.json")


def mutated_bytes(content: bytes, choose: random.Random) -> bytes:
    """Bytes flipped, cut off, doubled, swapped or overwritten, once or a few times."""
    data = bytearray(content)
    for _ in range(choose.choice([1, 1, 1, 2, 5, 20])):
        at, length = choose.randrange(len(data) or 1), choose.choice([1, 2, 8, 200])
        kind = choose.randrange(5)
        if kind == 0 and data:
            data[at] ^= 1 << choose.randrange(8)
        elif kind == 1 and data:
            data[at] = choose.randrange(256)
        elif kind == 2:
            del data[at : at + length]
        elif kind == 3:
            data[at:at] = data[at : at + length]
        else:
            data[at : at + length] = bytes(choose.randrange(256) for _ in range(length))
    return bytes(data[: choose.randrange(len(data) + 1)] if choose.random() < 0.1 else data)


def mutated_structure(value: Any, choose: random.Random) -> Any:
    """A value somewhere inside replaced by an odd one, dropped or doubled, once or a few times."""
    for _ in range(choose.choice([1, 1, 1, 2, 5])):
        holder, key = _place(value, choose)
        if holder is None:
            continue
        kind = choose.randrange(6)
        if kind == 0:
            del holder[key]
        elif kind == 1 and isinstance(holder, list):
            holder.insert(choose.randrange(len(holder)), holder[key])
        elif kind == 2 and isinstance(holder[key], int):
            holder[key] += choose.choice([-1, 1, 512, -(1 << 40), 1 << 40])
        else:
            holder[key] = deepcopy(choose.choice(ODD))  # itself it might come to hold itself
    return value


def _place(value: Any, choose: random.Random) -> tuple[Any, Any]:
    holder, key = None, None
    while isinstance(value, (list, dict)) and value:
        holder, key = (
            value,
            choose.choice(list(value) if isinstance(value, dict) else range(len(value))),
        )
        value = holder[key]
        if choose.random() < 0.15:
            break
    return holder, key


def damaged(name: str, choose: random.Random) -> bytes:
    content = original(name)
    if choose.random() < 0.5:
        return mutated_bytes(content, choose)
    inner = gzip.decompress(content) if name.endswith(".gz") else content
    if name.startswith("run"):
        records = mutated_structure(json.loads(inner), choose)
        texts = (json.dumps(r, default=str) for r in records) if isinstance(records, list) else ()
        inner = b"[\n" + ",\n".join(texts).encode("utf-8", "replace") + b"\n]\n"
    else:
        inner = pickle.dumps(mutated_structure(pickle.loads(inner), choose), 4)
    return gzip.compress(inner, 1) if name.endswith(".gz") else inner


@pytest.mark.parametrize("name", FILES)
def test_the_undamaged_files_read(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_bytes(original(name))

    assert load(tmp_path / "file").devices
    assert read_whole(tmp_path / "file") < LONGEST_S


@pytest.mark.filterwarnings("error")
@settings(max_examples=2000, deadline=None)
@given(seed=st.integers(0, (1 << 62) - 1), name=st.sampled_from(FILES))
@example(seed=5_379_405_580, name="2.6/4")  # a step of the profiler that ends before it begins
@example(seed=4764, name="run")  # gradients of step 1,099,511,627,777
def test_two_thousand_damaged_files_end_in_an_error_or_an_answer(
    tmp_path_factory: pytest.TempPathFactory, seed: int, name: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged"
    write_anew(path, damaged(name, random.Random(seed)))
    assert read_whole(path, to_the_end=seed % _THOROUGH == 0) < LONGEST_S


@pytest.mark.parametrize("odd", range(len(ODD)))
@pytest.mark.parametrize("kind", ["run.small", "2.13/4"])
def test_an_odd_value_at_every_kind_of_place_is_survived(
    tmp_path: Path, kind: str, odd: int
) -> None:
    """Every key of the first of each kind of record, event, segment and block in turn."""
    inner = original(kind)
    path, makers = tmp_path / "odd", list(_every_key(kind, inner))
    for number, change in enumerate(makers):
        write_anew(path, change(ODD[odd]))
        assert read_whole(path, to_the_end=(number + odd) % _THOROUGH == 0) < LONGEST_S


def _every_key(kind: str, inner: bytes) -> list[Callable[[Any], bytes]]:
    if kind.startswith("run"):
        kinds = [record["kind"] + record.get("at", "") for record in json.loads(inner)]
        return [
            lambda odd, i=i, key=key: _replace_in_run(inner, i, key, odd)
            for i in map(kinds.index, dict.fromkeys(kinds))
            for key in json.loads(inner)[i]
        ]
    data = pickle.loads(inner)
    paths: list[list[Any]] = [[key] for key in data]
    paths += [["segments", 0, key] for key in data["segments"][0]]
    paths += [["segments", 0, "blocks", 0, key] for key in data["segments"][0]["blocks"][0]]
    paths += [["device_traces", 0, 0, key] for key in data["device_traces"][0][0]]
    paths += [["allocator_settings", key] for key in data["allocator_settings"]]
    paths += [["external_annotations", 0, key] for key in data["external_annotations"][0]]
    return [lambda odd, path=path: _replace_in_pickle(inner, path, odd) for path in paths]


def _replace_in_run(inner: bytes, record: int, key: str, odd: Any) -> bytes:
    records = json.loads(inner)
    value = records[record][key]
    if isinstance(value, list) and value:
        value[len(value) // 2] = odd
    else:
        records[record][key] = odd
    return b"[\n" + ",\n".join(json.dumps(r, default=str) for r in records).encode() + b"\n]\n"


def _replace_in_pickle(inner: bytes, path: list[Any], odd: Any) -> bytes:
    data = pickle.loads(inner)
    holder = data
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = odd
    return pickle.dumps(data, 4)


def test_many_lines_of_garbage_are_counted_and_not_listed(tmp_path: Path) -> None:
    lines = (tmp_path / "run.json").open("wb")
    with lines:
        lines.write(b'[\n{"kind":"header","schema":[1,0],"created_us":1}')
        lines.write(b",\n{}" * 90_000)
    started = time.process_time()
    run = load(tmp_path / "run.json")

    assert len(run.notes) < 30
    assert time.process_time() - started < 5


def test_rows_that_a_table_claims_to_have_lost_take_no_memory(tmp_path: Path) -> None:
    line = '{"kind":"tables","first":[90000000,1,1,1]}'
    (tmp_path / "r").write_text(
        '[\n{"kind":"header","schema":[1,0],"created_us":1}' + f",\n{line}" * 50
    )

    run = load(tmp_path / "r")
    assert any("damaged" in note.message for note in run.notes)
    assert not run.devices


def test_an_annotation_with_endless_digits_is_only_a_name() -> None:
    trace = training("cuda:0")
    line = (
        Annotation(f"ProfilerStep#{'9' * 6000}", 1, 2),
        Annotation("Optimizer.step#x", 3, 1 << 61),
    )
    from dataclasses import replace

    from memprof.records import DeviceInfo
    from memprof.run import DeviceRun
    from memprof.views.steps import device_steps
    from memprof.views.timeline import timeline

    marked = replace(trace, annotations=line)
    device = DeviceRun("cuda:0", DeviceInfo("cuda:0"), (marked,))
    assert np.all(device_steps(device, (timeline(marked),)).allocated >= 0)
