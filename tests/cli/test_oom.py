"""memprof oom: what it prints and what JSON carries, of built and of real files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memprof.records import Finding
from memprof.testing import (
    TraceBuilder,
    save_snapshot,
    segments_only,
    snapshot,
    step_columns,
    write_run,
)
from memprof.testing.cuda import StandInOutOfMemoryError, TorchStandIn
from memprof.testing.ranks import write_rank
from memprof.trace import Category, Frame, Phase
from memprof_cli import main

MIB = 1 << 20
TRAIN = (Frame("forward", "/home/me/train.py", 7), Frame("main", "/home/me/train.py", 90))


def run_main(*args: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in args])
    code = ended.value.code
    return code if isinstance(code, int) else 0


def full_card(folder: Path) -> Path:
    """20 MiB held by one line, 10 MiB asked with 4 MiB free."""
    builder = TraceBuilder()
    builder.alloc(8 * MIB, "a", stack=TRAIN, category=Category.ACTIVATION)
    builder.alloc(12 * MIB, "b", stack=TRAIN, category=Category.ACTIVATION)
    builder.oom(10 * MIB, device_free=4 * MIB)
    return save_snapshot(folder / "full.pickle", snapshot(builder.build()))


def test_json_names_the_cause_what_was_asked_and_what_filled_the_device(tmp_path, capsys):
    assert run_main("oom", full_card(tmp_path), "--json") == 0
    (device,) = json.loads(capsys.readouterr().out)["devices"]
    assert (device["device"], device["cause"], device["times"]) == ("cuda:0", "peak", 1)
    assert (device["asked"]["bytes"], device["asked"]["missing_bytes"]) == (10 * MIB, 6 * MIB)
    held = device["held"]
    assert (held["allocated_bytes"], held["reserved_bytes"]) == (20 * MIB, 20 * MIB)
    assert (held["device_free_bytes"], held["limit_bytes"]) == (4 * MIB, 24 * MIB)
    assert held["device_total_bytes"] is None
    (line,) = device["filled_by"]["line"]
    assert line == {"name": "me/train.py:7 in forward", "bytes": 20 * MIB, "count": 2}
    card = next(c for c in device["changes"] if c["kind"] == "card")
    assert card["fits"]
    assert card["peak_allocated_bytes"] == 30 * MIB


def test_the_screen_answers_in_order(tmp_path, capsys):
    assert run_main("oom", full_card(tmp_path)) == 0
    out = capsys.readouterr().out
    heads = ["ran out of memory", "What filled it", "What was asked", "What was held"]
    places = [out.index(head) for head in [*heads, "What would have helped"]]
    assert places == sorted(places)
    assert "20 MiB   100 %" in out


def test_a_trace_without_a_failure_is_an_error_with_a_hint(tmp_path, capsys):
    file = save_snapshot(tmp_path / "fine.pickle", snapshot(TraceBuilder().alloc(MIB, "a").build()))
    assert run_main("oom", file) == 1
    err = capsys.readouterr().err
    assert "records no out-of-memory error" in err
    assert "memprof report" in err


def test_a_bare_state_is_told_without_claiming_a_failure(tmp_path, capsys):
    trace = TraceBuilder().alloc(3 * MIB, "a", stack=TRAIN).build()
    file = save_snapshot(tmp_path / "bare.pickle", segments_only(trace))
    assert run_main("oom", file, "--json") == 0
    (device,) = json.loads(capsys.readouterr().out)["devices"]
    assert (device["cause"], device["recorded"], device["times"]) == ("unknown", "state", 0)
    assert device["asked"]["bytes"] is None
    assert device["filled_by"]["line"][0]["bytes"] == 3 * MIB
    assert device["changes"] == []


def test_changes_are_told_cheapest_first_with_what_they_assume(tmp_path, capsys):
    builder = TraceBuilder().label(step=1, phase=Phase.FORWARD, module="Net.blocks.0")
    for i in range(4):
        builder.alloc(40 * MIB, f"a{i}", stack=TRAIN, category=Category.ACTIVATION)
    builder.label(step=1, phase=Phase.FORWARD, module="Net.blocks.1").oom(20 * MIB, device_free=0)
    file = write_run(tmp_path / "run.json", builder.build())
    assert run_main("oom", file, "--json") == 0
    (device,) = json.loads(capsys.readouterr().out)["devices"]
    fitting = [c for c in device["changes"] if c["fits"]]
    assert [c["kind"] for c in fitting] == ["checkpoint", "batch", "bf16", "card"]
    batch, bf16 = fitting[1:3]
    # Of 180 MiB 160 fit, that is 88 %; but the driver gives out pieces of 2 MiB.
    assert batch["change"].startswith("a batch of at most 85 % of this one")
    assert "one batch size only" in batch["assumes"]
    assert bf16["peak_allocated_bytes"] == 90 * MIB
    assert "the activations are float32" in bf16["assumes"]
    assert run_main("oom", file) == 0
    out = capsys.readouterr().out
    assert "taken for granted: the activations are float32" in out
    assert max(len(line) for line in out.splitlines()) <= 100


def test_many_settings_that_help_are_one_line(tmp_path, capsys):
    torch = TorchStandIn(capacity=64 * MIB)
    torch.cuda.memory._record_memory_history()
    torch.free(torch.alloc(30 * MIB))
    torch.alloc(8 * MIB)  # in the front of a segment, which cannot be given back any more
    with pytest.raises(StandInOutOfMemoryError):
        torch.alloc(40 * MIB)
    file = save_snapshot(tmp_path / "x.pickle", torch.cuda.memory._snapshot())
    assert run_main("oom", file) == 0
    out = capsys.readouterr().out
    assert "because of fragmentation" in out
    assert out.count("PYTORCH_CUDA_ALLOC_CONF") == 1
    assert "other settings" in out


def test_blocks_are_told_by_size_where_no_stack_was_recorded(tmp_path, capsys):
    builder = TraceBuilder()
    for i in range(3):
        builder.alloc(30 * MIB, f"a{i}")
    trace = builder.alloc(12 * MIB, "b").build()
    file = save_snapshot(tmp_path / "bare.pickle", segments_only(trace))
    assert run_main("oom", file) == 0
    out = capsys.readouterr().out
    assert "3 blocks of 30 MiB" in out
    assert "1 block of 12 MiB" in out
    assert "unknown" not in out


def test_a_state_with_whole_segments_free_is_not_that_of_a_failure(tmp_path, capsys):
    trace = TraceBuilder().alloc(30 * MIB, "a").alloc(40 * MIB, "b").free("b").build()
    file = save_snapshot(tmp_path / "bare.pickle", segments_only(trace))
    assert run_main("oom", file, "--json") == 0
    (device,) = json.loads(capsys.readouterr().out)["devices"]
    assert device["why"].endswith("so this is not how it was when memory ran out")
    assert device["layouts"][0] == {
        "change": "torch.cuda.empty_cache()",
        "reserved_bytes": 30 * MIB,
        "saved_bytes": 40 * MIB,
    }


def test_what_the_other_devices_held_is_told(tmp_path, capsys):
    full = TraceBuilder("cuda:1").alloc(20 * MIB, "a").oom(10 * MIB, device_free=0).build()
    other = TraceBuilder("cuda:0").alloc(6 * MIB, "a").build()
    file = save_snapshot(tmp_path / "two.pickle", snapshot(other, full))
    assert run_main("oom", file) == 0
    assert "reserved elsewhere: cuda:0 6 MiB" in capsys.readouterr().out


def odd(name: str) -> dict[str, Any]:
    """Snapshots of failures as tools and damaged recorders have written them."""
    builder = TraceBuilder("cuda:0", expandable=name == "expandable")
    builder.alloc(20 * MIB, "a", stack=TRAIN)
    if name == "several":
        builder.oom(90 * MIB, device_free=0).alloc(30 * MIB, "b")
    size, free = {"empty request": (0, 0), "huge": (1 << 45, MIB)}.get(name, (30 * MIB, 0))
    data = snapshot(builder.oom(size, device_free=free).build())
    trace = data["device_traces"][0]
    if name == "no event but the failure":
        return snapshot(TraceBuilder().oom(30 * MIB, device_free=0).build())
    if name == "no segments":
        data["segments"] = []
    elif name == "segments of another device":
        data["device_traces"] = [[], [], trace]
    elif name == "no free bytes":
        del trace[-1]["device_free"]
    elif name == "no clock":
        for entry in trace:
            del entry["time_us"]
    elif name == "private pool":
        for part in data["segments"] + trace:
            part["segment_pool_id" if "blocks" in part else "pool_id"] = (1, 0)
    return data


@pytest.mark.parametrize("command", ["oom", "leaks", "what-if"])
@pytest.mark.parametrize(
    "name",
    [
        "plain",
        "expandable",
        "several",
        "empty request",
        "huge",
        "no event but the failure",
        "no segments",
        "segments of another device",
        "no free bytes",
        "no clock",
        "private pool",
    ],
)
def test_odd_failures_are_answered(tmp_path, capsys, name, command):
    file = save_snapshot(tmp_path / "odd.pickle", odd(name))
    assert run_main(command, file) == 0
    out = capsys.readouterr().out
    assert "cuda:" in out or command == "leaks"
    if command == "oom":
        assert "ran out of memory" in out
        assert len(out.splitlines()) < 50


def test_a_request_larger_than_the_card_is_said_to_be_that(tmp_path, capsys):
    run_main("oom", save_snapshot(tmp_path / "odd.pickle", odd("huge")), "--json")
    (device,) = json.loads(capsys.readouterr().out)["devices"]
    assert device["why"].startswith("the request alone is larger than the 21 MiB")


def test_free_bytes_that_are_not_in_the_file_are_not_zero(tmp_path, capsys):
    run_main("oom", save_snapshot(tmp_path / "odd.pickle", odd("no free bytes")), "--json")
    (device,) = json.loads(capsys.readouterr().out)["devices"]
    assert device["held"]["device_free_bytes"] is None
    assert device["cause"] == "unknown"


def test_run_files_work_as_snapshots_do(tmp_path, capsys):
    builder = TraceBuilder().label(step=4, module="Net.blocks.0")
    builder.alloc(8 * MIB, "a").oom(10 * MIB, device_free=0)
    assert run_main("oom", write_run(tmp_path / "run.json", builder.build()), "--json") == 0
    (device,) = json.loads(capsys.readouterr().out)["devices"]
    assert (device["asked"]["step"], device["asked"]["module"]) == (4, "Net.blocks.0")
    assert device["filled_by"]["module"][0]["name"] == "Net.blocks.0"


def test_the_real_failure_on_one_of_three_devices_is_explained(shared, capsys):
    file = shared / "snapshots" / "dataparallel-oom-expandable.pickle"
    assert run_main("oom", file, "--json") == 0
    (device,) = json.loads(capsys.readouterr().out)["devices"]
    assert (device["device"], device["cause"]) == ("cuda:1", "peak")
    assert device["asked"]["bytes"] == 5308694528
    assert device["held"]["device_free_bytes"] == 95682560
    assert sum(g["bytes"] for g in device["filled_by"]["line"]) == device["held"]["allocated_bytes"]
    assert any(c["kind"] == "checkpoint" and c["fits"] for c in device["changes"])


def test_a_real_full_card_without_a_trace_names_what_filled_it(shared, capsys):
    assert run_main("oom", shared / "snapshots" / "llm-oom-torch2.0.pickle", "--json") == 0
    (device,) = json.loads(capsys.readouterr().out)["devices"]
    callers = device["filled_by"]["caller"]
    assert sum(g["bytes"] for g in callers) == device["held"]["allocated_bytes"] == 11840159744
    assert "nothing could be replayed" in device["unproven"]


def leaking_host(folder: Path) -> Path:
    """A host that is full after 30 steps that each kept 8 MiB; what it had free is not known."""
    builder = TraceBuilder(device="cpu")
    for step in range(30):
        builder.label(step=step).alloc(8 * MIB, f"kept{step}", stack=TRAIN)
    builder.label(step=30).alloc(512, "x")
    kept = [8 * MIB * (step + 1) for step in range(30)]
    steps = step_columns(allocated=kept, end_us=[100 * (step + 1) for step in range(30)])
    end = builder.build()
    told = Finding("oom", "cpu", 30, 10_000, bytes=16 * MIB, details={"allocated": kept[-1]})
    return write_run(folder / "leak.json", end, steps=steps, more=[told])


def test_a_host_that_a_leak_filled_is_said_to_be_and_sent_to_the_leak(tmp_path, capsys):
    file = leaking_host(tmp_path)
    run_main("oom", file)
    out = " ".join(capsys.readouterr().out.split())
    assert "cpu ran out of memory because of a leak: 16 MiB asked" in out
    assert "but allocated bytes rose by 8 MiB per step over steps 3 to 29, 208 MiB in all" in out
    assert f"`memprof leaks {file}` says what grows, who holds it and the fix" in out


def test_the_report_of_it_names_the_leak_and_the_fix(tmp_path, capsys):
    run_main("report", leaking_host(tmp_path), "--json")
    verdict = json.loads(capsys.readouterr().out)["verdict"]
    assert verdict["line"] == "cpu ran out of memory: 16 MiB asked"
    assert verdict["why"].startswith(
        "tensors held 240 MiB; 224 MiB of that is a leak, which grows by 8 MiB per step"
    )
    assert verdict["next"].startswith("del_ref: ")
    assert "memprof oom" in verdict["next"]


def test_without_a_leak_nobody_is_sent_to_one(tmp_path, capsys):
    run_main("oom", full_card(tmp_path))
    assert "memprof leaks" not in capsys.readouterr().out


def test_a_file_that_knows_of_the_failure_by_its_end_alone_says_so(tmp_path, capsys):
    status = "OutOfMemoryError: CUDA out of memory"
    assert run_main("oom", write_rank(tmp_path, 0, 1, status=status)) == 1
    complaint = capsys.readouterr().err
    assert f"the program did end by it ({status}), but what memory held then was not recorded" in (
        complaint
    )
