"""Snapshots of every torch since 2.0 read to the same trace, as far as each says anything."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memprof.errors import FileFormatError
from memprof.loading import load
from memprof.snapshot.reader import load_snapshot, traces_from_snapshot
from memprof.snapshot.unpickler import load_plain_pickle
from memprof.testing import (
    SNAPSHOT_VERSIONS,
    TraceBuilder,
    save_snapshot,
    segments_only,
    snapshot,
)
from memprof.trace import (
    NOT_RECORDED,
    Action,
    Annotation,
    BlockState,
    Frame,
    Label,
    SegmentKind,
    Trace,
)
from memprof.views.timeline import timeline

KIB, MIB = 1 << 10, 1 << 20
RECORDED = Path(__file__).parents[1] / "data"
TRAIN = Frame("step", r"C:\Users\Zoë\train.py", 31)
MODEL = Frame("forward", "/home/zoë/model.py", 8)


def training(device: str = "cuda:0", **options: Any) -> Trace:
    """Weights from before, an activation that goes, a gradient that stays, a block that waits."""
    return (
        TraceBuilder(device, **options)
        .existing(3 * MIB, "weight", stack=[MODEL, TRAIN])
        .existing(100, "bias", stack=[MODEL, TRAIN])
        .label(annotation="forward")
        .alloc(5 * MIB, "activation", stack=[MODEL, TRAIN])
        .alloc(700, "loss", stack=[TRAIN], stream=7)
        .label()
        .free("activation")
        .alloc(3 * MIB, "grad")
        .oom(1 << 40, device_free=91 * MIB)
        .free("loss", complete=False)
        .build()
    )


def loaded(data: object) -> Trace:
    (trace,) = traces_from_snapshot(data)
    return trace


@pytest.mark.parametrize("torch", SNAPSHOT_VERSIONS)
@pytest.mark.parametrize("expandable", [False, True])
def test_every_schema_reads_to_the_same_figures(torch: str, expandable: bool) -> None:
    written = training(expandable=expandable)
    trace = loaded(snapshot(written, torch=torch))

    assert trace.device == "cuda:0"
    assert trace.end is not None
    assert trace.start is None
    assert trace.events.action.tolist() == written.events.action.tolist()
    assert trace.events.address.tolist() == written.events.address.tolist()
    assert trace.events.size.tolist() == written.events.size.tolist()
    assert trace.events.stream.tolist() == written.events.stream.tolist()
    assert written.end is not None
    assert trace.end.blocks.address.tolist() == written.end.blocks.address.tolist()
    assert trace.end.blocks.state.tolist() == written.end.blocks.state.tolist()
    assert trace.end.blocks.requested.tolist() == written.end.blocks.requested.tolist()
    assert trace.end.allocated == written.end.allocated
    assert trace.end.active == written.end.active == written.end.allocated + 1024
    assert timeline(trace).allocated.tolist() == timeline(written).allocated.tolist()
    assert timeline(trace).reserved.tolist() == timeline(written).reserved.tolist()


@pytest.mark.parametrize("torch", SNAPSHOT_VERSIONS)
def test_what_a_version_writes_is_read(torch: str) -> None:
    written, since = training(expandable=True), SNAPSHOT_VERSIONS.index(torch)
    trace = loaded(snapshot(written, torch=torch))
    end = trace.end
    assert end is not None

    assert (trace.events.time_us.tolist() == written.events.time_us.tolist()) is (since >= 2)
    assert bool(end.segments.expandable.all()) is (since >= 1)
    large, small = SegmentKind.LARGE, SegmentKind.SMALL
    assert end.segments.kind.tolist() == [large, small, large, small, large]
    first = trace.events.action.tolist().index(Action.ALLOC)
    assert trace.stack(trace.events.stack[first]) == (MODEL, TRAIN)
    assert trace.stack(end.blocks.stack[0]) == (MODEL, TRAIN)
    annotation = {True: "name=forward", False: "forward"}[since >= 15] if since >= 10 else ""
    assert trace.label(trace.events.label[first]) == Label(annotation=annotation)
    assert bool(trace.events.pool[first] == NOT_RECORDED) is (since < 12)
    assert ("max_split_size" in trace.settings) is (since >= 2)
    told = {
        0: "",
        1: "2.1+",
        2: "2.2+",
        7: "2.5+",
        8: "2.8+",
        12: "2.12+",
        13: "2.13+",
        15: "2.14+",
    }
    assert trace.torch_version == told.get(since, trace.torch_version)


@pytest.mark.parametrize("torch", ["2.0", "2.1", "2.13"])
def test_a_bare_list_is_the_segments_alone(torch: str) -> None:
    trace = loaded(segments_only(training(), torch=torch))

    assert len(trace.events) == 0
    assert trace.end is not None
    assert trace.end.allocated == (3 + 3) * MIB + 512
    assert timeline(trace).allocated.tolist() == [6 * MIB + 512]


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("name", ["s.pickle", "s.pickle.gz", "no-suffix-at-all"])
def test_every_pickle_protocol_and_gzip_read(tmp_path: Path, protocol: int, name: str) -> None:
    path = save_snapshot(tmp_path / name, snapshot(training()), protocol)

    (trace,) = load_snapshot(path)
    (device,) = load(path).devices
    assert len(trace.events) == device.events == len(training().events)
    assert load(path).is_snapshot


def test_every_device_has_its_own_trace_and_idle_ones_none() -> None:
    data = snapshot(training("cuda:1"), training("cuda:3"))
    assert len(data["device_traces"]) == 4

    traces = traces_from_snapshot(data)
    assert [t.device for t in traces] == ["cuda:1", "cuda:3"]
    assert all(t.end and t.end.allocated == 6 * MIB + 512 for t in traces)


def test_an_empty_snapshot_has_no_trace() -> None:
    assert traces_from_snapshot({"segments": [], "device_traces": [[], []]}) == ()
    assert traces_from_snapshot([]) == ()


def test_a_device_with_events_and_no_segments_is_there() -> None:
    trace = TraceBuilder().alloc(KIB, "x").free("x").empty_cache().build()

    line = timeline(loaded(snapshot(trace)))
    assert line.allocated.tolist() == [0, 0, 1024, 0, 0, 0]
    assert line.reserved.tolist() == [0, 2 * MIB, 2 * MIB, 2 * MIB, 2 * MIB, 0]


def test_unknown_actions_and_keys_do_no_harm() -> None:
    data = snapshot(training(), torch="2.15")
    events = data["device_traces"][0]
    events.insert(
        2,
        {"action": "annotate", "addr": 5, "size": 0, "stream": 0, "time_us": events[1]["time_us"]},
    )
    events.insert(
        2,
        {
            "action": "user_defined",
            "addr": 0,
            "size": 0,
            "stream": 0,
            "time_us": events[1]["time_us"],
        },
    )
    for thing in (data, data["segments"][0], data["segments"][0]["blocks"][0], events[0]):
        thing["a_key_of_tomorrow"] = {"nested": [1, (2, 3)]}
    events[0]["forward_frames"] = ["a", "b"]
    events[0]["internal_metadata"] = {"x": 1}

    trace = loaded(data)
    assert trace.events.action.tolist()[2:4] == [Action.OTHER, Action.OTHER]
    assert timeline(trace).peak_allocated.bytes == timeline(training()).peak_allocated.bytes


def test_recorded_host_memory_is_no_device_memory() -> None:
    data = snapshot(training(), torch="2.15")
    data["host_segments"] = data["segments"]
    data["host_traces"] = data["device_traces"][0]

    assert loaded(data).end.allocated == loaded(snapshot(training())).end.allocated  # type: ignore[union-attr]


def test_an_event_without_frames_has_the_empty_stack_and_no_frame_is_made_up() -> None:
    data = snapshot(training())
    for event in data["device_traces"][0]:
        event.pop("frames", None)
    data["device_traces"][0][0]["frames"] = None

    assert not loaded(data).events.stack.any()


def test_a_frame_may_lack_its_parts() -> None:
    data = snapshot(training())
    data["device_traces"][0][0]["frames"] = [{"name": "f"}, {"filename": "??", "line": None}, {}]

    trace = loaded(data)
    assert trace.stack(trace.events.stack[0]) == (
        Frame("f", "", 0),
        Frame("", "??", 0),
        Frame("", "", 0),
    )


def test_a_rotated_ring_is_put_in_the_order_of_its_times() -> None:
    data = snapshot(training())
    (events,) = data["device_traces"]
    events[:] = events[3:] + events[:3]

    trace = loaded(data)
    assert trace.reordered
    assert trace.events.action.tolist() == training().events.action.tolist()
    assert not loaded(snapshot(training())).reordered


def test_equal_times_keep_the_order_of_the_file() -> None:
    data = snapshot(training())
    for event in data["device_traces"][0]:
        event["time_us"] = 1_700_000_000_000_000

    trace = loaded(data)
    assert not trace.reordered
    assert trace.events.action.tolist() == training().events.action.tolist()


def test_without_clocks_the_order_of_the_file_counts() -> None:
    data = snapshot(training())
    del data["device_traces"][0][3]["time_us"]

    assert not loaded(data).reordered


def test_annotations_are_paired_by_name_and_device_with_open_ends_unknown() -> None:
    data = snapshot(training(), training("cuda:1"))
    data["external_annotations"] = [
        {"name": "lost start", "stage": "END", "device": 0, "time_us": 5},
        {"name": "step", "stage": "START", "device": 0, "time_us": 10},
        {"name": "step", "stage": "START", "device": 1, "time_us": 11},
        {"name": "step", "stage": "START", "device": 0, "time_us": 20},
        {"name": "step", "stage": "END", "device": 0, "time_us": 25},
        {"name": "step", "stage": "END", "device": 0, "time_us": 30},
        {"name": "open", "stage": "START", "device": 0, "time_us": 40},
    ]

    first, second = traces_from_snapshot(data)
    assert first.annotations == (
        Annotation("lost start", NOT_RECORDED, 5),
        Annotation("step", 10, 30),
        Annotation("step", 20, 25),
        Annotation("open", 40, NOT_RECORDED),
    )
    assert second.annotations == (Annotation("step", 11, NOT_RECORDED),)


def test_user_metadata_becomes_whatever_label_the_caller_makes_of_it() -> None:
    (trace,) = traces_from_snapshot(snapshot(training()), lambda text: Label(module=text.upper()))

    assert Label(module="FORWARD") in trace.tables.labels


def test_the_context_of_a_compiled_region_is_an_annotation() -> None:
    data = snapshot(training())
    data["device_traces"][0][0] |= {"user_metadata": "", "compile_context": "0/0"}

    trace = loaded(data)
    assert trace.label(trace.events.label[0]) == Label(annotation="0/0")


def test_pools_are_interned_with_the_default_one_first() -> None:
    data = snapshot(training())
    data["segments"][0]["segment_pool_id"] = (0, 3)
    data["device_traces"][0][1]["pool_id"] = (0, 3)

    trace = loaded(data)
    assert trace.tables.pools == ((0, 0), (0, 3))
    assert trace.end is not None
    assert trace.end.segments.pool[0] == trace.events.pool[1] == 1


def test_bytes_that_only_the_sums_of_segments_count_are_kept_apart() -> None:
    data = snapshot(training())
    data["segments"][0]["allocated_size"] += 4096

    trace = loaded(data)
    assert trace.end is not None
    assert trace.end.unlisted == 4096
    assert trace.end.allocated == 6 * MIB + 512 + 4096


@pytest.mark.parametrize("skipped", ["free_requested", "free_completed", "segment_alloc"])
def test_skipped_actions_leave_the_peak_right(skipped: str) -> None:
    trace = TraceBuilder().existing(MIB, "w").alloc(KIB, "x").alloc(KIB, "y").free("x").free("w")
    data = snapshot(trace.build())
    (events,) = data["device_traces"]
    events[:] = [e for e in events if e["action"] != skipped]

    assert timeline(loaded(data)).peak_allocated.bytes == MIB + 2 * KIB


# -- hostile shapes ----------------------------------------------------------------------------


def bomb(depth: int = 60) -> Any:
    thing: Any = ["x", "x"]
    for _ in range(depth):
        thing = [thing, thing]
    return thing


def deep(depth: int = 50_000) -> Any:
    thing: Any = []
    for _ in range(depth):
        thing = [thing]
    return thing


def wide() -> Any:
    blocks = [{"address": 0, "size": 512, "requested_size": 512, "state": "inactive"}]
    segment = {"device": 0, "address": 0, "total_size": 512, "blocks": blocks * 100_000}
    return {"segments": [dict(segment) for _ in range(100_000)]}


def many_devices() -> Any:
    segment = {"address": 0, "total_size": 0}
    return {"segments": [segment | {"device": i, "blocks": []} for i in range(100_000)]}


@pytest.mark.parametrize(
    "data",
    [
        None,
        7,
        "segments",
        {},
        {"segments": 3},
        {"segments": [3]},
        {"segments": [{}]},
        {"segments": [{"device": "x", "blocks": []}]},
        {"segments": [{"blocks": [{"state": "odd", "size": 1}], "total_size": 1}]},
        {"segments": [{"blocks": [{"state": [], "size": 1}], "total_size": 1}]},
        {"segments": [{"blocks": [], "total_size": -1}]},
        {"segments": [{"blocks": [], "total_size": 1 << 63}]},
        {"segments": [{"blocks": [], "total_size": 0.5}]},
        {"segments": [{"blocks": [], "total_size": "1"}]},
        {"segments": [], "device_traces": [[{}]]},
        {"segments": [], "device_traces": [[{"action": []}]]},
        {"segments": [], "device_traces": 7},
        {"segments": [], "device_traces": [[{"action": "alloc", "addr": 0, "size": None}]]},
        {"segments": [], "device_traces": [[{"action": "alloc", "addr": 0, "size": float("nan")}]]},
        {"segments": [], "device_traces": [[{"action": "alloc", "addr": 0, "size": -5}]]},
        {"segments": [], "device_traces": [[{"action": "alloc", "addr": 0, "frames": [7]}]]},
        {"segments": [], "device_traces": [[{"action": "alloc", "addr": 0, "pool_id": (1,)}]]},
        {"segments": [], "external_annotations": [7], "device_traces": []},
    ],
)
def test_what_has_not_the_shape_of_a_snapshot_is_refused(data: object) -> None:
    with pytest.raises(FileFormatError, match="snapshot"):
        traces_from_snapshot(data)


@pytest.mark.parametrize("make", [wide, many_devices])
def test_what_would_take_hours_to_read_is_refused(make: Any) -> None:
    with pytest.raises(FileFormatError, match="snapshot"):
        traces_from_snapshot(make())


@pytest.mark.parametrize("make", [bomb, deep])
@pytest.mark.parametrize(
    "key", ["action", "addr", "size", "stream", "time_us", "pool_id", "frames"]
)
def test_nested_data_where_a_number_belongs_is_refused(make: Any, key: str) -> None:
    data = snapshot(training())
    data["device_traces"][0][0][key] = make()

    with pytest.raises(FileFormatError, match="snapshot"):
        traces_from_snapshot(data)


@pytest.mark.parametrize("make", [bomb, deep])
def test_nested_data_where_text_belongs_is_left_out(make: Any) -> None:
    data = snapshot(training(), torch="2.15")
    data["device_traces"][0][0] |= {"user_metadata": make(), "compile_context": make()}
    data["device_traces"][0][1]["user_metadata"] = {"k": make()}
    data["device_traces"][0][0]["frames"] = [{"name": make(), "filename": make(), "line": 3}]
    data["allocator_settings"] |= {"x": make(), "roundup_power2_divisions": {"1": make(), "x": 1}}
    data["external_annotations"] = [{"name": make(), "stage": "START", "time_us": 1}]

    trace = loaded(data)
    assert trace.stack(trace.events.stack[0]) == (Frame("", "", 3),)
    assert "x" not in trace.settings
    assert trace.settings["roundup_power2_divisions"] == {}
    assert trace.annotations[0].name == ""


# -- real ones ---------------------------------------------------------------------------------


def files() -> Iterator[Any]:
    folder = Path(__file__).parents[3] / "shared" / "snapshots"
    found = sorted(folder.glob("*.pickle"))
    if not found:
        skip = pytest.mark.skip(reason="needs ../shared/snapshots beside the repository")
        yield pytest.param(Path(), marks=skip, id="none")
    for path in found:
        yield pytest.param(path, id=path.stem)


def truth(data: Any) -> dict[int, dict[str, int]]:
    """Counted event by event in plain Python: live at the dump, less what the trace made of it."""
    segments = data if isinstance(data, list) else data["segments"]
    histories = [] if isinstance(data, list) else data["device_traces"]
    devices = {s["device"] for s in segments} | {d for d, h in enumerate(histories) if h}
    found = {}
    for device in devices:
        own = [s for s in segments if s["device"] == device]
        events = list(histories[device]) if device < len(histories) else []
        if all("time_us" in e for e in events):
            events.sort(key=lambda e: e["time_us"])
        divisions = {} if isinstance(data, list) else data.get("allocator_settings", {})
        assert not any((divisions.get("roundup_power2_divisions") or {}).values())
        live = {}
        for segment in own:
            address = segment["address"]
            for block in segment["blocks"]:
                if block["state"] == "active_allocated":
                    live[address] = block["size"]
                address += block["size"]
        now, deltas = sum(live.values()), []
        taken: dict[int, int] = {}
        last_alloc = {e["addr"]: i for i, e in enumerate(events) if e["action"] == "alloc"}
        last_free = {e["addr"]: i for i, e in enumerate(events) if e["action"] == "free_requested"}
        for i, event in enumerate(events):
            if event["action"] == "alloc":
                size = max(-(-event["size"] // 512), 1) * 512
                address = event["addr"]
                if last_alloc[address] == i and last_free.get(address, -1) < i:
                    size = live.get(address, size)  # the dump knows what it really took
                taken[address] = size
                deltas.append(size)
            elif event["action"] == "free_requested":
                rounded = max(-(-event["size"] // 512), 1) * 512
                deltas.append(-taken.pop(event["addr"], rounded))
        level = peak = now - sum(deltas)
        possible = level >= 0  # a made-up file can contradict itself
        for delta in deltas:
            level += delta
            peak = max(peak, level)
        held = sum(s["total_size"] for s in own)
        allocated = sum(s["allocated_size"] for s in own)
        found[device] = {"allocated": allocated, "reserved": held, "listed": now}
        if possible:
            found[device]["peak"] = peak
    return found


@pytest.mark.parametrize("path", list(files()))
def test_a_real_snapshot_gives_its_own_sums_and_the_peak_that_plain_counting_gives(
    path: Path,
) -> None:
    with path.open("rb") as file:
        expected = truth(pickle.load(file))

    found = {}
    for device in load(path).devices:
        (trace,) = device.windows
        assert trace.end is not None
        line = timeline(trace)
        found[int(device.device.removeprefix("cuda:"))] = {
            "allocated": trace.end.allocated,
            "reserved": trace.end.reserved,
            "listed": trace.end.allocated - trace.end.unlisted,
        }
        if "peak" in expected[int(device.device.removeprefix("cuda:"))]:
            found[int(device.device.removeprefix("cuda:"))]["peak"] = line.peak_allocated.bytes
        assert int(line.reserved[-1]) == trace.end.reserved
        states = trace.end.blocks.state
        assert trace.end.allocated - trace.end.unlisted == int(
            trace.end.blocks.size[states == BlockState.ACTIVE_ALLOCATED].sum()
        )
        assert (np.diff(trace.events.time_us) >= 0).all()
    assert found == expected


@pytest.mark.parametrize("name", sorted(p.name for p in RECORDED.glob("*.pickle.gz")))
def test_what_torch_has_just_made_reads_as_a_file_of_it_does(name: str) -> None:
    data = load_plain_pickle(RECORDED / name)
    live, filed = traces_from_snapshot(data, is_live=True), traces_from_snapshot(data)
    assert [t.tables for t in live] == [t.tables for t in filed]
    for one, other in zip(live, filed, strict=True):
        assert all(
            getattr(one.events, n).tolist() == getattr(other.events, n).tolist()
            for n in one.events.names()
        )
        assert one.end is not None
        assert other.end is not None
        assert one.end.blocks.stack.tolist() == other.end.blocks.stack.tolist()
        assert one.end.segments.stack.tolist() == other.end.segments.stack.tolist()


def test_a_stack_of_other_frames_after_a_known_one_is_told_from_it() -> None:
    frames = [{"name": n, "filename": "f.py", "line": 1} for n in "abcd"]
    sequence = [[0, 1], [0, 2], [0, 1], [0, 3], [0, 1], [0, 2], [], [0, 2], [0, 1, 2], [0, 2]]
    entries = [
        {"action": "alloc", "addr": 512 * i, "size": 1, "frames": [frames[f] for f in stack]}
        for i, stack in enumerate(sequence)
    ]
    (trace,) = traces_from_snapshot({"segments": [], "device_traces": [entries]}, is_live=True)
    names = [[frame.name for frame in trace.stack(row)] for row in trace.events.stack.tolist()]
    assert names == [["abcd"[f] for f in stack] for stack in sequence]
