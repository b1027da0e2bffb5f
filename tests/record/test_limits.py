"""Recordings of programs in which no step ends: each limit ends the window, and is told."""

from __future__ import annotations

import gc
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import memprof
from memprof.loading import load
from memprof.record import session
from memprof.record.window_schedule import Policy
from memprof.report.summary import summarize
from memprof.sources.loop.loop_watch import LoopWatch
from memprof.views.examination import examine

torch = pytest.importorskip("torch", reason="there is nothing to record without torch")

from tests.tracked import FakeEvents, notes, of_kind  # noqa: E402

BATCH = 50_000
"""Events that a source may hold before it is drained."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.json"


def followed_operators(count: int, values: int = 64) -> None:
    """Two operators each, a tensor of 256 bytes every time: a loop whose turns are steps."""
    x = torch.ones(values)
    for _ in range(count):
        x = x * 0.999 + 0.001


def small_operators(count: int) -> None:
    """The same in a library's function, where nothing ends a step."""
    library["small_operators"](count)


library: dict[str, Any] = {"torch": torch}
exec(
    compile(
        """def small_operators(count):
    x = torch.ones(64)
    for _ in range(count):
        x = x * 0.999 + 0.001
""",
        "/usr/lib/python3/dist-packages/operators.py",
        "exec",
    ),
    library,
)


def modes() -> list[Any]:
    from torch.utils import _python_dispatch

    return list(_python_dispatch._get_current_dispatch_mode_stack())


@pytest.mark.parametrize(
    ("option", "end"),
    [
        ({"max_events": 20_000}, "max_events"),
        ({"max_bytes": 1 << 20}, "max_bytes"),
        ({"allowance_s": 1.0}, "reserve"),
    ],
    ids=str,
)
def test_a_loop_without_steps_is_recorded_up_to_a_limit(path, option, end):
    with memprof.track(path, sources=("cpu",), **{"allowance_s": 600.0, **option}):
        for _ in range(200):
            if not modes():
                break
            small_operators(1_000)
        assert not modes(), "the window is still open"
        small_operators(1_000)  # these are not recorded
    (window,) = of_kind(path, "window")
    assert (window["reason"], window["end"], window["in_step"]) == ("start", end, True)
    events = of_kind(path, "footer")[0]["devices"][0]["events"]
    assert 0 < events <= option.get("max_events", 1_000_000) + BATCH
    assert events == sum(len(record["action"]) for record in of_kind(path, "trace"))
    assert path.stat().st_size <= option.get("max_bytes", 32 << 20) + 50 * BATCH
    assert "a window ended in step 0" in notes(path)


@pytest.mark.usefixtures("with_native")
@pytest.mark.parametrize(
    ("option", "end"),
    [({"max_events": 200_000}, "max_events"), ({"max_bytes": 1 << 20}, "max_bytes")],
    ids=str,
)
def test_with_the_native_part_such_a_loop_is_recorded_up_to_a_limit_as_well(path, option, end):
    with memprof.track(path, sources=("cpu",), **{"allowance_s": 600.0, **option}):
        small_operators(250_000)  # two allocations each, and two frees of two events
    (window,) = of_kind(path, "window")
    assert (window["reason"], window["end"], window["in_step"]) == ("start", end, True)
    events = of_kind(path, "footer")[0]["devices"][0]["events"]
    assert 0 < events <= option.get("max_events", 1_000_000) // 2 + BATCH
    assert events == sum(len(record["action"]) for record in of_kind(path, "trace"))
    assert path.stat().st_size <= option.get("max_bytes", 32 << 20) + 50 * BATCH


@pytest.mark.parametrize("native", ["0", "1"])
def test_a_loop_whose_turns_are_steps_is_recorded_up_to_a_limit(path, native, request):
    if native == "1":
        request.getfixturevalue("with_native")
    with memprof.track(path, sources=("cpu",), allowance_s=600.0, max_events=20_000):
        # A step is as many turns as take 0.2 ms: each takes long enough for many of them.
        followed_operators(12_000, values=1 << 17)
    (window,) = of_kind(path, "window")
    assert (window["reason"], window["end"]) == ("start", "max_events")
    assert window["last_step"] > 100
    assert 0 < of_kind(path, "footer")[0]["devices"][0]["events"] <= 20_000 + BATCH


@pytest.mark.usefixtures("with_native")
def test_events_are_kept_for_the_first_steps_that_train(path):
    """An evaluation of which each event costs so little that it uses up no time."""
    net = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with memprof.track(path, sources=("cpu",), allowance_s=600.0, max_events=200_000):
        small_operators(250_000)
        for _ in range(5):
            optimizer.zero_grad()
            net(torch.ones(4, 8)).sum().backward()
            optimizer.step()
    first, second = of_kind(path, "window")
    assert (first["end"], first["in_step"]) == ("max_events", True)
    assert (second["reason"], second["end"]) == ("start", "stop")
    assert second["last_step"] - second["first_step"] >= 3


@pytest.fixture
def inside(monkeypatch):
    """The tables and the sources of the recording that begins next."""
    seen, chosen = SimpleNamespace(interner=None, sources=[]), session.event_sources

    def event_sources(names, interner, loop_watch, note):
        seen.interner, seen.sources = interner, chosen(names, interner, loop_watch, note)
        return seen.sources

    monkeypatch.setattr(session, "event_sources", event_sources)
    return seen


def test_what_waits_in_memory_is_written_before_it_is_much(path, inside):
    with memprof.track(path, sources=("cpu",), allowance_s=600.0):
        (source,) = inside.sources
        most = 0
        for _ in range(60):
            small_operators(1_000)
            most = max(most, source.pending_events())
        assert len(of_kind_so_far(path, "trace")) >= 2
    assert 0 < most <= BATCH + 10_000
    assert len(inside.interner) < 1_000


def of_kind_so_far(path: Path, kind: str) -> list[str]:
    return [line for line in path.read_text().splitlines() if f'"kind":"{kind}"' in line]


def test_the_tables_in_memory_are_bounded(path, inside, monkeypatch):
    few = partial(Policy, max_rows=2_000)
    monkeypatch.setattr("memprof.record.options.Policy", few)
    with memprof.track(path, sources=[FakeEvents()]) as tracker:
        for row in range(3_000):
            inside.interner.frame("f", "f.py", row)
        tracker.step()
    (window,) = of_kind(path, "window")
    assert window["end"] == "tables"


def test_what_is_told_of_the_cost_is_neither_nothing_nor_more_than_the_run(path):
    with memprof.track(path, sources=("cpu",), allowance_s=600.0):
        small_operators(20_000)
    run = load(path)
    took_us = run.footer.ended_us - run.header.created_us
    assert 40_000 * 4.5 <= run.footer.overhead_us <= took_us


def test_the_first_steps_are_recorded_though_an_evaluation_comes_first(path):
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    with memprof.track(path, sources=("cpu",), allowance_s=4.0):
        for _ in range(1_000):
            small_operators(1_000)
            if not modes():
                break
        for _ in range(6):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    ends = [(window["reason"], window["end"]) for window in of_kind(path, "window")]
    assert ends == [("start", "reserve"), ("start", "stop")]
    rows = [record["steps"]["window"] for record in of_kind(path, "steps")]
    assert sum(window >= 0 for row in rows for window in row) >= 4
    phases = {label[1] for record in of_kind(path, "tables") for label in record.get("labels", [])}
    assert 3 in phases  # the optimizer's own allocations bear its name, in the step it began in


def test_one_step_of_many_closures_keeps_to_the_limits(path):
    weight = torch.nn.Parameter(torch.zeros(8, dtype=torch.double))
    optimizer = torch.optim.LBFGS([weight], max_iter=200, tolerance_change=0, tolerance_grad=0)

    def closure():
        optimizer.zero_grad()
        small_operators(300)
        loss = ((weight - torch.arange(8)) ** 4).sum()
        loss.backward()
        return loss

    with memprof.track(path, sources=("cpu",), allowance_s=600.0, max_events=20_000):
        optimizer.step(closure)
    window = of_kind(path, "window")[0]
    assert (window["end"], window["in_step"]) == ("max_events", True)
    assert of_kind(path, "footer")[0]["devices"][0]["events"] <= 20_000 + BATCH


def test_the_report_says_how_many_steps_were_recorded_and_what_ended_that(path):
    with memprof.track(path, sources=("cpu",), allowance_s=600.0, max_events=1_000) as tracker:
        for step in range(30):
            small_operators(12_000 if step == 2 else 10)
            tracker.step()
    summary = summarize(examine(load(path)))
    told = "2 of 30 steps were recorded, then the file held as many events as a window may have"
    assert any(told in text for text in summary.unseen)
    assert told in summary.verdict.why
    assert (summary.devices[0].recorded_steps, summary.devices[0].steps) == (2, 30)


def test_nothing_stays_behind_where_a_window_ended_within_an_operator(path):
    with memprof.track(path, sources=("cpu",), allowance_s=600.0, max_events=2_000):
        small_operators(20_000)
        assert not modes()
    gc.collect()
    assert not modes()


def test_a_window_that_ends_in_a_backward_pass_leaves_no_mode_behind_it(path):
    class Slow(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            small_operators(5_000)
            return gradient * 2

    weight = torch.ones(4, requires_grad=True)
    with memprof.track(path, sources=("cpu",), allowance_s=600.0, max_events=2_000):
        Slow.apply(weight).sum().backward()
        small_operators(10)  # torch has put its stack back
        assert not modes()
    assert of_kind(path, "window")[0]["end"] == "max_events"


def test_between_windows_calls_are_reckoned_and_nothing_is_hooked_to_modules(path, monkeypatch):
    from torch.nn.modules import module

    model = torch.nn.Linear(8, 8).eval()
    calls, hooks, reckoned, skip = 0, [], [], LoopWatch.skip

    def counted(loop_watch, steps):
        reckoned.append(steps)
        skip(loop_watch, steps)

    monkeypatch.setattr(LoopWatch, "skip", counted)
    deadline = time.monotonic() + 300
    with memprof.track(path, sources=("cpu",), allowance_s=2.0), torch.no_grad():
        while time.monotonic() < deadline:
            model(torch.ones(2, 8))
            calls += 1
            if not modes():
                hooks.append(len(module._global_forward_hooks))
                if len(reckoned) > 1:
                    break
    assert set(hooks) == {0}
    (note,) = [one for one in load(path).notes if "is reckoned from their duration" in one.message]
    assert note.hint == "mark them yourself with memprof.step()"
    (window,) = of_kind(path, "window")
    (device,) = load(path).devices
    assert int(device.steps.last[-1]) > window["last_step"]
    assert int(device.steps.last[-1]) < 20 * calls
